// SPDX-License-Identifier: BSD-3-Clause
// The calls: alloc, free, realloc, statistics; and the objects of slabs. API context. No lock is held where a
// registration is made or ended.
#include "framework/mpool/allocator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/registration/registration.h"

namespace pinrail::mpool {
namespace {

constexpr size_t kWordBits = 64;

}  // namespace

// Cuts a free slab into objects. May throw bad_alloc; then nothing has changed.
void Allocator::prepare(Slab* slab, size_t object_bytes) {
  const size_t capacity = kSlab / object_bytes;
  std::vector<uint64_t> bits((capacity + kWordBits - 1) / kWordBits, UINT64_MAX);
  if (capacity % kWordBits != 0) bits.back() = (uint64_t{1} << capacity % kWordBits) - 1;
  slab->free_bits.swap(bits);
  slab->first_word = 0;
  slab->object_bytes = object_bytes;
  slab->capacity = static_cast<uint32_t>(capacity);
  ++slab->region->used_slabs;
}

// Takes an object of the class, if need be from a slab that was free. 0: there is no free slab. May throw bad_alloc;
// then nothing has changed.
uintptr_t Allocator::take_locked(Heap* heap, unsigned cls, Region** region_out) {
  std::list<Slab*>& partial = heap->partial[cls];
  if (partial.empty()) {
    if (heap->free.empty()) return 0;
    prepare(heap->free.front(), size_classes::size_of(cls));
    partial.splice(partial.begin(), heap->free, heap->free.begin());
  }
  Slab* const slab = partial.front();
  while (slab->free_bits[slab->first_word] == 0) ++slab->first_word;
  uint64_t& word = slab->free_bits[slab->first_word];
  const size_t index = slab->first_word * kWordBits + static_cast<unsigned>(__builtin_ctzll(word));
  word &= word - 1;
  if (++slab->used == slab->capacity) heap->full.splice(heap->full.begin(), partial, slab->at);
  *region_out = slab->region;
  return slab->base + index * slab->object_bytes;
}

// Puts a used object back. Returns its region if that is to end now (allocator/B3). Allocates nothing.
std::unique_ptr<Allocator::Region> Allocator::put_locked(Slab* slab, uint32_t index) {
  const Region& region = *slab->region;
  if (region.is_alone) return take_out_locked(region);
  Heap& heap = heaps_.find(region.node)->second;
  std::list<Slab*>& partial = heap.partial[size_classes::class_of(slab->object_bytes)];
  if (slab->used == slab->capacity) partial.splice(partial.begin(), heap.full, slab->at);
  slab->free_bits[index / kWordBits] |= uint64_t{1} << index % kWordBits;
  slab->first_word = std::min<size_t>(slab->first_word, index / kWordBits);
  if (--slab->used != 0) return nullptr;
  heap.free.splice(heap.free.begin(), partial, slab->at);
  slab->object_bytes = 0;
  const bool stays = --slab->region->used_slabs != 0 || heap.free.size() * kSlab - region.length < settings_.keep_bytes;
  return stays ? nullptr : take_out_locked(region);
}

// The slab of the used object that begins at the address; NULL: there is none.
Allocator::Slab* Allocator::find_used_locked(const void* addr, uint32_t* index_out) {
  const auto address = reinterpret_cast<uintptr_t>(addr);
  const auto next = regions_.upper_bound(address);
  if (next == regions_.begin()) return nullptr;
  Region& region = *std::prev(next)->second;
  if (address - region.base >= region.length) return nullptr;
  *index_out = 0;
  if (region.is_alone) return address == region.base ? &region.slabs[0] : nullptr;
  Slab& slab = region.slabs[(address - region.base) / kSlab];
  const size_t offset = address - slab.base;
  if (slab.object_bytes == 0 || offset % slab.object_bytes != 0) return nullptr;
  const size_t index = offset / slab.object_bytes;
  *index_out = static_cast<uint32_t>(index);
  const bool is_used = index < slab.capacity && (slab.free_bits[index / kWordBits] >> index % kWordBits & 1) == 0;
  return is_used ? &slab : nullptr;
}

Status Allocator::alloc_alone(size_t length, int node, void** addr_out) {
  const size_t unit = length > size_classes::kLargest ? kSlab : settings_.unit;
  if (length > SIZE_MAX / 2) return PINRAIL_ERR_OUT_OF_RESOURCE;
  std::unique_ptr<Region> region;
  Status status = make_region(node, (length + unit - 1) / unit * unit, 1, &region);
  if (!status.ok()) return status;
  Slab& slab = region->slabs[0];
  slab.object_bytes = region->length;
  slab.capacity = slab.used = 1;
  region->used_slabs = 1;
  region->is_alone = true;
  void* const addr = pointer(region->base);
  status = add_region(std::move(region));
  if (status.ok()) *addr_out = addr;
  return status;
}

Status Allocator::alloc(size_t length, size_t alignment, int node, void** addr_out) {
  // Regions begin and end at multiples of a slab: the pool would extend their registrations to other memory.
  if (settings_.unit > kSlab) return PINRAIL_ERR_NOT_SUPPORTED;
  if (settings_.one_each || length > size_classes::kLargest || alignment > size_classes::kLargest) {
    return alloc_alone(length, node, addr_out);
  }
  const unsigned cls = size_classes::class_of(length, std::max(alignment, size_classes::kUnit));
  uintptr_t object = 0;
  Region* region = nullptr;
  bool is_live = false;
  while (object == 0) {
    {
      Guard guard(mutex_);
      object = take_locked(&heaps_[node], cls, &region);
      is_live = object != 0 && is_indexed(region->handle.reg);
    }
    const Status added = object == 0 ? add_region_of_slabs(node) : success();
    if (!added.ok()) return added;
  }
  const Status renewed = is_live ? success() : renew(region);
  if (!renewed.ok()) {
    free(pointer(object)).ignore();
    return renewed;
  }
  *addr_out = pointer(object);
  return success();
}

Status Allocator::free(void* addr) {
  std::unique_ptr<Region> ended;
  {
    Guard guard(mutex_);
    uint32_t index;
    Slab* const slab = find_used_locked(addr, &index);
    if (slab == nullptr) return PINRAIL_ERR_BAD_PARAM;
    ended = put_locked(slab, index);
  }
  if (ended != nullptr) end_region(std::move(ended), true);
  return success();
}

// The bytes of the place that an allocation of the length gets.
size_t Allocator::room_for(size_t length) const {
  if (length > size_classes::kLargest) return length;
  return settings_.one_each ? (length + settings_.unit - 1) / settings_.unit * settings_.unit
                            : size_classes::size_of(size_classes::class_of(length));
}

Status Allocator::realloc(void* addr, size_t length, void** addr_out) {
  if (addr == nullptr) return alloc(length, 0, PINRAIL_NODE_ANY, addr_out);
  size_t room = 0;
  int node = PINRAIL_NODE_ANY;
  {
    Guard guard(mutex_);
    uint32_t index;
    const Slab* const slab = find_used_locked(addr, &index);
    if (slab == nullptr) return PINRAIL_ERR_BAD_PARAM;
    room = slab->object_bytes;
    node = slab->region->node;
  }
  if (length <= room && (length > room / 2 || room_for(length) >= room)) {
    *addr_out = addr;
    return success();
  }
  void* moved = nullptr;
  const Status status = alloc(length, 0, node, &moved);
  if (!status.ok()) return status;
  std::memcpy(moved, addr, std::min(room, length));
  *addr_out = moved;  // before the old place is given back: a registrar's function may end this thread there
  free(addr).ignore();
  return success();
}

void Allocator::stats(pinrail_alloc_stats_t* stats_out) {
  pinrail_alloc_stats_t totals{};
  totals.size = sizeof(totals);
  Guard guard(mutex_);
  for (const auto& [base, region] : regions_) {
    totals.mapped_bytes += region->length;
    if (region->backing == Backing::hugetlb) totals.hugetlb_bytes += region->length;
    if (region->backing == Backing::transparent) totals.transparent_bytes += region->length;
    for (const Slab& slab : region->slabs) {
      totals.allocations += slab.used;
      totals.allocated_bytes += slab.used * slab.object_bytes;
    }
  }
  totals.registrations = registrations_.load();
  *stats_out = totals;
}

bool Allocator::give_back_idle() {
  for (bool is_any = false;; is_any = true) {
    std::unique_ptr<Region> idle;
    {
      Guard guard(mutex_);
      const auto is_idle = [](const auto& each) { return each.second->used_slabs == 0; };
      const auto at = std::find_if(regions_.begin(), regions_.end(), is_idle);
      if (at == regions_.end()) return is_any;
      idle = take_out_locked(*at->second);
    }
    end_region(std::move(idle), true);
  }
}

Status Allocator::close(bool force) {
  pinrail_alloc_stats_t totals;
  stats(&totals);
  if (totals.allocations != 0 && !force) return PINRAIL_ERR_BUSY;
  std::map<uintptr_t, std::unique_ptr<Region>> regions;
  {
    Guard guard(mutex_);
    regions.swap(regions_);
    heaps_.clear();
  }
  for (auto& [base, region] : regions) {
    const bool is_idle = region->used_slabs == 0;
    end_region(std::move(region), is_idle);
  }
  return success();
}

}  // namespace pinrail::mpool
