// SPDX-License-Identifier: BSD-3-Clause
// memory.h - buffers whose every page has contents that identify its mapping.
//
// Owns     Buffers: its mapping.
// Threads  at() may run on several threads; map() and remap() exclude all else.
//
// Two pages have different contents, and so has one page before and after it was remapped.
#ifndef PINRAIL_TOOLS_PERF_MEMORY_H
#define PINRAIL_TOOLS_PERF_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

enum class Pages { small, huge };

// Replaces [base, base + length) by new small pages in one step, so that no other thread can map the hole. stamp makes
// their contents unique.
Result map_fresh(uintptr_t base, size_t length, uint64_t stamp);

// The same, with pages that are not resident yet.
Result map_empty(uintptr_t base, size_t length);

// Fills whole pages with contents that are unique to the page and the stamp.
void fill_pages(uintptr_t base, size_t length, uint64_t stamp);

// Buffers of equal size, side by side.
class Buffers {
 public:
  Buffers() = default;
  ~Buffers() { unmap(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Maps and touches count buffers of size bytes, each on pages of its own.
  Result map(size_t count, size_t size, Pages pages);

  // Reports the memory to Pinrail and unmaps it.
  void unmap();

  // Reports one buffer, and remaps it at its address with new contents. Small pages only.
  Result remap(size_t index);

  void* at(size_t index) const { return reinterpret_cast<void*>(base_ + index * stride_); }
  size_t size() const { return size_; }
  Pages pages() const { return pages_; }
  size_t count() const { return changed_at_.size(); }

  // The number of the remap() that created the buffer's pages; 0: none.
  uint64_t changed_at(size_t index) const { return changed_at_[index]; }
  uint64_t changes() const { return changes_; }

 private:
  uintptr_t base_ = 0;
  size_t size_ = 0;
  size_t stride_ = 0;  // bytes from one buffer to the next
  Pages pages_ = Pages::small;
  uint64_t changes_ = 0;
  std::vector<uint64_t> changed_at_;
};

}  // namespace pinrail::perf

#endif
