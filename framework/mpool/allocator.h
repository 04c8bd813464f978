// SPDX-License-Identifier: BSD-3-Clause
// allocator.h - small allocations out of slabs that are registered, for one pool.
//
// A region is one mapping with one registration; it is cut into slabs of 2 MiB, and a slab into objects of one class
// (size_classes). Each thread has magazines of free objects, so that most calls take no lock that other threads want.
// All notes on objects lie outside of them, because devices write into registered memory.
//
// Owns     regions: their mappings, and the references to their registrations.
// Threads  all functions may run together; ~Allocator() and close() exclude all others. API context; the caller holds
//          no lock, because a region is registered and deregistered without one.
//
// The note of a used object is set as long as it is used: a second free finds that it is not.
//
// allocator/B3  A region leaves when all its slabs are free and at least keep_bytes stay free in others, or when
//     its room is needed (give_back_idle()).
// allocator/B4  What alloc() hands out is registered then: a region whose registration an event has ended is registered
//     anew.
#ifndef PINRAIL_FRAMEWORK_MPOOL_ALLOCATOR_H
#define PINRAIL_FRAMEWORK_MPOOL_ALLOCATOR_H

#include <pinrail/alloc.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/core/span.h"
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

// What the place points to, made on first use; several threads may ask at once. May throw bad_alloc. acquire: pairs
// with the exchange.
template <typename T, typename... Arguments>
T* made_on_first_use(std::atomic<T*>* place, const Arguments&... arguments) {
  T* known = place->load(std::memory_order_acquire);
  if (known != nullptr) return known;
  auto made = std::make_unique<T>(arguments...);
  return place->compare_exchange_strong(known, made.get()) ? made.release() : known;
}

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
  ~Allocator();

  // The arguments are valid. thread: the caller's number among threads. May throw bad_alloc.
  Status alloc(uint32_t thread, size_t length, size_t alignment, int node, void** addr_out);
  Status realloc(uint32_t thread, void* addr, size_t length, void** addr_out);
  Status free(uint32_t thread, void* addr);
  void stats(pinrail_alloc_stats_t* stats_out);
  // Gives back the regions of which nothing is used; what lies in any thread's magazines is not used. False: there are
  // none.
  bool give_back_idle() EXCLUDES(mutex_);
  // Gives back all regions, if nothing is allocated; otherwise BUSY, or with `force` unpins them and leaves the memory.
  Status close(bool force);

 private:
  enum class Backing : uint8_t { hugetlb, transparent, small };
  static constexpr uint8_t kUsed = 1;
  static constexpr unsigned kFree = ~0U;             // a slab without a class
  static constexpr unsigned kAlone = ~0U - 1;        // the slab of an allocation with a region of its own
  static constexpr unsigned kPreparing = ~0U - 2;    // a slab that a thread takes
  static constexpr uint32_t kThreads = 1024;         // with magazines
  static constexpr uint32_t kMagazine = 32;          // objects at most
  static constexpr size_t kMagazineBytes = 1 << 20;  // of one class

  struct Region;
  struct Heap;

  struct Slab {
    uintptr_t base = 0;
    Region* region = nullptr;
    std::atomic<unsigned> cls{kFree};
    uint32_t reciprocal = 0;  // of the class's size in units of 64 bytes, times 2^32
    uint32_t capacity = 0;
    uint32_t free_count = 0;                        // Allocator::mutex_; entries of free_list
    std::vector<uint16_t> free_list;                // Allocator::mutex_
    std::unique_ptr<std::atomic<uint8_t>[]> notes;  // kUsed, by object
    Slab *previous = nullptr, *next = nullptr;      // Allocator::mutex_; in its heap's list of the class
  };

  // A used object: the index is that in the slab.
  struct Used {
    Slab* slab;
    unsigned cls;
    uint32_t index;
  };

  struct Region {
    uintptr_t base = 0;
    size_t length = 0;
    Heap* heap = nullptr;
    Backing backing = Backing::small;
    pinrail_handle_t handle{};                         // Allocator::mutex_, once the region is known
    std::atomic<const pinrail_registration_t*> reg{};  // the handle's
    std::unique_ptr<Slab[]> slabs;
    size_t slab_count = 0;
    size_t free_slabs = 0;  // Allocator::mutex_
  };

  struct Magazine {
    uint32_t count = 0;
    void* objects[kMagazine];
  };
  // Those of one thread. Another thread empties them when room is needed. Their mutex is not held with another lock.
  struct Magazines {
    Mutex mutex{LockRank::leaf};
    std::array<Magazine, size_classes::kClasses> of_class GUARDED_BY(mutex);
  };

  // Regions that the objects of a magazine have left.
  struct Emptied {
    Region* regions[kMagazine];
    uint32_t count = 0;
  };

  // Memory of one node.
  struct Heap {
    explicit Heap(int of) : node(of) {}
    const int node;  // PINRAIL_NODE_ANY: the system chooses
    std::array<std::atomic<Magazines*>, kThreads> magazines{};
    Slab* partial[size_classes::kClasses] = {};  // Allocator::mutex_; slabs of the class with free objects
    std::vector<Region*> regions;                // Allocator::mutex_
    size_t free_bytes = 0;                       // Allocator::mutex_; of free slabs
  };

  // From the address of a slab to its notes; readers take no lock. Parts of the table stay until the end.
  struct Leaf {
    std::array<std::atomic<Slab*>, 512> slabs{};
  };
  struct Middle {
    std::array<std::atomic<Leaf*>, 512> leaves{};
  };

  static uint32_t most_in_magazine(unsigned cls);
  Magazines* magazines_of(Heap* heap, uint32_t thread);
  Slab* find(const void* addr) const;
  std::atomic<Slab*>* place_of(uintptr_t slab);
  Status enter(Region* region);
  void leave(Region* region);

  static bool take(Magazines* magazines, unsigned cls, void** object_out);
  void keep(Magazines* magazines, unsigned cls, void* const* objects, uint32_t count);
  bool empty_magazines();
  bool empty_one(Magazines* magazines);
  Status take_from_slabs(Heap* heap, unsigned cls, Magazines* magazines, void** object_out);
  uint32_t take_locked(Heap* heap, unsigned cls, uint32_t wanted, void** objects_out) REQUIRES(mutex_);
  Status add_slab(Heap* heap, unsigned cls);
  void give_slab_back_locked(Slab* slab) REQUIRES(mutex_);
  Slab* take_free_slab_locked(Heap* heap) REQUIRES(mutex_);
  static void prepare(Slab* slab, unsigned cls);
  bool put(void* const* objects, uint32_t count);
  void take_out_locked(Region* region) REQUIRES(mutex_);
  void put_locked(Slab* slab, void* object, Emptied* emptied) REQUIRES(mutex_);
  void link_locked(Slab* slab) REQUIRES(mutex_);
  void unlink_locked(Slab* slab) REQUIRES(mutex_);

  Status make_region(Heap* heap, size_t length, size_t slabs, std::unique_ptr<Region>* region_out);
  Status make_region_of_slabs(Heap* heap, std::unique_ptr<Region>* region_out);
  Status pin_region(Region* region, Backing backing);
  Status add_region(std::unique_ptr<Region> region, size_t free_slabs);
  static bool is_live(const Region* region);
  Status renew(Region* region);
  void end_region(Region* region, bool unmaps);
  Region* take_idle_locked() REQUIRES(mutex_);
  Status alloc_alone(Heap* heap, size_t length, size_t alignment, void** addr_out);
  Status free_alone(Slab* slab);
  bool find_used(const void* addr, Used* used_out) const;
  static uint32_t used_in(const Slab& slab);
  static size_t bytes_of_object(const Slab& slab, unsigned cls);
  size_t room_for(size_t length) const;
  static bool is_used(const Region& region);
  static uint32_t index_of(const Slab& slab, const void* object);

  const Pinner pinner_;
  const AllocatorSettings settings_;
  Mutex mutex_{LockRank::leaf};
  std::array<std::atomic<Middle*>, 512> middles_{};
  std::array<std::atomic<Heap*>, kNodes + 1> heaps_{};
  std::atomic<uint64_t> registrations_{0};
};

}  // namespace pinrail::mpool

#endif
