// SPDX-License-Identifier: BSD-3-Clause
// API context. Functions whose names end in _locked run under mutex_; no registration is made or ended under it.
#include "framework/mpool/allocator.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/core/on_unwind.h"

namespace pinrail::mpool {
namespace {

constexpr size_t kPage = 4096;
constexpr int kPreferred = 1;  // MPOL_PREFERRED, for builds without numaif.h

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

// Maps at a multiple of 2 MiB. 0: no memory.
uintptr_t map_aligned(size_t length) {
  const size_t more = length + Allocator::kSlab;
  void* const at = mmap(nullptr, more, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return 0;
  const auto first = reinterpret_cast<uintptr_t>(at);
  const uintptr_t base = (first + Allocator::kSlab - 1) & ~(Allocator::kSlab - 1);
  if (base != first) munmap(at, base - first);
  if (base + length != first + more) munmap(pointer(base + length), first + more - base - length);
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

uint32_t Allocator::most_in_magazine(unsigned cls) {
  const size_t most = kMagazineBytes / size_classes::size_of(cls);
  return static_cast<uint32_t>(std::clamp(most, size_t{2}, size_t{kMagazine}));
}

// ---- tables

Allocator::Heap* Allocator::heap_of(int node) {
  std::atomic<Heap*>& place = heaps_[static_cast<size_t>(node) + 1];
  // acquire: pairs with the exchange below.
  Heap* heap = place.load(std::memory_order_acquire);
  if (heap != nullptr) return heap;
  auto made = std::make_unique<Heap>(node);
  if (place.compare_exchange_strong(heap, made.get())) return made.release();
  return heap;
}

// Magazines belong to a number of threads; a later thread of that number takes them over. NULL: the thread has none,
// because its number is too high or there is no memory; then it works without.
Allocator::Magazines* Allocator::magazines_of(Heap* heap, uint32_t thread) {
  if (thread >= kThreads) return nullptr;
  // relaxed: only the thread of this number reads and writes it.
  Magazines* magazines = heap->magazines[thread].load(std::memory_order_relaxed);
  if (magazines != nullptr) return magazines;
  magazines = new (std::nothrow) Magazines{};
  heap->magazines[thread].store(magazines, std::memory_order_relaxed);
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

// ---- regions

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
  OnUnwind unmap([&] { munmap(at, region->length); });  // on an error, and if the registrar ends its thread
  const Status status = is_huge || backing == Backing::small
                            ? pinner_.pin(pinner_.pool, at, region->length, &region->handle)
                            : Status(PINRAIL_ERR_NOT_SUPPORTED);
  if (!status.ok()) return status;
  unmap.disarm();
  region->backing = backing;
  registrations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  return status;
}

// Makes the region known, with so many of its slabs free. If that fails, by a status or by bad_alloc, the region is
// ended.
Status Allocator::add_region(std::unique_ptr<Region> region, size_t free_slabs) {
  Region* const added = region.release();
  OnUnwind unwound([&] { end_region(added, true); });
  const Status status = enter(added);
  if (status.ok()) {
    Guard guard(mutex_);
    added->heap->regions.push_back(added);
    added->free_slabs = free_slabs;
    added->heap->free_bytes += free_slabs * kSlab;
  }
  unwound.disarm();
  if (!status.ok()) end_region(added, true);  // not in a destructor, because the registrar may end the thread
  return status;
}

void Allocator::end_region(Region* region, bool unmaps) {
  leave(region);
  const OnUnwind at_the_end([&] {  // also if the registrar ends its thread
    if (unmaps) munmap(pointer(region->base), region->length);
    delete region;
  });
  pinner_.unpin(pinner_.pool, region->handle);
}

void Allocator::end_all(Emptied* emptied) {
  while (emptied->count != 0) {
    Region* const region = emptied->regions[--emptied->count];
    OnUnwind unwound([&] { end_all(emptied); });
    end_region(region, true);
    unwound.disarm();
  }
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

// Objects that lie in a magazine count as used in their slabs. Those of other threads cannot be taken.
void Allocator::empty_magazines(uint32_t thread) {
  if (thread >= kThreads) return;
  for (const std::atomic<Heap*>& place : heaps_) {
    const Heap* const heap = place.load();
    // relaxed: only the thread of this number reads and writes it.
    Magazines* const magazines = heap == nullptr ? nullptr : heap->magazines[thread].load(std::memory_order_relaxed);
    if (magazines == nullptr) continue;
    for (Magazine& magazine : *magazines) {
      void* objects[kMagazine];  // the registrar may allocate on this thread when a region ends
      const uint32_t count = std::exchange(magazine.count, 0);
      std::copy(magazine.objects, magazine.objects + count, objects);
      put(objects, count);
    }
  }
}

bool Allocator::give_back_idle(uint32_t thread) {
  empty_magazines(thread);
  for (bool is_any = false;; is_any = true) {
    Region* idle = nullptr;
    {
      Guard guard(mutex_);
      idle = take_idle_locked();
    }
    if (idle == nullptr) return is_any;
    end_region(idle, true);
  }
}

// ---- slabs

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

// Without a division: exact, because offsets have 15 bits and sizes at most 14.
uint32_t Allocator::index_of(const Slab& slab, const void* object) {
  const uint64_t units = (reinterpret_cast<uintptr_t>(object) - slab.base) / size_classes::kUnit;
  const uint64_t reciprocal = slab.reciprocal == 0 ? uint64_t{1} << 32 : slab.reciprocal;
  return static_cast<uint32_t>(units * reciprocal >> 32);
}

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
      OnUnwind unwound([&] { give_slab_back(slab); });
      prepare(slab, cls);
      unwound.disarm();
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

// count: 0. It may have become more when a slab was added, because the registrar allocated of the same class on this
// thread.
Status Allocator::refill(Heap* heap, unsigned cls, uint32_t wanted, void** objects, uint32_t* count) {
  for (;;) {
    if (*count == 0) {
      Guard guard(mutex_);
      *count = take_locked(heap, cls, wanted, objects);
    }
    if (*count != 0) return success();
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

// count: at most kMagazine. Allocates nothing.
void Allocator::put(void* const* objects, uint32_t count) {
  Emptied emptied;
  {
    Guard guard(mutex_);
    for (uint32_t i = 0; i < count; ++i) put_locked(find(objects[i]), objects[i], &emptied);
  }
  end_all(&emptied);
}

// ---- calls

Status Allocator::alloc_alone(Heap* heap, size_t length, size_t alignment, void** addr_out) {
  if (alignment > kSlab) return PINRAIL_ERR_NOT_SUPPORTED;
  const size_t unit = length > size_classes::kLargest ? kSlab : kPage;
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
  Heap* const heap = heap_of(node);
  if (settings_.one_each || length > size_classes::kLargest || alignment > size_classes::kLargest) {
    return alloc_alone(heap, length, alignment, addr_out);
  }
  const unsigned cls =
      alignment <= size_classes::kUnit ? size_classes::class_of(length) : size_classes::class_of(length, alignment);
  Magazines* const magazines = magazines_of(heap, thread);
  void* object = nullptr;
  if (magazines == nullptr) {
    uint32_t count = 0;
    const Status status = refill(heap, cls, 1, &object, &count);
    if (!status.ok()) return status;
  } else {
    Magazine& magazine = (*magazines)[cls];
    if (magazine.count == 0) {
      const uint32_t half = (most_in_magazine(cls) + 1) / 2;
      const Status status = refill(heap, cls, half, magazine.objects, &magazine.count);
      if (!status.ok()) return status;
    }
    object = magazine.objects[--magazine.count];
  }
  const Slab* const slab = find(object);
  // relaxed: what passes the object to another thread orders this, too.
  slab->notes[index_of(*slab, object)].store(kUsed, std::memory_order_relaxed);
  *addr_out = object;
  return success();
}

// relaxed: a slab that holds a used object does not change its class.
unsigned Allocator::class_at(const Slab* slab) {
  const unsigned cls = slab == nullptr ? kFree : slab->cls.load(std::memory_order_relaxed);
  return cls == kPreparing ? kFree : cls;
}

// Finds the used object that begins at the address. False: there is none.
// relaxed: two frees of one object that run at once are not told apart; each of them alone is.
bool Allocator::find_used(const void* addr, Slab** slab_out, unsigned* cls_out, uint32_t* index_out) const {
  Slab* const slab = find(addr);
  const unsigned cls = class_at(slab);
  if (cls == kFree) return false;
  const bool is_alone = cls == kAlone;
  const uint32_t index = is_alone ? 0 : index_of(*slab, addr);
  const uintptr_t begin = slab->base + (is_alone ? 0 : index * size_classes::size_of(cls));
  if (index >= slab->capacity || begin != reinterpret_cast<uintptr_t>(addr)) return false;
  *slab_out = slab;
  *cls_out = cls;
  *index_out = index;
  return slab->notes[index].load(std::memory_order_relaxed) == kUsed;
}

Status Allocator::free_alone(Slab* slab) {
  if (slab->notes[0].exchange(0) != kUsed) return PINRAIL_ERR_BAD_PARAM;
  Region* const region = slab->region;
  {
    Guard guard(mutex_);
    std::vector<Region*>& regions = region->heap->regions;
    regions.erase(std::find(regions.begin(), regions.end(), region));
  }
  end_region(region, true);
  return success();
}

// Allocates nothing, and puts no object into a magazine that may be changed meanwhile: the registrar may free on this
// thread when a region ends.
Status Allocator::free(uint32_t thread, void* addr) {
  Slab* slab;
  unsigned cls;
  uint32_t index;
  if (!find_used(addr, &slab, &cls, &index)) return PINRAIL_ERR_BAD_PARAM;
  if (cls == kAlone) return free_alone(slab);
  slab->notes[index].store(0, std::memory_order_relaxed);
  Magazines* const magazines = magazines_of(slab->region->heap, thread);
  if (magazines == nullptr) {
    put(&addr, 1);
    return success();
  }
  Magazine& magazine = (*magazines)[cls];
  const uint32_t most = most_in_magazine(cls);
  if (magazine.count < most) {
    magazine.objects[magazine.count++] = addr;
    return success();
  }
  const uint32_t rest = most / 2;
  void* rejected[kMagazine];
  std::copy(magazine.objects + rest, magazine.objects + most, rejected);
  magazine.objects[rest] = addr;
  magazine.count = rest + 1;
  put(rejected, most - rest);
  return success();
}

// The bytes of the place that an allocation of the length gets.
size_t Allocator::room_for(size_t length) const {
  if (length > size_classes::kLargest) return length;
  return settings_.one_each ? (length + kPage - 1) / kPage * kPage
                            : size_classes::size_of(size_classes::class_of(length));
}

Status Allocator::realloc(uint32_t thread, void* addr, size_t length, void** addr_out) {
  if (addr == nullptr) return alloc(thread, length, 0, PINRAIL_NODE_ANY, addr_out);
  Slab* slab;
  unsigned cls;
  uint32_t index;
  if (!find_used(addr, &slab, &cls, &index)) return PINRAIL_ERR_BAD_PARAM;
  const size_t room = cls == kAlone ? slab->region->length : size_classes::size_of(cls);
  if (length <= room && (length > room / 2 || room_for(length) >= room)) {
    *addr_out = addr;
    return success();
  }
  void* moved = nullptr;
  const Status status = alloc(thread, length, 0, slab->region->heap->node, &moved);
  if (!status.ok()) return status;
  std::memcpy(moved, addr, std::min(room, length));
  Status(free(thread, addr)).ignore();
  *addr_out = moved;
  return success();
}

void Allocator::stats(pinrail_alloc_stats_t* stats_out) {
  pinrail_alloc_stats_t totals{};
  totals.size = sizeof(totals);
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
        const unsigned cls = slab.cls.load();
        if (cls == kFree || cls == kPreparing) continue;
        uint64_t used = 0;
        for (uint32_t at = 0; at < slab.capacity; ++at) used += slab.notes[at].load(std::memory_order_relaxed);
        totals.allocations += used;
        totals.allocated_bytes += used * (cls == kAlone ? region->length : size_classes::size_of(cls));
      }
    }
  }
  totals.registrations = registrations_.load();
  *stats_out = totals;
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
    for (Region* region : regions) end_region(region, totals.allocations == 0);
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
