// SPDX-License-Identifier: BSD-3-Clause
// mapping.h - what is mapped at an address, and which pages the process has for itself, as the kernel reports it.
//
// Owns     a descriptor of /proc/self/maps, from open_mappings() to close_mappings().
// Threads  The find functions may run together, and beside open_mappings(), of which one runs at a time. They read
//          /proc/self/maps and ask about files by their paths. close_mappings() runs alone. API context; they
//          take no lock.
#ifndef PINRAIL_FRAMEWORK_MONITOR_MAPPING_H
#define PINRAIL_FRAMEWORK_MONITOR_MAPPING_H

#include <fcntl.h>
#include <pinrail/component.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/core/span.h"
#include "base/sync/own_file.h"

namespace pinrail::monitor {

// A file of /proc/self that stays open from start-up on, because to open it takes longer than to ask it.
//
// Owns     a descriptor, which is known by its file and closed in forked children (base/sync/own_file.h).
// Threads  number() may run at any time; open() beside it, one at a time. close() runs alone.
// Context  start-up or API.
class ProcFile {
 public:
  constexpr explicit ProcFile(const char* path) : path_(path) {}

  // Opens it, unless it was opened before; on failure it stays closed. Throws bad_alloc.
  void open() {
    if (file_.load() != nullptr) return;
    auto file = std::make_unique<OwnFile>();
    if (file->open(FileKind::proc, [this] { return open_another(); })) file_.store(file.release());
  }
  // In a forked child, where the parent's descriptor is closed, the next open() follows it.
  void close() { delete file_.exchange(nullptr); }

  // -1: it is closed, or the program has closed it.
  int number() const {
    const OwnFile* const file = file_.load();
    return file != nullptr ? file->number() : -1;
  }
  // Returns a descriptor that the caller closes; negative: none.
  int open_another() const { return ::open(path_, O_RDONLY | O_CLOEXEC); }

 private:
  const char* const path_;
  std::atomic<const OwnFile*> file_{nullptr};
};

// Keeps the list of mappings open, so that find_mapping() need not open it each time; on failure it does.
// Throws bad_alloc.
void open_mappings();
void close_mappings();

// Finds the mapping that holds the address, or else the next one above it. False: there is none, or the kernel
// refuses.
bool find_mapping(uintptr_t at, pinrail_mapping_t* mapping_out);

// The same by reading the whole list, for kernels before 6.11.
bool find_mapping_in_list(uintptr_t at, pinrail_mapping_t* mapping_out);

// Derives the kind of a mapping: of a file from the file's type and file system. path: as in /proc/self/maps.
pinrail_mapping_kind_t kind_of(const std::string& path, bool is_shared, uint64_t device, uint64_t inode);

// The kind's name for messages, for example "shared file".
const char* kind_name(pinrail_mapping_kind_t kind);

// Which pages around a range the process has for itself: to pin them as well faults in and copies
// nothing. And which page frames they are.
//
// Owns     a descriptor of /proc/self/pagemap, which is closed in forked children.
// Threads  all functions may run together, but open_page_map() and close_page_map() exclude every other. API context;
//          no lock may be held, because the kernel is asked.
//
// mapping/O1  A page counts if it is present, anonymous, and mapped by this process alone. So the zero page, pages of
//     files and pages that are shared with a forked child do not: a pin that may write would replace them.

// Of the kernel, in bytes.
size_t page_size();

// The largest part of `most` that contains the span, whole pages, in which each page beside the span counts
// (mapping/O1). Just the span if it is not of whole pages, or if the kernel does not tell.
Span own_pages_around(const Span& span, const Span& most);

// The page frames of these whole pages, one a page; 0: the page is not present, or the process may not see frames
// (CAP_SYS_ADMIN when Pinrail starts). False: the kernel does not tell.
bool read_frames(const Span& pages, uint64_t* frames_out);

// Whether an entry of /proc/self/pagemap counts (mapping/O1), for tests.
bool is_own_page(uint64_t entry);

// Start-up and shut-down: the descriptor. Without it no page counts.
void open_page_map();
void close_page_map();

}  // namespace pinrail::monitor

#endif
