// SPDX-License-Identifier: BSD-3-Clause
// Regions: mapped, registered, found by address, given back. API context. Functions whose names end in _locked run
// under mutex_; no registration is made or ended under it.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/core/status.h"
#include "base/registration/registration.h"
#include "framework/mpool/allocator.h"

namespace pinrail::mpool {
namespace {

constexpr int kPreferred = 1;  // MPOL_PREFERRED, for builds without numaif.h

// Maps at a multiple of 2 MiB. 0: no memory.
uintptr_t map_aligned(size_t length) {
  const size_t more = length + Allocator::kSlab;
  void* const at = mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto first = reinterpret_cast<uintptr_t>(at);
  const uintptr_t base = (first + Allocator::kSlab - 1) & ~(Allocator::kSlab - 1);
  if (base != first) munmap(at, base - first);
  if (base + length != first + more)
    munmap(static_cast<char*>(at) + (base - first) + length, first + more - base - length);
  return base;
}

uintptr_t map_hugetlb(size_t length) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (21 << 26 /* of 2 MiB */);
  void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  return at == MAP_FAILED ? 0 : reinterpret_cast<uintptr_t>(at);
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
  std::atomic<Middle*>& middle = middles_[number >> 18];
  if (middle.load() == nullptr) {
    auto made = std::make_unique<Middle>();
    Middle* none = nullptr;
    if (middle.compare_exchange_strong(none, made.get())) static_cast<void>(made.release());
  }
  std::atomic<Leaf*>& leaf = middle.load()->leaves[number >> 9 & 511];
  if (leaf.load() == nullptr) {
    auto made = std::make_unique<Leaf>();
    Leaf* none = nullptr;
    if (leaf.compare_exchange_strong(none, made.get())) static_cast<void>(made.release());
  }
  return &leaf.load()->slabs[number & 511];
}

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
  region->base = backing == Backing::hugetlb ? map_hugetlb(region->length) : map_aligned(region->length);
  if (region->base == 0) return PINRAIL_ERR_OUT_OF_RESOURCE;
  void* const at = pointer(region->base);
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

void Allocator::end_all(Emptied* emptied) {
  while (emptied->count != 0) end_region(emptied->regions[--emptied->count], true);
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

}  // namespace pinrail::mpool
