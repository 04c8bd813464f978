// SPDX-License-Identifier: BSD-3-Clause
// The calls: alloc, free, realloc, statistics. API context. No lock is held where a registration is made or ended.
#include "framework/mpool/allocator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace pinrail::mpool {

uint32_t Allocator::most_in_magazine(unsigned cls) {
  const size_t most = kMagazineBytes / size_classes::size_of(cls);
  return static_cast<uint32_t>(std::clamp(most, size_t{2}, size_t{kMagazine}));
}

// The magazines of the thread that has this number, which calls this; they are made on first use, and a later thread
// that gets the number takes them over. NULL: it has none, because the number is too high or there is no memory; then
// it works without. release: pairs with empty_magazines().
Allocator::Magazines* Allocator::magazines_of(Heap* heap, uint32_t thread) {
  if (thread >= kThreads) return nullptr;
  // relaxed: only the thread of this number writes it.
  Magazines* magazines = heap->magazines[thread].load(std::memory_order_relaxed);
  if (magazines != nullptr) return magazines;
  magazines = new (std::nothrow) Magazines{};
  heap->magazines[thread].store(magazines, std::memory_order_release);
  return magazines;
}

// The slab of an address; NULL: it is in none. acquire: pairs with the stores in place_of() and enter().
Allocator::Slab* Allocator::find(const void* addr) const {
  const uintptr_t number = reinterpret_cast<uintptr_t>(addr) / kSlab;
  if (number >> 27 != 0) return nullptr;
  const Middle* const middle = middles_[number >> 18].load(std::memory_order_acquire);
  if (middle == nullptr) return nullptr;
  const Leaf* const leaf = middle->leaves[number >> 9 & 511].load(std::memory_order_acquire);
  return leaf == nullptr ? nullptr : leaf->slabs[number & 511].load(std::memory_order_acquire);
}

// Without a division: exact, because offsets have 15 bits and sizes at most 14.
uint32_t Allocator::index_of(const Slab& slab, const void* object) {
  const uint64_t units = (reinterpret_cast<uintptr_t>(object) - slab.base) / size_classes::kUnit;
  const uint64_t reciprocal = slab.reciprocal == 0 ? uint64_t{1} << 32 : slab.reciprocal;
  return static_cast<uint32_t>(units * reciprocal >> 32);
}

Status Allocator::alloc_alone(Heap* heap, size_t length, size_t alignment, void** addr_out) {
  if (alignment > kSlab) return PINRAIL_ERR_NOT_SUPPORTED;
  const size_t unit = length > size_classes::kLargest ? kSlab : settings_.unit;
  if (length > SIZE_MAX / 2) return PINRAIL_ERR_OUT_OF_RESOURCE;
  auto notes = std::make_unique<std::atomic<uint8_t>[]>(1);
  std::unique_ptr<Region> region;
  Status status = make_region(heap, (length + unit - 1) / unit * unit, 1, &region);
  if (!status.ok()) return status;
  Slab& slab = region->slabs[0];
  slab.cls.store(kAlone);
  slab.capacity = 1;
  slab.notes = std::move(notes);
  slab.notes[0].store(kUsed);
  void* const addr = pointer(region->base);
  status = add_region(std::move(region), 0);
  if (status.ok()) *addr_out = addr;
  return status;
}

Status Allocator::alloc(uint32_t thread, size_t length, size_t alignment, int node, void** addr_out) {
  // Regions begin and end at multiples of a slab: the pool would extend their registrations to other memory.
  if (settings_.unit > kSlab) return PINRAIL_ERR_NOT_SUPPORTED;
  Heap* const heap = made_on_first_use(&heaps_[static_cast<size_t>(node) + 1], node);
  if (settings_.one_each || length > size_classes::kLargest || alignment > size_classes::kLargest) {
    return alloc_alone(heap, length, alignment, addr_out);
  }
  const unsigned cls =
      alignment <= size_classes::kUnit ? size_classes::class_of(length) : size_classes::class_of(length, alignment);
  Magazines* const magazines = magazines_of(heap, thread);
  void* object = nullptr;
  if (magazines == nullptr || !take(magazines, cls, &object)) {
    const Status status = take_from_slabs(heap, cls, magazines, &object);
    if (!status.ok()) return status;
  }
  const Slab* const slab = find(object);
  if (!is_live(slab->region)) {
    const Status status = renew(slab->region);
    if (!status.ok()) {
      put(&object, 1);
      return status;
    }
  }
  // relaxed: what passes the object to another thread orders this, too.
  slab->notes[index_of(*slab, object)].store(kUsed, std::memory_order_relaxed);
  *addr_out = object;
  return success();
}

// Finds the used object that begins at the address. False: there is none.
// relaxed: a slab that holds a used object does not change its class; two frees of one object that run at once are not
// told apart; each of them alone is.
bool Allocator::find_used(const void* addr, Used* used_out) const {
  Slab* const slab = find(addr);
  const unsigned cls = slab == nullptr ? kFree : slab->cls.load(std::memory_order_relaxed);
  if (cls == kFree || cls == kPreparing) return false;
  const bool is_alone = cls == kAlone;
  const uint32_t index = is_alone ? 0 : index_of(*slab, addr);
  const uintptr_t begin = slab->base + (is_alone ? 0 : index * size_classes::size_of(cls));
  if (index >= slab->capacity || begin != reinterpret_cast<uintptr_t>(addr)) return false;
  *used_out = {slab, cls, index};
  return slab->notes[index].load(std::memory_order_relaxed) == kUsed;
}

Status Allocator::free_alone(Slab* slab) {
  if (slab->notes[0].exchange(0) != kUsed) return PINRAIL_ERR_BAD_PARAM;
  Region* const region = slab->region;
  {
    Guard guard(mutex_);
    take_out_locked(region);
  }
  end_region(region, true);
  return success();
}

// Makes the thread's magazines, if it has none yet, and fails for no lack of memory.
Status Allocator::free(uint32_t thread, void* addr) {
  Used used;
  if (!find_used(addr, &used)) return PINRAIL_ERR_BAD_PARAM;
  if (used.cls == kAlone) return free_alone(used.slab);
  used.slab->notes[used.index].store(0, std::memory_order_relaxed);
  Magazines* const magazines = magazines_of(used.slab->region->heap, thread);
  if (magazines == nullptr) {
    put(&addr, 1);
  } else {
    keep(magazines, used.cls, &addr, 1);
  }
  return success();
}

size_t Allocator::bytes_of_object(const Slab& slab, unsigned cls) {
  return cls == kAlone ? slab.region->length : size_classes::size_of(cls);
}

// The bytes of the place that an allocation of the length gets.
size_t Allocator::room_for(size_t length) const {
  if (length > size_classes::kLargest) return length;
  return settings_.one_each ? (length + settings_.unit - 1) / settings_.unit * settings_.unit
                            : size_classes::size_of(size_classes::class_of(length));
}

Status Allocator::realloc(uint32_t thread, void* addr, size_t length, void** addr_out) {
  if (addr == nullptr) return alloc(thread, length, 0, PINRAIL_NODE_ANY, addr_out);
  Used used;
  if (!find_used(addr, &used)) return PINRAIL_ERR_BAD_PARAM;
  const size_t room = bytes_of_object(*used.slab, used.cls);
  if (length <= room && (length > room / 2 || room_for(length) >= room)) {
    *addr_out = addr;
    return success();
  }
  void* moved = nullptr;
  const Status status = alloc(thread, length, 0, used.slab->region->heap->node, &moved);
  if (!status.ok()) return status;
  std::memcpy(moved, addr, std::min(room, length));
  *addr_out = moved;  // before the old place is given back: a registrar's function may end this thread there
  Status(free(thread, addr)).ignore();
  return success();
}

// How many objects of the slab are used.
uint32_t Allocator::used_in(const Slab& slab) {
  const unsigned cls = slab.cls.load();
  if (cls == kFree || cls == kPreparing) return 0;
  uint32_t used = 0;
  for (uint32_t at = 0; at < slab.capacity; ++at) used += slab.notes[at].load(std::memory_order_relaxed);
  return used;
}

void Allocator::stats(pinrail_alloc_stats_t* stats_out) {
  auto totals = sized<pinrail_alloc_stats_t>();
  Guard guard(mutex_);
  for (const std::atomic<Heap*>& place : heaps_) {
    const Heap* const heap = place.load();
    if (heap == nullptr) continue;
    for (const Region* region : heap->regions) {
      totals.mapped_bytes += region->length;
      if (region->backing == Backing::hugetlb) totals.hugetlb_bytes += region->length;
      if (region->backing == Backing::transparent) totals.transparent_bytes += region->length;
      for (size_t i = 0; i < region->slab_count; ++i) {
        const Slab& slab = region->slabs[i];
        const uint64_t used = used_in(slab);
        totals.allocations += used;
        if (used != 0) totals.allocated_bytes += used * bytes_of_object(slab, slab.cls.load());
      }
    }
  }
  totals.registrations = registrations_.load();
  *stats_out = totals;
}

// Whether a part of the region is allocated.
bool Allocator::is_used(const Region& region) {
  return std::any_of(region.slabs.get(), region.slabs.get() + region.slab_count,
                     [](const Slab& s) { return used_in(s) != 0; });
}

Status Allocator::close(bool force) {
  pinrail_alloc_stats_t totals;
  stats(&totals);
  if (totals.allocations != 0 && !force) return PINRAIL_ERR_BUSY;
  for (std::atomic<Heap*>& place : heaps_) {
    Heap* const heap = place.load();
    if (heap == nullptr) continue;
    for (std::atomic<Magazines*>& magazines : heap->magazines) delete magazines.exchange(nullptr);
    std::vector<Region*> regions;
    {
      Guard guard(mutex_);
      regions.swap(heap->regions);
    }
    for (Region* region : regions) end_region(region, !is_used(*region));
    place.store(nullptr);
    delete heap;
  }
  return success();
}

Allocator::~Allocator() {
  Status(close(true)).ignore();
  for (std::atomic<Middle*>& middle : middles_) {
    Middle* const at = middle.load();
    if (at == nullptr) continue;
    for (std::atomic<Leaf*>& leaf : at->leaves) delete leaf.load();
    delete at;
  }
}

}  // namespace pinrail::mpool
