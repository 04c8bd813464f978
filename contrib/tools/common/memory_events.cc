// SPDX-License-Identifier: BSD-3-Clause
// The table of events.
#include "contrib/tools/common/memory_events.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
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
constexpr auto kLibc = Way::libc;
constexpr auto kRaw = Way::raw;
constexpr auto kRing = Way::ring;
constexpr auto kAll = Part::all;
constexpr auto kHalf = Part::second_half;
constexpr auto kReplaced = Pages::replaced;
constexpr auto kKept = Pages::kept;
constexpr auto kZero = Contents::zero;
constexpr auto kSameBytes = Contents::kept;
constexpr auto kAny = Contents::any;
constexpr auto kSame = Place::same;
constexpr auto kMaybe = Place::maybe;

// `pages` was measured with registered buffers of io_uring and with soft-RoCE.
constexpr MemoryEvent kEvents[] = {
    {"munmap", "all of it is unmapped, and mapped anew at the same address", kAnonymous, kLibc, kAll, kReplaced, kZero,
     kSame, fire_munmap},
    {"munmap-half", "its second half is unmapped, and mapped anew at the same address", kAnonymous, kLibc, kHalf,
     kReplaced, kZero, kSame, fire_munmap_half},
    {"munmap-reuse", "it is unmapped, and the kernel may hand the address out again", kAnonymous, kLibc, kAll,
     kReplaced, kZero, kMaybe, fire_munmap_reuse},
    {"mmap-over", "mmap with MAP_FIXED lays a new mapping over it", kAnonymous, kLibc, kAll, kReplaced, kZero, kSame,
     fire_mmap_over},
    {"mremap-move", "mremap moves it away; the old address is mapped anew", kAnonymous, kLibc, kAll, kReplaced, kZero,
     kSame, fire_mremap_move},
    {"mremap-onto", "mremap with MREMAP_FIXED moves another mapping onto it", kAnonymous, kLibc, kAll, kReplaced, kZero,
     kSame, fire_mremap_onto},
    {"mremap-dontunmap", "mremap moves its pages away and leaves it mapped", kAnonymous, kLibc, kAll, kReplaced, kZero,
     kSame, fire_mremap_dontunmap},
    {"mremap-shrink", "mremap cuts its second half off, which is mapped anew", kAnonymous, kLibc, kHalf, kReplaced,
     kZero, kSame, fire_mremap_shrink},
    {"mremap-back", "mremap moves it away and back again", kAnonymous, kLibc, kAll, kKept, kSameBytes, kSame,
     fire_mremap_back},
    {"madvise-dontneed", "MADV_DONTNEED", kAnonymous, kLibc, kAll, kReplaced, kZero, kSame, fire_dontneed},
    {"madvise-dontneed-locked", "MADV_DONTNEED_LOCKED (Linux 5.18)", kAnonymous, kLibc, kAll, kReplaced, kZero, kSame,
     fire_locked_dontneed},
    {"madvise-dontneed-shared", "MADV_DONTNEED of a shared mapping", kShared, kLibc, kAll, kKept, kSameBytes, kSame,
     fire_dontneed},
    {"madvise-free", "MADV_FREE", kAnonymous, kLibc, kAll, kKept, kAny, kSame, fire_free_pages},
    {"madvise-cold", "MADV_COLD", kAnonymous, kLibc, kAll, kKept, kSameBytes, kSame, fire_cold},
    {"madvise-pageout", "MADV_PAGEOUT", kAnonymous, kLibc, kAll, kKept, kSameBytes, kSame, fire_pageout},
    {"madvise-remove", "MADV_REMOVE of a shared mapping", kShared, kLibc, kAll, kReplaced, kZero, kSame, fire_remove},
    {"madvise-guard-install", "MADV_GUARD_INSTALL, then GUARD_REMOVE (Linux 6.13)", kAnonymous, kLibc, kAll, kReplaced,
     kZero, kSame, fire_guard_install},
    {"process-madvise", "process_madvise(DONTNEED) on this process", kAnonymous, kLibc, kAll, kReplaced, kZero, kSame,
     fire_process_madvise},
    {"remap-file-pages", "remap_file_pages shows another part of the file", kShared, kLibc, kAll, kReplaced, kZero,
     kSame, fire_remap_file_pages},
    {"map-again", "the same part of the same file is mapped over it", kShared, kLibc, kAll, kKept, kSameBytes, kSame,
     fire_map_again},
    {"mprotect", "write-protected for a moment", kAnonymous, kLibc, kAll, kKept, kSameBytes, kSame, fire_mprotect},
    {"brk", "the program's break sinks below it and rises again", kHeap, kLibc, kAll, kReplaced, kZero, kSame,
     fire_brk},
    {"shmdt", "a segment is detached, and another attached in its place", kSystemV, kLibc, kAll, kReplaced, kZero,
     kSame, fire_shmdt},
    {"shmat-remap", "shmat with SHM_REMAP lays another segment over it", kSystemV, kLibc, kAll, kReplaced, kZero, kSame,
     fire_shmat_remap},
    {"fallocate-punch-hole", "FALLOC_FL_PUNCH_HOLE in a file that is mapped shared", kShared, kLibc, kAll, kReplaced,
     kZero, kSame, fire_punch_hole},
    {"ftruncate", "a file that is mapped shared is cut, and grows again", kShared, kLibc, kHalf, kReplaced, kZero,
     kSame, fire_ftruncate},
    {"ftruncate-private", "a file that is mapped private is cut, and grows again", kPrivate, kLibc, kHalf, kReplaced,
     kZero, kSame, fire_ftruncate},
    {"truncate", "a file that is mapped shared is cut by its path, and grows again", kShared, kLibc, kHalf, kReplaced,
     kZero, kSame, fire_truncate},
    {"open-truncate", "a file that is mapped shared is opened with O_TRUNC", kShared, kLibc, kAll, kReplaced, kZero,
     kSame, fire_open_truncate},
    {"open-truncate-private", "a file that is mapped private is opened with O_TRUNC", kPrivate, kLibc, kAll, kReplaced,
     kZero, kSame, fire_open_truncate},
    {"creat", "creat of a file that is mapped shared", kShared, kLibc, kAll, kReplaced, kZero, kSame, fire_creat},
    {"write-direct", "a write with O_DIRECT to a file on disk that is mapped shared", kDisk, kLibc, kAll, kReplaced,
     kZero, kSame, fire_direct_write},
    {"write-dontcache", "a write with RWF_DONTCACHE to such a file (Linux 6.14)", kDisk, kLibc, kAll, kReplaced, kZero,
     kSame, fire_uncached_write},
    {"dlclose", "a library is unloaded, and another one loaded", MemoryKind::library, kLibc, kAll, kReplaced, kZero,
     kMaybe, fire_dlclose},
    {"free", "free of a block that malloc had mapped, and malloc again", MemoryKind::large_block, kLibc, kAll,
     kReplaced, kAny, kMaybe, fire_free},
    {"realloc", "a block that malloc had mapped grows, and malloc again", MemoryKind::large_block, kLibc, kAll,
     kReplaced, kAny, kMaybe, fire_realloc},
    {"free-trim", "free of a small block, malloc_trim, and malloc again", MemoryKind::small_block, kLibc, kAll,
     kReplaced, kAny, kMaybe, fire_trim},
    {"fork", "a child comes and goes", kAnonymous, kLibc, kAll, kKept, kSameBytes, kSame, fire_fork},

    {"munmap-raw", "as munmap, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame, fire_munmap},
    {"mmap-over-raw", "as mmap-over, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame, fire_mmap_over},
    {"mremap-move-raw", "as mremap-move, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame, fire_mremap_move},
    {"mremap-onto-raw", "as mremap-onto, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame, fire_mremap_onto},
    {"mremap-dontunmap-raw", "as mremap-dontunmap, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame,
     fire_mremap_dontunmap},
    {"mremap-shrink-raw", "as mremap-shrink, past libc", kAnonymous, kRaw, kHalf, kReplaced, kZero, kSame,
     fire_mremap_shrink},
    {"madvise-dontneed-raw", "as madvise-dontneed, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame,
     fire_dontneed},
    {"madvise-dontneed-locked-raw", "as madvise-dontneed-locked, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero,
     kSame, fire_locked_dontneed},
    {"madvise-remove-raw", "as madvise-remove, past libc", kShared, kRaw, kAll, kReplaced, kZero, kSame, fire_remove},
    {"madvise-guard-install-raw", "as madvise-guard-install, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero,
     kSame, fire_guard_install},
    {"process-madvise-raw", "as process-madvise, past libc", kAnonymous, kRaw, kAll, kReplaced, kZero, kSame,
     fire_process_madvise},
    {"remap-file-pages-raw", "as remap-file-pages, past libc", kShared, kRaw, kAll, kReplaced, kZero, kSame,
     fire_remap_file_pages},
    {"brk-raw", "as brk, past libc", kHeap, kRaw, kAll, kReplaced, kZero, kSame, fire_brk},
    {"shmdt-raw", "as shmdt, past libc", kSystemV, kRaw, kAll, kReplaced, kZero, kSame, fire_shmdt},
    {"shmat-remap-raw", "as shmat-remap, past libc", kSystemV, kRaw, kAll, kReplaced, kZero, kSame, fire_shmat_remap},
    {"fallocate-punch-hole-raw", "as fallocate-punch-hole, past libc", kShared, kRaw, kAll, kReplaced, kZero, kSame,
     fire_punch_hole},
    {"ftruncate-raw", "as ftruncate, past libc", kShared, kRaw, kHalf, kReplaced, kZero, kSame, fire_ftruncate},
    {"truncate-raw", "as truncate, past libc", kShared, kRaw, kHalf, kReplaced, kZero, kSame, fire_truncate},
    {"open-truncate-raw", "as open-truncate, past libc", kShared, kRaw, kAll, kReplaced, kZero, kSame,
     fire_open_truncate},

    {"ring-madvise", "as madvise-dontneed, by io_uring", kAnonymous, kRing, kAll, kReplaced, kZero, kSame,
     fire_ring_madvise},
    {"ring-fallocate", "as fallocate-punch-hole, by io_uring", kShared, kRing, kAll, kReplaced, kZero, kSame,
     fire_ring_fallocate},
    {"ring-ftruncate", "as ftruncate, by io_uring (Linux 6.9)", kShared, kRing, kHalf, kReplaced, kZero, kSame,
     fire_ring_ftruncate},
    {"ring-open-truncate", "as open-truncate, by io_uring", kShared, kRing, kAll, kReplaced, kZero, kSame,
     fire_ring_open_truncate},
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

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::anonymous: return "anonymous";
    case MemoryKind::shared_file: return "shared file";
    case MemoryKind::private_file: return "private file";
    case MemoryKind::disk_file: return "file on disk";
    case MemoryKind::system_v: return "System V";
    case MemoryKind::heap: return "heap";
    case MemoryKind::library: return "library";
    case MemoryKind::large_block: return "large block";
    case MemoryKind::small_block: return "small block";
  }
  return "?";
}

bool fire_memory_event(const MemoryEvent& event, EventMemory* memory) {
  if (event.act(calls_of(event.way), memory)) return true;
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
