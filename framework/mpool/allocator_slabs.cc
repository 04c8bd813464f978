// SPDX-License-Identifier: BSD-3-Clause
// Regions: mapped, registered, found by address, given back. Slabs: the free objects of each size, and the magazines of
// threads. API context. Functions whose names end in _locked run under mutex_; no registration is made or ended under
// it. A thread's magazines have a lock of their own; neither is taken under the other.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/core/kernel.h"
#include "base/registration/registration.h"
#include "framework/mpool/allocator.h"

namespace pinrail::mpool {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED, for builds without numaif.h

void* map_hugetlb(size_t length) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << 26 /* of 2 MiB */);
  return mmap(nullptr, length, PROT_READ | PROT_WRITE, kFlags, -1, 0);
}

// Prefers the node for pages that are not there yet. If the system refuses, it chooses.
void bind(uintptr_t base, size_t length, int node) {
  if (node < 0) return;
  const unsigned long mask = 1UL << node;
  syscall(SYS_mbind, base, length, kPreferred, &mask, sizeof(mask) * 8, 0);
}

}  // namespace

// The place in the table of the slab at that address, which is below 2^48. May throw bad_alloc.
std::atomic<Allocator::Slab*>* Allocator::place_of(uintptr_t slab) {
  const uintptr_t number = slab / kSlab;
  Middle* const middle = made_on_first_use(&middles_[number >> 18]);
  return &made_on_first_use(&middle->leaves[number >> 9 & 511])->slabs[number & 511];
}

// From now on find() finds the slabs. What bad_alloc leaves half done leave() ends.
Status Allocator::enter(Region* region) {
  if (region->base + region->length > uintptr_t{1} << 48) return PINRAIL_ERR_NOT_SUPPORTED;
  for (size_t i = 0; i < region->slab_count; ++i) place_of(region->slabs[i].base)->store(&region->slabs[i]);
  return success();
}

// A region that could not enter wholly leaves as well: what find() finds has a place, so nothing is allocated.
void Allocator::leave(Region* region) {
  for (size_t i = 0; i < region->slab_count; ++i) {
    const uintptr_t base = region->slabs[i].base;
    if (find(pointer(base)) != nullptr) place_of(base)->store(nullptr);
  }
}

// A limit or the device may not permit regions of the usual length: then they are smaller.
Status Allocator::make_region_of_slabs(Heap* heap, std::unique_ptr<Region>* region_out) {
  Status status = PINRAIL_ERR_OUT_OF_RESOURCE;
  for (size_t length = settings_.region_bytes; length != 0; length = length / 2 / kSlab * kSlab) {
    status = make_region(heap, length, length / kSlab, region_out);
    if (status.ok()) break;
  }
  return status;
}

// Maps, and registers; on the first kind of page with which the pool keeps it. slabs: how many of it are known. May
// throw bad_alloc; then nothing is mapped.
Status Allocator::make_region(Heap* heap, size_t length, size_t slabs, std::unique_ptr<Region>* region_out) {
  auto region = std::make_unique<Region>();
  region->heap = heap;
  region->length = length;
  region->slab_count = slabs;
  region->slabs = std::make_unique<Slab[]>(region->slab_count);
  Status status = PINRAIL_ERR_OUT_OF_RESOURCE;
  for (const Backing backing : {Backing::hugetlb, Backing::transparent, Backing::small}) {
    if (length % kSlab != 0 && backing != Backing::small) continue;
    status = pin_region(region.get(), backing);
    if (status.ok()) break;
  }
  if (!status.ok()) return status;
  for (size_t i = 0; i < region->slab_count; ++i) {
    region->slabs[i].base = region->base + i * kSlab;
    region->slabs[i].region = region.get();
  }
  *region_out = std::move(region);
  return success();
}

// Maps and registers it. On an error nothing is mapped.
Status Allocator::pin_region(Region* region, Backing backing) {
  void* const at =
      backing == Backing::hugetlb ? map_hugetlb(region->length) : map_aligned(region->length, kSlab, MAP_NORESERVE);
  if (at == MAP_FAILED) return PINRAIL_ERR_OUT_OF_RESOURCE;
  region->base = reinterpret_cast<uintptr_t>(at);
  const bool is_huge = backing == Backing::hugetlb ||
                       (backing == Backing::transparent && madvise(at, region->length, MADV_HUGEPAGE) == 0);
  bind(region->base, region->length, region->heap->node);
  const Status status = is_huge || backing == Backing::small
                            ? pinner_.pin(pinner_.pool, at, region->length, &region->handle)
                            : Status(PINRAIL_ERR_NOT_SUPPORTED);
  if (!status.ok()) {
    munmap(at, region->length);
    return status;
  }
  region->reg.store(region->handle.reg);
  region->backing = backing;
  registrations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  return status;
}

// Makes the region known, with so many of its slabs free. If that fails, the region is ended.
Status Allocator::add_region(std::unique_ptr<Region> region, size_t free_slabs) {
  Region* const added = region.release();
  const Status status = guarded([&]() -> Status {
    const Status entered = enter(added);
    if (!entered.ok()) return entered;
    Guard guard(mutex_);
    added->heap->regions.push_back(added);
    added->free_slabs = free_slabs;
    added->heap->free_bytes += free_slabs * kSlab;
    return entered;
  });
  if (!status.ok()) end_region(added, true);
  return status;
}

// Whether no event has ended the region's registration. relaxed: its memory is type-stable, and a region that is
// renewed meanwhile is renewed once more for nothing.
bool Allocator::is_live(const Region* region) { return is_indexed(region->reg.load(std::memory_order_relaxed)); }

// An event has ended the region's registration: registers it anew (allocator/B4). The caller has taken an object of it,
// so that the region does not end meanwhile. On an error nothing is changed.
Status Allocator::renew(Region* region) {
  pinrail_handle_t handle;
  const Status status = pinner_.pin(pinner_.pool, pointer(region->base), region->length, &handle);
  if (!status.ok()) return status;
  registrations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  {
    Guard guard(mutex_);
    std::swap(region->handle, handle);
    region->reg.store(region->handle.reg);
  }
  pinner_.unpin(pinner_.pool, handle);  // the former one, or another reference to the same one
  return status;
}

void Allocator::end_region(Region* region, bool unmaps) {
  leave(region);
  pinner_.unpin(pinner_.pool, region->handle);
  if (unmaps) munmap(pointer(region->base), region->length);
  delete region;
}

// A region of which nothing is used; nullptr: there is none. It leaves its heap.
Allocator::Region* Allocator::take_idle_locked() {
  for (const std::atomic<Heap*>& place : heaps_) {
    const Heap* const heap = place.load();
    if (heap == nullptr) continue;
    for (Region* region : heap->regions) {
      if (region->free_slabs != region->slab_count) continue;
      take_out_locked(region);
      return region;
    }
  }
  return nullptr;
}

bool Allocator::give_back_idle() {
  for (bool is_any = empty_magazines();; is_any = true) {
    Region* idle = nullptr;
    {
      Guard guard(mutex_);
      idle = take_idle_locked();
    }
    if (idle == nullptr) return is_any;
    end_region(idle, true);
  }
}

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

// The slab is the caller's alone until it is linked or given back. NULL: none is free.
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
      Guard guard(mutex_);
      if (prepared.ok()) {
        link_locked(slab);
      } else {
        give_slab_back_locked(slab);
      }
      return prepared;
    }
    std::unique_ptr<Region> region;
    Status status = make_region_of_slabs(heap, &region);
    if (!status.ok()) return status;
    const size_t slabs = region->slab_count;
    status = add_region(std::move(region), slabs);
    if (!status.ok()) return status;
  }
}

// It is not linked.
void Allocator::give_slab_back_locked(Slab* slab) {
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

// All its slabs are free, or it was of one allocation, which was freed.
void Allocator::take_out_locked(Region* region) {
  Heap* const heap = region->heap;
  heap->regions.erase(std::find(heap->regions.begin(), heap->regions.end(), region));
  heap->free_bytes -= region->free_slabs * kSlab;
}

// Puts an object back. A slab that becomes free goes back to its region, and that to the system (allocator/B3).
void Allocator::put_locked(Slab* slab, void* object, Emptied* emptied) {
  if (slab->free_count == 0) link_locked(slab);
  slab->free_list[slab->free_count++] = static_cast<uint16_t>(index_of(*slab, object));
  if (slab->free_count != slab->capacity) return;
  unlink_locked(slab);
  give_slab_back_locked(slab);
  Region* const region = slab->region;
  const Heap* const heap = region->heap;
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
  while (emptied.count != 0) end_region(emptied.regions[--emptied.count], true);
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
