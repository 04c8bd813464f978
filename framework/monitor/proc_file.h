// SPDX-License-Identifier: BSD-3-Clause
// proc_file.h - a file of /proc/self that stays open from start-up on, because to open it takes longer than to ask it.
//
// Owns     a descriptor, which is known by its file and closed in forked children (base/sync/own_file.h).
// Threads  number() may run at any time; open() beside it, one at a time. close() runs alone.
// Context  start-up or API.
#ifndef PINRAIL_FRAMEWORK_MONITOR_PROC_FILE_H
#define PINRAIL_FRAMEWORK_MONITOR_PROC_FILE_H

#include <fcntl.h>

#include <atomic>
#include <memory>

#include "base/sync/own_file.h"

namespace pinrail::monitor {

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

}  // namespace pinrail::monitor

#endif
