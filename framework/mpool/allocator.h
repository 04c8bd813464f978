// SPDX-License-Identifier: BSD-3-Clause
// allocator.h - small allocations out of slabs that are registered, for one pool.
//
// A region is one mapping with one registration. It is cut into slabs of 2 MiB, and a slab into objects of one class
// (size_classes). What is larger than the largest class is the only object of the only slab of a region of its own.
// All notes on objects lie outside of them, because devices write into registered memory.
//
// Owns     regions: their mappings, and the references to their registrations.
// Threads  all functions may run together; ~Allocator() and close() exclude all others. API context; the caller holds
//          no lock, because a region is registered and deregistered without one.
//
// allocator/B3  A region leaves when all its slabs are free and at least keep_bytes stay free in others, or when
//     its room is needed (give_back_idle()).
// allocator/B4  What alloc() hands out is registered then: a region whose registration an event has ended is registered
//     anew.
#ifndef PINRAIL_FRAMEWORK_MPOOL_ALLOCATOR_H
#define PINRAIL_FRAMEWORK_MPOOL_ALLOCATOR_H

#include <pinrail/alloc.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <vector>

#include "base/core/status.h"
#include "base/sync/lock.h"

namespace pinrail::mpool {

// The sizes of small allocations: multiples of 64 bytes, four per doubling from 256 bytes on. The smallest class that
// holds a length wastes at most a fifth of it, or 63 bytes.
namespace size_classes {

constexpr size_t kUnit = 64;
constexpr size_t kLargest = size_t{1} << 20;

constexpr unsigned log2_of(size_t number) { return 63U - static_cast<unsigned>(__builtin_clzll(number)); }

// The class of a length from 1 to kLargest.
constexpr unsigned class_of(size_t length) {
  const size_t units = (length + kUnit - 1) / kUnit;
  if (units <= 4) return static_cast<unsigned>(units - 1);
  const unsigned power = log2_of(units - 1);  // units is in (2^power, 2^(power+1)]
  return 4 + (power - 2) * 4 + static_cast<unsigned>((units - 1 - (size_t{1} << power)) >> (power - 2));
}

constexpr size_t size_of(unsigned cls) {
  if (cls < 4) return (cls + 1) * kUnit;
  const unsigned power = 2 + (cls - 4) / 4;
  // NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): no class is above kClasses
  return ((size_t{1} << power) + (size_t{(cls - 4) % 4} + 1) * (size_t{1} << (power - 2))) * kUnit;
}

constexpr unsigned kClasses = class_of(kLargest) + 1;
static_assert(size_of(kClasses - 1) == kLargest, "the last class is the largest");
static_assert(size_of(class_of(257)) == 320 && size_of(class_of(320)) == 320 && size_of(class_of(321)) == 384, "");

// The class of an aligned length: its objects lie at multiples of their size in a slab of 2 MiB.
constexpr unsigned class_of(size_t length, size_t alignment) {
  unsigned cls = class_of(length);
  while (cls < kClasses && size_of(cls) % alignment != 0) ++cls;
  return cls;
}

}  // namespace size_classes

struct AllocatorSettings {
  size_t region_bytes = size_t{32} << 20;  // a multiple of 2 MiB
  size_t keep_bytes = size_t{64} << 20;
  bool one_each = false;  // one mapping and one registration per allocation,
  size_t unit = 4096;     // of multiples of so many bytes: what the registrar takes, or a page
};

// Registers the range with all rights and returns a reference, and drops it.
struct Pinner {
  void* pool;
  Status (*pin)(void* pool, void* addr, size_t length, pinrail_handle_t* handle_out);
  void (*unpin)(void* pool, pinrail_handle_t handle);
};

class Allocator {
 public:
  static constexpr size_t kSlab = size_t{2} << 20;
  static constexpr int kNodes = 64;

  Allocator(const Pinner& pinner, const AllocatorSettings& settings) : pinner_(pinner), settings_(settings) {}

  // The arguments are valid. May throw bad_alloc.
  Status alloc(size_t length, size_t alignment, int node, void** addr_out) EXCLUDES(mutex_);
  Status realloc(void* addr, size_t length, void** addr_out) EXCLUDES(mutex_);
  Status free(void* addr) EXCLUDES(mutex_);
  void stats(pinrail_alloc_stats_t* stats_out) EXCLUDES(mutex_);
  // Gives back the regions of which nothing is used. False: there are none.
  bool give_back_idle() EXCLUDES(mutex_);
  // Gives back all regions, if nothing is allocated; otherwise BUSY, or with `force` unpins them and leaves the memory.
  Status close(bool force) EXCLUDES(mutex_);

 private:
  enum class Backing : uint8_t { hugetlb, transparent, small };
  struct Region;

  // At least one of its objects is used, or it is free.
  struct Slab {
    uintptr_t base = 0;
    Region* region = nullptr;
    size_t object_bytes = 0;  // 0: the slab is free
    uint32_t capacity = 0;    // objects
    uint32_t used = 0;
    std::vector<uint64_t> free_bits;  // by object; 1: it is free
    size_t first_word = 0;            // no object is free in an earlier one
    std::list<Slab*>::iterator at;    // in one of its heap's lists; not that of a region that is alone
  };

  struct Region {
    uintptr_t base = 0;
    size_t length = 0;
    int node = PINRAIL_NODE_ANY;
    bool is_alone = false;  // of one slab, which is one object
    Backing backing = Backing::small;
    pinrail_handle_t handle{};
    std::vector<Slab> slabs;
    size_t used_slabs = 0;
  };

  // The slabs of one node. PINRAIL_NODE_ANY: the system chooses.
  struct Heap {
    std::list<Slab*> free, full, partial[size_classes::kClasses];
  };

  static void* pointer(uintptr_t address) {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
  }
  size_t room_for(size_t length) const;
  Status alloc_alone(size_t length, int node, void** addr_out);
  Slab* find_used_locked(const void* addr, uint32_t* index_out) REQUIRES(mutex_);
  static void prepare(Slab* slab, size_t object_bytes);
  uintptr_t take_locked(Heap* heap, unsigned cls, Region** region_out) REQUIRES(mutex_);
  std::unique_ptr<Region> put_locked(Slab* slab, uint32_t index) REQUIRES(mutex_);

  // allocator_regions.cc
  Status make_region(int node, size_t length, size_t slabs, std::unique_ptr<Region>* region_out);
  Status add_region_of_slabs(int node) EXCLUDES(mutex_);
  Status pin_region(Region* region, Backing backing);
  Status add_region(std::unique_ptr<Region> region) EXCLUDES(mutex_);
  Status renew(Region* region) EXCLUDES(mutex_);
  void end_region(std::unique_ptr<Region> region, bool unmaps);
  std::unique_ptr<Region> take_out_locked(const Region& region) REQUIRES(mutex_);

  const Pinner pinner_;
  const AllocatorSettings settings_;
  std::atomic<uint64_t> registrations_{0};
  Mutex mutex_{LockRank::leaf};  // and what the regions and their slabs hold
  std::map<uintptr_t, std::unique_ptr<Region>> regions_ GUARDED_BY(mutex_);  // by address
  std::map<int, Heap> heaps_ GUARDED_BY(mutex_);                             // by node
};

}  // namespace pinrail::mpool

#endif
