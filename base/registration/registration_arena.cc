// SPDX-License-Identifier: BSD-3-Clause
// Chunks, free lists and each thread's spares. API context; functions whose names end in _locked run under the lock of
// their size class. The spares are the thread's own and take no lock.
#include "base/registration/registration_arena.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "base/core/kernel.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"

namespace pinrail::arena {
namespace {

static_assert(sizeof(pinrail_registration_t) == kTailAlignment, "a line of its own, and the tail on the next");

constexpr size_t kClasses = kMaxTail / kTailAlignment + 1;
constexpr size_t kSlab = size_t{2} * 1024 * 1024;  // of address space; pages are populated on use
constexpr uint32_t kMostSpares = 256;              // free registrations that a thread keeps
constexpr size_t kMany = 16 * kSlab;  // from this size on slabs ask for huge pages, because hits read all over them

// Registrations of one size of tail. Free ones are linked through `base`. Chunks before `chunk` are in use; of `chunk`
// itself the first `used` registrations are.
struct SizeClass {
  Mutex mutex{LockRank::leaf};
  pinrail_registration_t* free_list GUARDED_BY(mutex) = nullptr;
  char* chunk GUARDED_BY(mutex) = nullptr;
  char* slab_end GUARDED_BY(mutex) = nullptr;
  uint32_t used GUARDED_BY(mutex) = 0;
  size_t mapped GUARDED_BY(mutex) = 0;  // bytes
};

// Constant-initialised and never destroyed, so usable before main and in the last destructor.
SizeClass classes[2][kClasses];  // of small and of large areas
SizeClass untouched;

char* numbered_chunks[kMaxChunks];  // 2 MiB of zeros; pages are populated with the numbers used
uint32_t last_number = 0;           // atomic

// Returns a number for a new chunk; 0 if there are none left.
uint32_t number(char* chunk) {
  const uint32_t number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  if (number >= kMaxChunks) {
    __atomic_store_n(&last_number, kMaxChunks, __ATOMIC_RELAXED);
    return 0;
  }
  __atomic_store_n(&numbered_chunks[number], chunk, __ATOMIC_RELAXED);
  return number;
}

size_t class_of(size_t tail_size) { return (tail_size + kTailAlignment - 1) / kTailAlignment; }

// What a registration takes in a chunk: lines for itself and its tail, and for each of these a part of its area.
struct Needs {
  size_t lines;
  size_t area_per_line;
  bool has_small_areas;
  size_t object() const { return lines * kTailAlignment; }
  size_t bytes() const { return lines * (kTailAlignment + area_per_line); }
};

// The area is the memory that the pool's component uses. There are two sizes, and classes of registrations for each.
bool is_small(size_t area_size) { return area_size <= PINRAIL_AREA_SMALL; }

Needs needs_of(size_t area_size, size_t size_class) {
  constexpr size_t kAligned = sizeof(uint64_t);  // as each area is
  const size_t lines = 1 + size_class + kGuard / kTailAlignment;
  const size_t step = kAligned / std::gcd(lines, kAligned);
  const size_t bytes = is_small(area_size) ? PINRAIL_AREA_SMALL : PINRAIL_AREA_LARGE;
  const size_t steps = (bytes + lines * step - 1) / (lines * step);
  return {lines, steps * step, is_small(area_size)};
}

// Free registrations are linked by `base`. Relaxed atomic: a stale hint may be compared with it (registration/S3).
void link_free(pinrail_registration_t* reg, void* next) { __atomic_store_n(&reg->base, next, __ATOMIC_RELAXED); }

// Mapped directly, because it must outlive any allocator. Aligned so that huge pages are possible.
char* map_slab(bool huge) {
  void* const memory = map_aligned(kSlab, kSlab);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, kSlab, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // best effort
  return static_cast<char*>(memory);
}

// Registrations per chunk. A registration that is larger than a chunk gets as many chunks as it needs.
uint32_t chunk_count(const Needs& needs) {
  const size_t fit = (kChunk - sizeof(Chunk)) / needs.bytes();
  return fit == 0 ? 1 : static_cast<uint32_t>(fit);
}
size_t chunk_bytes(const Needs& needs) {
  const size_t bytes = sizeof(Chunk) + chunk_count(needs) * needs.bytes();
  return (bytes + kChunk - 1) / kChunk * kChunk;
}

// Begins with the chunk at size_class.chunk, which fits.
void open_chunk_locked(SizeClass& size_class, const Needs& needs) REQUIRES(size_class.mutex) {
  auto* head = reinterpret_cast<Chunk*>(size_class.chunk);  // not null: no chunk has 0 bytes
  // NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
  head->area_per_line = static_cast<uint32_t>(needs.area_per_line);
  head->areas_at = static_cast<uint32_t>(sizeof(Chunk) + chunk_count(needs) * needs.object() - needs.area_per_line);
  head->number = number(size_class.chunk);
  head->process = gate::process_number();
  head->has_small_areas = needs.has_small_areas;
  size_class.used = 0;
}

// Returns a registration; NULL if the class needs another slab.
pinrail_registration_t* pop_locked(SizeClass& size_class, const Needs& needs) REQUIRES(size_class.mutex) {
  pinrail_registration_t* reg = size_class.free_list;
  if (reg != nullptr) {
    size_class.free_list = static_cast<pinrail_registration_t*>(reg->base);
    return reg;
  }
  if (size_class.chunk == nullptr) return nullptr;
  if (size_class.used == chunk_count(needs)) {
    size_class.chunk += chunk_bytes(needs);
    if (static_cast<size_t>(size_class.slab_end - size_class.chunk) < chunk_bytes(needs)) {
      size_class.chunk = size_class.slab_end = nullptr;
      return nullptr;
    }
    open_chunk_locked(size_class, needs);
  }
  char* const objects = size_class.chunk + sizeof(Chunk);
  return reinterpret_cast<pinrail_registration_t*>(objects + size_class.used++ * needs.object());
}

// Takes the slab if the class still needs one. Returns the slab if another thread brought one meanwhile, else NULL.
char* add_slab_locked(SizeClass& size_class, const Needs& needs, char* slab) REQUIRES(size_class.mutex) {
  if (size_class.chunk != nullptr) return slab;
  size_class.mapped += kSlab;
  size_class.chunk = slab;
  size_class.slab_end = slab + kSlab;
  open_chunk_locked(size_class, needs);
  return nullptr;
}

// Slabs are mapped and unmapped without the lock: both are memory events, whose hooks take locks of lower rank.
pinrail_registration_t* pop(SizeClass& size_class, const Needs& needs) {
  char* slab = nullptr;
  pinrail_registration_t* reg = nullptr;
  for (;;) {
    bool is_huge = false;
    {
      Guard guard(size_class.mutex);
      if (slab != nullptr) slab = add_slab_locked(size_class, needs, slab);
      reg = pop_locked(size_class, needs);
      is_huge = size_class.mapped >= kMany;
    }
    if (slab != nullptr) munmap(slab, kSlab);
    if (reg != nullptr) return reg;
    slab = map_slab(is_huge);
    if (slab == nullptr) return nullptr;
  }
}

void push(pinrail_registration_t* reg) {
  const size_t index = class_of(reg->tail_size);
  SizeClass& size_class = classes[chunk_of(reg)->has_small_areas ? 0 : 1][index];
  Guard guard(size_class.mutex);
  link_free(reg, size_class.free_list);
  size_class.free_list = reg;
}

// Spares have small areas: of these there are many.
pinrail_registration_t* take_spare(size_t tail_size, size_t area_size) {
  pinrail_thread_t* thread = thread::current_thread;
  auto* reg = static_cast<pinrail_registration_t*>(thread->spares);
  if (reg == nullptr || !is_small(area_size) || reg->tail_size != tail_size) return nullptr;
  thread->spares = reg->base;
  --thread->spare_count;
  return reg;
}

// Keeps a free registration for the thread. False: it has enough, or those that it has are of another size of tail
// (those of a pool are of one size), or the registration's areas are large.
bool keep_spare(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  if (thread->spare_count >= kMostSpares || !chunk_of(reg)->has_small_areas) return false;
  auto* first = static_cast<pinrail_registration_t*>(thread->spares);
  if (first != nullptr && first->tail_size != reg->tail_size) return false;
  link_free(reg, first);
  thread->spares = reg;
  ++thread->spare_count;
  return true;
}

#ifdef PINRAIL_DEBUG
constexpr unsigned char kGuardByte = 0xa5;

// From the byte behind the tail to the end of the object.
unsigned char* guard_of(const pinrail_registration_t* reg, size_t* length_out) {
  *length_out = class_of(reg->tail_size) * kTailAlignment - reg->tail_size + kGuard;
  return reinterpret_cast<unsigned char*>(const_cast<pinrail_registration_t*>(reg + 1)) + reg->tail_size;
}

void set_guard(const pinrail_registration_t* reg) {
  size_t length = 0;
  unsigned char* const guard = guard_of(reg, &length);
  std::memset(guard, kGuardByte, length);
}
#else
void set_guard(const pinrail_registration_t* /*reg*/) {}
#endif

}  // namespace

#ifdef PINRAIL_DEBUG
void check_tail(const pinrail_registration_t* reg) {
  size_t length = 0;
  const unsigned char* const guard = guard_of(reg, &length);
  for (size_t i = 0; i < length; ++i) {
    if (guard[i] == kGuardByte) continue;
    std::fprintf(stderr,
                 "pinrail: byte %zu past the tail of %u bytes of the registration at %p was written (rule C6)\n", i + 1,
                 reg->tail_size, static_cast<const void*>(reg));
    std::abort();
  }
}
#endif

Status allocate(size_t tail_size, size_t area_size, pinrail_registration_t** reg_out) {
  if (tail_size > kMaxTail || area_size > PINRAIL_AREA_LARGE) return PINRAIL_ERR_BAD_PARAM;
  const size_t index = class_of(tail_size);
  pinrail_registration_t* reg = take_spare(tail_size, area_size);
  if (reg == nullptr) reg = pop(classes[is_small(area_size) ? 0 : 1][index], needs_of(area_size, index));
  if (reg == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  // The state word is kept, because a thread may read it through a stale pointer. Everything else is cleared.
  set_range(reg, {}, nullptr, 0);
  reg->rights = reg->lkey = reg->rkey = reg->flags = reg->link = 0;
  __atomic_store_n(&reg->used, 0, __ATOMIC_RELAXED);
  reg->tail_size = static_cast<uint32_t>(tail_size);
  // Of constant lengths, which take no call.
  if (is_small(area_size)) {
    std::memset(area_of(reg), 0, PINRAIL_AREA_SMALL);
  } else {
    std::memset(area_of(reg), 0, PINRAIL_AREA_LARGE);
  }
  if (index != 0) std::memset(static_cast<void*>(reg + 1), 0, index * kTailAlignment);
  set_guard(reg);
  *reg_out = reg;
  return success();
}

// The calling thread keeps some free registrations, so that giving back and registering in turn takes no lock here.
// In a forked child the memory of the parent's registrations is not used again.
void free(pinrail_registration_t* reg) {
  check_tail(reg);
  state::renew(reg);
  if (chunk_of(reg)->process != gate::process_number()) return;
  if (!keep_spare(thread::current_thread, reg)) push(reg);
}

void free_spares(pinrail_thread_t* thread) {
  while (auto* reg = static_cast<pinrail_registration_t*>(thread->spares)) {
    thread->spares = reg->base;
    push(reg);
  }
  thread->spare_count = 0;
}

char* const* chunks() { return numbered_chunks; }

// Most classes were never used; their pages are left untouched.
void fork_reinit() {
  for (auto& of_area : classes) {
    for (SizeClass& each : of_area) {
      const void* const bytes = &each;
      // NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): untouched pages are what is looked for
      if (std::memcmp(bytes, &untouched, sizeof(each)) != 0) new (&each) SizeClass;
    }
  }
}

void* tail_of(const pinrail_registration_t* reg) {
  return reg->tail_size == 0 ? nullptr : const_cast<pinrail_registration_t*>(reg + 1);
}

pinrail_registration_t* of_tail(const void* tail) {
  return static_cast<pinrail_registration_t*>(const_cast<void*>(tail)) - 1;
}

}  // namespace pinrail::arena
