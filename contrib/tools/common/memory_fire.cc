// SPDX-License-Identifier: BSD-3-Clause
// Events that unmap, move or replace mappings; afterwards memory is mapped again.
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "contrib/tools/common/memory_calls.h"

namespace pinrail::tools {
namespace {

constexpr int kReadWrite = PROT_READ | PROT_WRITE;
constexpr int kAnonymous = MAP_PRIVATE | MAP_ANONYMOUS;
constexpr int kMove = MREMAP_MAYMOVE | MREMAP_FIXED;

bool gone(EventMemory* memory) {
  memory->base = nullptr;
  memory->length = 0;
  return false;
}

// Sets the new base of the memory. NULL: the event failed and the memory is gone.
bool is_now(EventMemory* memory, unsigned char* base) {
  if (base == nullptr) return gone(memory);
  memory->base = base;
  return true;
}

bool map_all_anew(const Calls& calls, EventMemory* memory, unsigned char* at) {
  return is_now(memory, map_anonymous(calls, at, memory->length));
}

// Maps the unmapped second half again. If another thread has mapped that place, the first half is given up too.
bool map_half_anew(const Calls& calls, EventMemory* memory) {
  const size_t half = memory->length / 2;
  unsigned char* const there = map_anonymous(calls, memory->base + half, half);
  if (there == memory->base + half) return true;
  if (there != nullptr) calls.munmap(there, half);
  calls.munmap(memory->base, half);
  return map_all_anew(calls, memory, nullptr);
}

// Reserves an unused address range, to which pages can be moved.
unsigned char* reserve(const Calls& calls, size_t length) {
  void* const at = calls.mmap(nullptr, length, PROT_NONE, kAnonymous | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<unsigned char*>(at);
}

// Moves all pages to another address. NULL and errno on failure.
unsigned char* move_away(const Calls& calls, const EventMemory& memory, int flags) {
  unsigned char* const elsewhere = reserve(calls, memory.length);
  if (elsewhere == nullptr) return nullptr;
  if (calls.mremap(memory.base, memory.length, memory.length, flags, elsewhere) == elsewhere) return elsewhere;
  const int kept = errno;
  calls.munmap(elsewhere, memory.length);
  errno = kept;
  return nullptr;
}

// Allocates a new block; malloc usually returns the address of the one freed last.
bool take_new_block(EventMemory* memory) {
  if (take_block(memory)) return true;
  memory->owner = nullptr;
  return gone(memory);
}

}  // namespace

bool fire_munmap(const Calls& calls, EventMemory* memory) {
  return calls.munmap(memory->base, memory->length) == 0 && map_all_anew(calls, memory, memory->base);
}

bool fire_munmap_half(const Calls& calls, EventMemory* memory) {
  const size_t half = memory->length / 2;
  return calls.munmap(memory->base + half, half) == 0 && map_half_anew(calls, memory);
}

bool fire_munmap_reuse(const Calls& calls, EventMemory* memory) {
  return calls.munmap(memory->base, memory->length) == 0 && map_all_anew(calls, memory, nullptr);
}

bool fire_mmap_over(const Calls& calls, EventMemory* memory) {
  return calls.mmap(memory->base, memory->length, kReadWrite, kAnonymous | MAP_FIXED, -1, 0) == memory->base;
}

bool fire_mremap_move(const Calls& calls, EventMemory* memory) {
  unsigned char* const moved = move_away(calls, *memory, kMove);
  if (moved == nullptr) return false;
  const bool mapped = map_all_anew(calls, memory, memory->base);
  calls.munmap(moved, memory->length);
  return mapped;
}

bool fire_mremap_onto(const Calls& calls, EventMemory* memory) {
  unsigned char* const other = map_anonymous(calls, nullptr, memory->length);
  if (other == nullptr) return false;
  if (calls.mremap(other, memory->length, memory->length, kMove, memory->base) == memory->base) return true;
  const int kept = errno;
  calls.munmap(other, memory->length);
  errno = kept;
  return false;
}

bool fire_mremap_dontunmap(const Calls& calls, EventMemory* memory) {
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_DONTUNMAP;
  void* const moved = calls.mremap(memory->base, memory->length, memory->length, kFlags, nullptr);
  return moved != MAP_FAILED && calls.munmap(moved, memory->length) == 0;
}

bool fire_mremap_shrink(const Calls& calls, EventMemory* memory) {
  const bool shrunk = calls.mremap(memory->base, memory->length, memory->length / 2, 0, nullptr) == memory->base;
  return shrunk && map_half_anew(calls, memory);
}

// The old place stays mapped meanwhile (MREMAP_DONTUNMAP): in a hole another thread could map, and
// moving back would replace its mapping.
bool fire_mremap_back(const Calls& calls, EventMemory* memory) {
  unsigned char* const moved = move_away(calls, *memory, kMove | MREMAP_DONTUNMAP);
  if (moved == nullptr) return false;
  void* const back = calls.mremap(moved, memory->length, memory->length, kMove, memory->base);
  return is_now(memory, back == memory->base ? memory->base : moved);
}

bool fire_brk(const Calls& calls, EventMemory* memory) {
  unsigned char* const end = memory->base + memory->length;
  if (sbrk(0) != end) {
    errno = EBUSY;
    return false;
  }
  if (calls.brk(memory->base) != 0) return false;
  return calls.brk(end) == 0 || gone(memory);
}

bool fire_shmdt(const Calls& calls, EventMemory* memory) {
  if (calls.shmdt(memory->base) != 0) return false;
  unsigned char* base = attach_segment(calls, memory->base, memory->length, 0);
  if (base == nullptr) base = attach_segment(calls, nullptr, memory->length, 0);
  return is_now(memory, base);
}

bool fire_shmat_remap(const Calls& calls, EventMemory* memory) {
  return attach_segment(calls, memory->base, memory->length, SHM_REMAP) == memory->base;
}

bool fire_dlclose(const Calls&, EventMemory* memory) {
  if (dlclose(memory->owner) != 0) return false;
  return load_library(memory) || gone(memory);
}

bool fire_free(const Calls&, EventMemory* memory) {
  std::free(memory->owner);
  return take_new_block(memory);
}

bool fire_trim(const Calls&, EventMemory* memory) {
  std::free(memory->owner);
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  return take_new_block(memory);
}

bool fire_realloc(const Calls&, EventMemory* memory) {
  void* const grown = std::realloc(memory->owner, 4 * memory->length);
  if (grown == nullptr) return false;
  const bool taken = take_new_block(memory);
  std::free(grown);
  return taken;
}

bool fire_fork(const Calls&, EventMemory* memory) {
  const pid_t child = fork();
  if (child == 0) {
    memory->base[0] = static_cast<unsigned char>(memory->base[0] + 1);  // the child's own copy
    _exit(0);
  }
  int status = 0;
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace pinrail::tools
