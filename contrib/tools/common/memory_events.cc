// SPDX-License-Identifier: BSD-3-Clause
// The table of events.
#include "contrib/tools/common/memory_events.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "contrib/tools/common/memory_calls.h"

namespace pinrail::tools {
namespace {

constexpr auto kAnonymous = MemoryKind::anonymous;
constexpr auto kShared = MemoryKind::shared_file;
constexpr auto kPrivate = MemoryKind::private_file;
constexpr auto kDisk = MemoryKind::disk_file;
constexpr auto kSystemV = MemoryKind::system_v;
constexpr auto kHeap = MemoryKind::heap;
constexpr auto kAll = Part::all;
constexpr auto kHalf = Part::second_half;
constexpr auto kKept = Pages::kept;
constexpr auto kZero = Contents::zero;
constexpr auto kSameBytes = Contents::kept;
constexpr auto kAny = Contents::any;
constexpr auto kMaybe = Place::maybe;

// `pages` was measured with registered buffers of io_uring and with soft-RoCE.
constexpr MemoryEvent kEvents[] = {
    {"munmap", "all of it is unmapped, and mapped anew at the same address", kAnonymous, fire_munmap},
    {"munmap-half", "its second half is unmapped, and mapped anew at the same address", kAnonymous, fire_munmap_half,
     kHalf},
    {"munmap-reuse", "it is unmapped, and the kernel may hand the address out again", kAnonymous, fire_munmap_reuse,
     kAll, Pages::replaced, kZero, kMaybe},
    {"mmap-over", "mmap with MAP_FIXED lays a new mapping over it", kAnonymous, fire_mmap_over},
    {"mremap-move", "mremap moves it away; the old address is mapped anew", kAnonymous, fire_mremap_move},
    {"mremap-onto", "mremap with MREMAP_FIXED moves another mapping onto it", kAnonymous, fire_mremap_onto},
    {"mremap-dontunmap", "mremap moves its pages away and leaves it mapped", kAnonymous, fire_mremap_dontunmap},
    {"mremap-shrink", "mremap cuts its second half off, which is mapped anew", kAnonymous, fire_mremap_shrink, kHalf},
    {"mremap-back", "mremap moves it away and back again", kAnonymous, fire_mremap_back, kAll, kKept, kSameBytes},
    {"madvise-dontneed", "MADV_DONTNEED", kAnonymous, fire_dontneed},
    {"madvise-dontneed-locked", "MADV_DONTNEED_LOCKED (Linux 5.18)", kAnonymous, fire_locked_dontneed},
    {"madvise-dontneed-shared", "MADV_DONTNEED of a shared mapping", kShared, fire_dontneed, kAll, kKept, kSameBytes},
    {"madvise-free", "MADV_FREE", kAnonymous, fire_free_pages, kAll, kKept, kAny},
    {"madvise-cold", "MADV_COLD", kAnonymous, fire_cold, kAll, kKept, kSameBytes},
    {"madvise-pageout", "MADV_PAGEOUT", kAnonymous, fire_pageout, kAll, kKept, kSameBytes},
    {"madvise-remove", "MADV_REMOVE of a shared mapping", kShared, fire_remove},
    {"madvise-guard-install", "MADV_GUARD_INSTALL, then GUARD_REMOVE (Linux 6.13)", kAnonymous, fire_guard_install},
    {"process-madvise", "process_madvise(DONTNEED) on this process", kAnonymous, fire_process_madvise},
    {"remap-file-pages", "remap_file_pages shows another part of the file", kShared, fire_remap_file_pages},
    {"map-again", "the same part of the same file is mapped over it", kShared, fire_map_again, kAll, kKept, kSameBytes},
    {"mprotect", "write-protected for a moment", kAnonymous, fire_mprotect, kAll, kKept, kSameBytes},
    {"brk", "the program's break sinks below it and rises again", kHeap, fire_brk},
    {"shmdt", "a segment is detached, and another attached in its place", kSystemV, fire_shmdt},
    {"shmat-remap", "shmat with SHM_REMAP lays another segment over it", kSystemV, fire_shmat_remap},
    {"fallocate-punch-hole", "FALLOC_FL_PUNCH_HOLE in a file that is mapped shared", kShared, fire_punch_hole},
    {"ftruncate", "a file that is mapped shared is cut, and grows again", kShared, fire_ftruncate, kHalf},
    {"ftruncate-private", "a file that is mapped private is cut, and grows again", kPrivate, fire_ftruncate, kHalf},
    {"truncate", "a file that is mapped shared is cut by its path, and grows again", kShared, fire_truncate, kHalf},
    {"open-truncate", "a file that is mapped shared is opened with O_TRUNC", kShared, fire_open_truncate},
    {"open-truncate-private", "a file that is mapped private is opened with O_TRUNC", kPrivate, fire_open_truncate},
    {"creat", "creat of a file that is mapped shared", kShared, fire_creat},
    {"write-direct", "a write with O_DIRECT to a file on disk that is mapped shared", kDisk, fire_direct_write},
    {"write-dontcache", "a write with RWF_DONTCACHE to such a file (Linux 6.14)", kDisk, fire_uncached_write},
    {"dlclose", "a library is unloaded, and another one loaded", MemoryKind::library, fire_dlclose, kAll,
     Pages::replaced, kZero, kMaybe},
    {"free", "free of a block that malloc had mapped, and malloc again", MemoryKind::large_block, fire_free, kAll,
     Pages::replaced, kAny, kMaybe},
    {"realloc", "a block that malloc had mapped grows, and malloc again", MemoryKind::large_block, fire_realloc, kAll,
     Pages::replaced, kAny, kMaybe},
    {"free-trim", "free of a small block, malloc_trim, and malloc again", MemoryKind::small_block, fire_trim, kAll,
     Pages::replaced, kAny, kMaybe},
    {"fork", "a child comes and goes", kAnonymous, fire_fork, kAll, kKept, kSameBytes},

    {"munmap-raw", "as munmap, past libc", kAnonymous, fire_munmap},
    {"mmap-over-raw", "as mmap-over, past libc", kAnonymous, fire_mmap_over},
    {"mremap-move-raw", "as mremap-move, past libc", kAnonymous, fire_mremap_move},
    {"mremap-onto-raw", "as mremap-onto, past libc", kAnonymous, fire_mremap_onto},
    {"mremap-dontunmap-raw", "as mremap-dontunmap, past libc", kAnonymous, fire_mremap_dontunmap},
    {"mremap-shrink-raw", "as mremap-shrink, past libc", kAnonymous, fire_mremap_shrink, kHalf},
    {"madvise-dontneed-raw", "as madvise-dontneed, past libc", kAnonymous, fire_dontneed},
    {"madvise-dontneed-locked-raw", "as madvise-dontneed-locked, past libc", kAnonymous, fire_locked_dontneed},
    {"madvise-remove-raw", "as madvise-remove, past libc", kShared, fire_remove},
    {"madvise-guard-install-raw", "as madvise-guard-install, past libc", kAnonymous, fire_guard_install},
    {"process-madvise-raw", "as process-madvise, past libc", kAnonymous, fire_process_madvise},
    {"remap-file-pages-raw", "as remap-file-pages, past libc", kShared, fire_remap_file_pages},
    {"brk-raw", "as brk, past libc", kHeap, fire_brk},
    {"shmdt-raw", "as shmdt, past libc", kSystemV, fire_shmdt},
    {"shmat-remap-raw", "as shmat-remap, past libc", kSystemV, fire_shmat_remap},
    {"fallocate-punch-hole-raw", "as fallocate-punch-hole, past libc", kShared, fire_punch_hole},
    {"ftruncate-raw", "as ftruncate, past libc", kShared, fire_ftruncate, kHalf},
    {"truncate-raw", "as truncate, past libc", kShared, fire_truncate, kHalf},
    {"open-truncate-raw", "as open-truncate, past libc", kShared, fire_open_truncate},

    {"ring-madvise", "as madvise-dontneed, by io_uring", kAnonymous, fire_ring_madvise},
    {"ring-fallocate", "as fallocate-punch-hole, by io_uring", kShared, fire_ring_fallocate},
    {"ring-ftruncate", "as ftruncate, by io_uring (Linux 6.9)", kShared, fire_ring_ftruncate, kHalf},
    {"ring-open-truncate", "as open-truncate, by io_uring", kShared, fire_ring_open_truncate},
};

std::string errno_text() { return std::generic_category().message(errno); }

}  // namespace

MemoryEvents memory_events() { return {kEvents, sizeof(kEvents) / sizeof(kEvents[0])}; }

const MemoryEvent* find_memory_event(const std::string& name) {
  for (const MemoryEvent& event : kEvents) {
    if (name == event.name) return &event;
  }
  return nullptr;
}

Way MemoryEvent::way() const {
  const std::string_view typed = name;
  if (typed.substr(0, 5) == "ring-") return Way::ring;
  return typed.size() > 4 && typed.substr(typed.size() - 4) == "-raw" ? Way::raw : Way::libc;
}

const char* memory_kind_name(MemoryKind kind) {
  constexpr const char* kNames[] = {"anonymous", "shared file", "private file", "file on disk", "System V",
                                    "heap",      "library",     "large block",  "small block"};
  return kNames[static_cast<size_t>(kind)];
}

bool fire_memory_event(const MemoryEvent& event, EventMemory* memory) {
  if (event.act(event.way() == Way::raw ? kRawCalls : kLibcCalls, memory)) return true;
  if (errno == EFAULT && memory->length != 0) errno = EBUSY;  // mremap's errno for more than one mapping
  return false;
}

Extent lost(const MemoryEvent& event, const EventMemory& memory) {
  const size_t half = memory.length / 2;
  return event.part == Part::all ? Extent{memory.base, memory.length} : Extent{memory.base + half, half};
}

std::string why_no_memory_event(const MemoryEvent& event) {
  const size_t length = size_t{16} * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const auto memory = prepare_memory(event.kind, length);
  if (memory == nullptr) return std::string("no ") + memory_kind_name(event.kind) + " memory: " + errno_text();
  std::memset(memory->base, 1, memory->length);
  if (fire_memory_event(event, memory.get())) return "";
  return std::string(event.name) + ": " + errno_text();
}

}  // namespace pinrail::tools
