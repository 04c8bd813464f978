// SPDX-License-Identifier: BSD-3-Clause
// The table of events.
#include "contrib/tools/common/memory_events.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/magic.h>
#include <malloc.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

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

// Allocates and releases memory of each kind.

namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;

unsigned char* pointer(void* mapped) { return mapped == MAP_FAILED ? nullptr : static_cast<unsigned char*>(mapped); }

// A file on disk that has no name any more. ENOTSUP: the folder is in memory.
int make_disk_file() {
  char path[] = "/var/tmp/pinrail-event-XXXXXX";
  const int file = mkostemp(path, O_CLOEXEC);
  if (file < 0) return -1;
  unlink(path);
  struct statfs about {};
  if (fstatfs(file, &about) == 0 && about.f_type != TMPFS_MAGIC) return file;
  close(file);
  errno = ENOTSUP;
  return -1;
}

bool map_file(EventMemory* memory, int sharing) {
  const bool on_disk = memory->kind == MemoryKind::disk_file;
  memory->file = on_disk ? make_disk_file() : memfd_create("pinrail-event", MFD_CLOEXEC);
  if (memory->file < 0 || ftruncate(memory->file, static_cast<off_t>(2 * memory->length)) != 0) return false;
  memory->base = pointer(mmap(nullptr, memory->length, kReadWrite, sharing, memory->file, 0));
  return memory->base != nullptr;
}

bool take_heap(EventMemory* memory) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto now = reinterpret_cast<uintptr_t>(sbrk(0));
  const uintptr_t gap = (page - now % page) % page;
  void* const had = sbrk(static_cast<intptr_t>(gap + memory->length));
  if (had == reinterpret_cast<void*>(-1)) return false;  // NOLINT(performance-no-int-to-ptr): sbrk's own failure
  memory->base = static_cast<unsigned char*>(had) + gap;
  return reinterpret_cast<uintptr_t>(had) == now;  // false: another thread moved the break
}

bool prepare(EventMemory* memory) {
  switch (memory->kind) {
    case MemoryKind::anonymous: memory->base = map_anonymous(kLibcCalls, nullptr, memory->length); break;
    case MemoryKind::shared_file:
    case MemoryKind::disk_file: return map_file(memory, MAP_SHARED);
    case MemoryKind::private_file: return map_file(memory, MAP_PRIVATE);
    case MemoryKind::system_v: memory->base = attach_segment(kLibcCalls, nullptr, memory->length, 0); break;
    case MemoryKind::heap: return take_heap(memory);
    case MemoryKind::library:
      memory->file = make_library(memory->length);
      return memory->file >= 0 && load_library(memory);
    case MemoryKind::large_block: memory->length = std::max(memory->length, kLargeBlock); return take_block(memory);
    case MemoryKind::small_block: memory->length = std::min(memory->length, kSmallBlock); return take_block(memory);
  }
  return memory->base != nullptr;
}

void give_back(EventMemory* memory) {
  switch (memory->kind) {
    case MemoryKind::anonymous:
    case MemoryKind::shared_file:
    case MemoryKind::disk_file:
    case MemoryKind::private_file: munmap(memory->base, memory->length); return;
    case MemoryKind::system_v: shmdt(memory->base); return;
    case MemoryKind::heap:  // stays if the break has moved above it
      if (sbrk(0) == memory->base + memory->length && brk(memory->base) != 0) std::perror("brk");
      return;
    case MemoryKind::library: dlclose(memory->owner); return;
    case MemoryKind::large_block:
    case MemoryKind::small_block: std::free(memory->owner); return;
  }
}

}  // namespace

unsigned char* map_anonymous(const Calls& calls, unsigned char* at, size_t length) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (at != nullptr) {
    unsigned char* const there = pointer(calls.mmap(at, length, kReadWrite, kFlags | MAP_FIXED_NOREPLACE, -1, 0));
    if (there == at) return there;
    if (there != nullptr)
      calls.munmap(there, length);  // kernels before 4.17 ignore the flag and treat the address as a hint
  }
  return pointer(calls.mmap(nullptr, length, kReadWrite, kFlags, -1, 0));
}

unsigned char* attach_segment(const Calls& calls, unsigned char* at, size_t length, int flags) {
  const int segment = shmget(IPC_PRIVATE, length, IPC_CREAT | 0600);
  if (segment < 0) return nullptr;
  void* const attached = calls.shmat(segment, at, flags);
  const int kept = errno;
  shmctl(segment, IPC_RMID, nullptr);
  errno = kept;
  return pointer(attached);
}

bool load_library(EventMemory* memory) {
  const std::string path = "/proc/self/fd/" + std::to_string(memory->file);
  memory->owner = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  link_map* map = nullptr;
  if (memory->owner == nullptr || dlinfo(memory->owner, RTLD_DI_LINKMAP, &map) != 0) {
    errno = ENOEXEC;
    return false;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address from the loader
  memory->base = reinterpret_cast<unsigned char*>(map->l_addr) + kLibraryData;
  return true;
}

namespace {

struct HeldBlock {
  HeldBlock* next;
};

#if defined(__GLIBC__)
// glibc has 16 bytes before a block that is a mapping of its own, and since 2.43 leaves the last 8 of its pages.
bool is_a_mapping_since_2_43(void* block, size_t usable) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(block);
  return address % page == 16 && (address + usable + 8) % page == 0;
}
#endif

// The usable size of a block of an arena is a multiple of 16 bytes and 8 more. Those of older glibcs' mappings and of
// other allocators' blocks are such multiples.
bool is_of_an_arena(void* block) {
#if defined(__GLIBC__)
  const size_t usable = malloc_usable_size(block);
  return usable % 16 == 8 && !is_a_mapping_since_2_43(block, usable);
#else
  (void)block;
  return false;
#endif
}

}  // namespace

// glibc adapts its mmap threshold when blocks are freed; setting it once makes it constant. A large block comes from
// an arena all the same if that has room for it, for instance where stdio's buffers were. So such blocks are held until
// the arena has no room, and are freed afterwards.
bool take_block(EventMemory* memory) {
#if defined(__GLIBC__)
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's takes its lock
  static const bool fixed = mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlock / 2)) != 0;
  (void)fixed;
#endif
  constexpr int kMostHeld = 1000;
  HeldBlock* held = nullptr;
  void* block = std::malloc(memory->length);
  for (int i = 0; i < kMostHeld && block != nullptr; ++i) {
    if (memory->kind != MemoryKind::large_block || !is_of_an_arena(block)) break;
    held = new (block) HeldBlock{held};
    block = std::malloc(memory->length);
  }
  while (held != nullptr) std::free(std::exchange(held, held->next));
  if (block != nullptr) std::memset(block, 0, memory->length);
  memory->owner = block;
  memory->base = static_cast<unsigned char*>(block);
  return block != nullptr;
}

EventMemory::~EventMemory() {
  if (base != nullptr && length != 0) give_back(this);
  if (file >= 0) close(file);
}

void keep_malloc_off_the_break() {
#if defined(__GLIBC__)
  constexpr int kRoom = 16 << 20;
  constexpr size_t kBlock = size_t{32} << 10;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): glibc's takes its lock
  if (mallopt(M_TRIM_THRESHOLD, 4 * kRoom) == 0 || mallopt(M_TOP_PAD, kRoom) == 0) return;
  std::array<void*, 8> blocks{};  // more than there was room for before
  for (void*& block : blocks) block = std::malloc(kBlock);
  for (void* const block : blocks) std::free(block);
#endif
}

std::unique_ptr<EventMemory> prepare_memory(MemoryKind kind, size_t length) {
  auto memory = std::make_unique<EventMemory>();
  memory->kind = kind;
  memory->length = length;
  const bool ready = prepare(memory.get());
  if (ready) return memory;
  const int kept = errno;
  memory->length = 0;
  memory.reset();
  errno = kept;
  return memory;
}

}  // namespace pinrail::tools
