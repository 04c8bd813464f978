// SPDX-License-Identifier: BSD-3-Clause
// Allocates and releases memory of each kind.
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
#include <utility>

#include "contrib/tools/common/memory_calls.h"

namespace pinrail::tools {
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
