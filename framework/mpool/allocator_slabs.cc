// SPDX-License-Identifier: BSD-3-Clause
// Slabs: the free objects of each size, and the magazines of threads. API context. Functions whose names end in _locked
// run under mutex_; no registration is made or ended under it. A thread's magazines have a lock of
// their own; neither is taken under the other.
#include <algorithm>
#include <utility>

#include "base/core/status.h"
#include "framework/mpool/allocator.h"

namespace pinrail::mpool {

// Makes the slab's objects, all free.
void Allocator::prepare(Slab* slab, unsigned cls) {
  const auto units = static_cast<uint32_t>(size_classes::size_of(cls) / size_classes::kUnit);
  slab->capacity = static_cast<uint32_t>(kSlab / size_classes::size_of(cls));
  slab->reciprocal = static_cast<uint32_t>(((uint64_t{1} << 32) + units - 1) / units);  // 0 stands for 2^32
  slab->free_list.resize(slab->capacity);
  for (uint32_t i = 0; i < slab->capacity; ++i) slab->free_list[i] = static_cast<uint16_t>(slab->capacity - 1 - i);
  slab->free_count = slab->capacity;
  slab->notes = std::make_unique<std::atomic<uint8_t>[]>(slab->capacity);
  slab->cls.store(cls);
}

// Puts a slab that has a free object at the head of its heap's list for its class.
void Allocator::link_locked(Slab* slab) {
  Slab*& first = slab->region->heap->partial[slab->cls.load()];
  slab->previous = nullptr;
  slab->next = first;
  if (first != nullptr) first->previous = slab;
  first = slab;
}

void Allocator::unlink_locked(Slab* slab) {
  if (slab->next != nullptr) slab->next->previous = slab->previous;
  (slab->previous != nullptr ? slab->previous->next : slab->region->heap->partial[slab->cls.load()]) = slab->next;
}

Allocator::Slab* Allocator::take_free_slab_locked(Heap* heap) {
  for (Region* region : heap->regions) {
    if (region->free_slabs == 0) continue;
    for (size_t i = 0; i < region->slab_count; ++i) {
      Slab& slab = region->slabs[i];
      if (slab.cls.load() != kFree) continue;
      slab.cls.store(kPreparing);  // no other thread takes it
      --region->free_slabs;
      heap->free_bytes -= kSlab;
      return &slab;
    }
  }
  return nullptr;
}

// Gives the class one more slab, of a new region if no slab is free.
Status Allocator::add_slab(Heap* heap, unsigned cls) {
  for (;;) {
    Slab* slab = nullptr;
    {
      Guard guard(mutex_);
      slab = take_free_slab_locked(heap);
    }
    if (slab != nullptr) {
      const Status prepared = guarded([&] { prepare(slab, cls); });
      if (!prepared.ok()) {
        give_slab_back(slab);
        return prepared;
      }
      Guard guard(mutex_);
      link_locked(slab);
      return success();
    }
    std::unique_ptr<Region> region;
    Status status = make_region_of_slabs(heap, &region);
    if (!status.ok()) return status;
    const size_t slabs = region->slab_count;
    status = add_region(std::move(region), slabs);
    if (!status.ok()) return status;
  }
}

// There was no memory to prepare the slab.
void Allocator::give_slab_back(Slab* slab) {
  Guard guard(mutex_);
  slab->cls.store(kFree);
  ++slab->region->free_slabs;
  slab->region->heap->free_bytes += kSlab;
}

uint32_t Allocator::take_locked(Heap* heap, unsigned cls, uint32_t wanted, void** objects_out) {
  uint32_t count = 0;
  while (count < wanted && heap->partial[cls] != nullptr) {
    Slab* const slab = heap->partial[cls];
    const size_t size = size_classes::size_of(cls);
    while (count < wanted && slab->free_count != 0) {
      objects_out[count++] = pointer(slab->base + slab->free_list[--slab->free_count] * size);
    }
    if (slab->free_count == 0) unlink_locked(slab);
  }
  return count;
}

// Takes an object of the thread's magazine. False: it has none.
bool Allocator::take(Magazines* magazines, unsigned cls, void** object_out) {
  Guard guard(magazines->mutex);
  Magazine& magazine = magazines->of_class[cls];
  if (magazine.count == 0) return false;
  *object_out = magazine.objects[--magazine.count];
  return true;
}

// Adds objects: at most half of a full magazine, and one more. If there is no room, half of what is there goes back
// to the slabs.
void Allocator::keep(Magazines* magazines, unsigned cls, void* const* objects, uint32_t count) {
  void* rejected[kMagazine];
  uint32_t rejected_count = 0;
  {
    Guard guard(magazines->mutex);
    Magazine& magazine = magazines->of_class[cls];
    const uint32_t most = most_in_magazine(cls), rest = std::min(magazine.count, most / 2);
    if (magazine.count + count > most) {
      rejected_count = magazine.count - rest;
      std::copy(magazine.objects + rest, magazine.objects + magazine.count, rejected);
      magazine.count = rest;
    }
    std::copy(objects, objects + count, magazine.objects + magazine.count);
    magazine.count += count;
  }
  if (rejected_count != 0) put(rejected, rejected_count);
}

// Takes an object, and half of what a magazine holds for later calls. magazines: NULL: the thread has none.
Status Allocator::take_from_slabs(Heap* heap, unsigned cls, Magazines* magazines, void** object_out) {
  void* objects[kMagazine];
  const uint32_t wanted = magazines == nullptr ? 1 : (most_in_magazine(cls) + 1) / 2;
  for (;;) {
    uint32_t count = 0;
    {
      Guard guard(mutex_);
      count = take_locked(heap, cls, wanted, objects);
    }
    if (count != 0) {
      *object_out = objects[--count];
      if (count != 0) keep(magazines, cls, objects, count);
      return success();
    }
    const Status status = add_slab(heap, cls);
    if (!status.ok()) return status;
  }
}

// All its slabs are free.
void Allocator::take_out_locked(Region* region) {
  Heap* const heap = region->heap;
  heap->regions.erase(std::find(heap->regions.begin(), heap->regions.end(), region));
  heap->free_bytes -= region->length;
}

// Puts an object back. A slab that becomes free goes back to its region, and that to the system (allocator/B3).
void Allocator::put_locked(Slab* slab, void* object, Emptied* emptied) {
  if (slab->free_count == 0) link_locked(slab);
  slab->free_list[slab->free_count++] = static_cast<uint16_t>(index_of(*slab, object));
  if (slab->free_count != slab->capacity) return;
  unlink_locked(slab);
  slab->cls.store(kFree);
  Region* const region = slab->region;
  Heap* const heap = region->heap;
  ++region->free_slabs;
  heap->free_bytes += kSlab;
  if (region->free_slabs != region->slab_count || heap->free_bytes - region->length < settings_.keep_bytes) return;
  take_out_locked(region);
  emptied->regions[emptied->count++] = region;
}

// count: at most kMagazine. Allocates nothing. True: a region was given back.
bool Allocator::put(void* const* objects, uint32_t count) {
  Emptied emptied;
  {
    Guard guard(mutex_);
    for (uint32_t i = 0; i < count; ++i) put_locked(find(objects[i]), objects[i], &emptied);
  }
  const bool is_any = emptied.count != 0;
  end_all(&emptied);
  return is_any;
}

// Objects that lie in a magazine count as used in their slabs. So those of all threads are taken, which may be idle or
// have ended. True: a region was given back. acquire: pairs with the store in magazines_of().
bool Allocator::empty_magazines() {
  bool is_any = false;
  for (const std::atomic<Heap*>& place : heaps_) {
    Heap* const heap = place.load();
    if (heap == nullptr) continue;
    for (const std::atomic<Magazines*>& of_thread : heap->magazines) {
      Magazines* const magazines = of_thread.load(std::memory_order_acquire);
      if (magazines != nullptr && empty_one(magazines)) is_any = true;
    }
  }
  return is_any;
}

// Empties the magazines of one thread. True: a region was given back.
bool Allocator::empty_one(Magazines* magazines) {
  bool is_any = false;
  for (unsigned cls = 0; cls < size_classes::kClasses; ++cls) {
    void* objects[kMagazine];
    uint32_t count = 0;
    {
      Guard guard(magazines->mutex);
      Magazine& magazine = magazines->of_class[cls];
      count = std::exchange(magazine.count, 0);
      std::copy(magazine.objects, magazine.objects + count, objects);
    }
    if (count != 0 && put(objects, count)) is_any = true;
  }
  return is_any;
}

}  // namespace pinrail::mpool
