// SPDX-License-Identifier: BSD-3-Clause
// Regions: mapped, registered, found by address, given back. API context. Functions whose names end in _locked run
// under mutex_; no registration is made or ended under it.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <list>
#include <memory>
#include <utility>

#include "base/core/status.h"
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

// A limit or the device may not permit regions of the usual length: then they are smaller.
Status Allocator::add_region_of_slabs(int node) {
  std::unique_ptr<Region> region;
  Status status = PINRAIL_ERR_OUT_OF_RESOURCE;
  for (size_t length = settings_.region_bytes; length != 0 && !status.ok(); length = length / 2 / kSlab * kSlab) {
    status = make_region(node, length, length / kSlab, &region);
  }
  return status.ok() ? add_region(std::move(region)) : status;
}

// Maps, and registers; on the first kind of page with which the pool keeps it. May throw bad_alloc; then nothing is
// mapped.
Status Allocator::make_region(int node, size_t length, size_t slabs, std::unique_ptr<Region>* region_out) {
  auto region = std::make_unique<Region>();
  region->node = node;
  region->length = length;
  region->slabs.resize(slabs);
  Status status = PINRAIL_ERR_OUT_OF_RESOURCE;
  for (const Backing backing : {Backing::hugetlb, Backing::transparent, Backing::small}) {
    if (length % kSlab != 0 && backing != Backing::small) continue;
    status = pin_region(region.get(), backing);
    if (status.ok()) break;
  }
  if (!status.ok()) return status;
  for (size_t i = 0; i < slabs; ++i) {
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
  bind(region->base, region->length, region->node);
  const Status status = is_huge || backing == Backing::small
                            ? pinner_.pin(pinner_.pool, at, region->length, &region->handle)
                            : Status(PINRAIL_ERR_NOT_SUPPORTED);
  if (!status.ok()) {
    munmap(at, region->length);
    return status;
  }
  region->backing = backing;
  registrations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  return status;
}

// Makes the region known, with all its slabs free, or, if it is alone, with its object used. If that fails, the region
// is ended.
Status Allocator::add_region(std::unique_ptr<Region> region) {
  const Status status = guarded([&] {
    std::list<Slab*> slabs;
    for (Slab& slab : region->slabs) {
      if (!region->is_alone) slab.at = slabs.insert(slabs.end(), &slab);
    }
    Guard guard(mutex_);
    Heap& heap = heaps_[region->node];
    std::unique_ptr<Region>& place = regions_[region->base];
    place = std::move(region);
    heap.free.splice(heap.free.end(), slabs);
  });
  if (!status.ok()) end_region(std::move(region), true);
  return status;
}

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
  }
  pinner_.unpin(pinner_.pool, handle);  // the former one, or another reference to the same one
  return status;
}

// Deregisters the region, which nothing leads to any more.
void Allocator::end_region(std::unique_ptr<Region> region, bool unmaps) {
  pinner_.unpin(pinner_.pool, region->handle);
  if (unmaps) munmap(pointer(region->base), region->length);
}

// Of a region that is idle or alone: nothing leads to it any more, and the caller ends it.
std::unique_ptr<Allocator::Region> Allocator::take_out_locked(const Region& region) {
  std::list<Slab*>& free = heaps_.find(region.node)->second.free;
  for (const Slab& slab : region.slabs) {
    if (!region.is_alone) free.erase(slab.at);
  }
  const auto at = regions_.find(region.base);
  std::unique_ptr<Region> taken = std::move(at->second);
  regions_.erase(at);
  return taken;
}

}  // namespace pinrail::mpool
