// SPDX-License-Identifier: BSD-3-Clause
// memory.h - real memory whose every page says which mapping it belongs to.
//
// Owns     Buffers: its mapping.
// Threads  at() may run together; map() and remap() alone.
//
// memory/M1  Two pages have different contents, and so has one page before and after it was mapped again.
// memory/M2  Unless huge ones were asked for, pages are small: the kernel then counts pins page by page.
#ifndef PINRAIL_TOOLS_PERF_MEMORY_H
#define PINRAIL_TOOLS_PERF_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contrib/tools/perf/result.h"

namespace pinrail::perf {

enum class Pages { small, huge };

// Puts fresh small pages at [base, base + length) in place of what is there, in one step, so that nobody else is given
// the hole; stamp tells them from all others.
Result map_fresh(uintptr_t base, size_t length, uint64_t stamp);

// Fills whole pages with contents of their own.
void fill_pages(uintptr_t base, size_t length, uint64_t stamp);

// Equal buffers, one beside the other.
class Buffers {
 public:
  Buffers() = default;
  ~Buffers() { unmap(); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  // Maps and touches count buffers of size bytes, each on pages of its own.
  Result map(size_t count, size_t size, Pages pages);

  // Reports the memory to Pinrail and gives it back.
  void unmap();

  // Reports one buffer, unmaps it and maps it again at its place, with new contents. Small pages only.
  Result remap(size_t index);

  void* at(size_t index) const { return reinterpret_cast<void*>(base_ + index * stride_); }
  size_t size() const { return size_; }
  Pages pages() const { return pages_; }
  size_t count() const { return changed_at_.size(); }

  // The number of the remap() that made the buffer's pages; 0: none.
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
