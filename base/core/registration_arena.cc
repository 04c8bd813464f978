// SPDX-License-Identifier: BSD-3-Clause
#include "base/core/registration_arena.h"

#include <sys/mman.h>

#include <cstring>

#include "base/core/lock.h"
#include "base/core/registration.h"

namespace pinrail::arena {
namespace {

static_assert(sizeof(pinrail_registration_t) % kTailAlignment == 0, "a tail starts on a line of its own");

constexpr size_t kClasses = kMaxTail / kTailAlignment + 1;
constexpr size_t kSlabBytes = 64 * 1024;

// Free registrations of one size of tail, linked through `base`.
struct SizeClass {
  Mutex mutex{LockRank::arena};
  pinrail_registration_t* free_list GUARDED_BY(mutex) = nullptr;
};

// Constant-initialised and never destroyed: usable before main and in the last destructor.
SizeClass classes[2][kClasses];  // by pinrail_counting_t

size_t class_of(size_t tail_size) { return (tail_size + kTailAlignment - 1) / kTailAlignment; }
size_t cell_bytes(size_t size_class) { return sizeof(pinrail_registration_t) + size_class * kTailAlignment; }

// Cuts a new slab into free registrations. Straight from the kernel: it must outlive every allocator's whim.
bool grow(SizeClass& size_class, size_t cell) REQUIRES(size_class.mutex) {
  const size_t bytes = cell > kSlabBytes ? cell : kSlabBytes;
  void* slab = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (slab == MAP_FAILED) return false;
  char* const first = static_cast<char*>(slab);
  for (size_t offset = (bytes / cell) * cell; offset >= cell; offset -= cell) {
    auto* reg = reinterpret_cast<pinrail_registration_t*>(first + offset - cell);
    reg->base = size_class.free_list;
    size_class.free_list = reg;
  }
  return true;
}

pinrail_registration_t* pop(SizeClass& size_class, size_t cell) {
  Guard guard(size_class.mutex);
  if (size_class.free_list == nullptr && !grow(size_class, cell)) return nullptr;
  pinrail_registration_t* reg = size_class.free_list;
  size_class.free_list = static_cast<pinrail_registration_t*>(reg->base);
  return reg;
}

}  // namespace

Status allocate(size_t tail_size, pinrail_counting_t counting, pinrail_registration_t** reg_out) {
  if (tail_size > kMaxTail) return PINRAIL_ERR_BAD_PARAM;
  const size_t index = class_of(tail_size);
  pinrail_registration_t* reg = pop(classes[counting][index], cell_bytes(index));
  if (reg == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  // The state word may be looked at by a find with a stale pointer; everything else is cleared.
  state::set(reg, counting == PINRAIL_COUNTING_THREADS ? state::kPerThread : 0);
  reg->base = nullptr;
  reg->length = 0;
  reg->rights = reg->traits = reg->lkey = reg->rkey = reg->flags = 0;
  reg->pool = nullptr;
  __atomic_store_n(&reg->last_use, 0, __ATOMIC_RELAXED);
  reg->tail_size = static_cast<uint32_t>(tail_size);
  std::memset(reg->mpool_area, 0, sizeof(reg->mpool_area));
  std::memset(reg + 1, 0, index * kTailAlignment);
  *reg_out = reg;
  return success();
}

void free(pinrail_registration_t* reg) {
  const bool per_thread = (state::load(reg) & state::kPerThread) != 0;
  SizeClass& size_class = classes[per_thread ? 1 : 0][class_of(reg->tail_size)];
  state::renew(reg);
  Guard guard(size_class.mutex);
  reg->base = size_class.free_list;
  size_class.free_list = reg;
}

void* tail_of(const pinrail_registration_t* reg) {
  return reg->tail_size == 0 ? nullptr : const_cast<pinrail_registration_t*>(reg + 1);
}

pinrail_registration_t* of_tail(const void* tail) {
  return static_cast<pinrail_registration_t*>(const_cast<void*>(tail)) - 1;
}

}  // namespace pinrail::arena
