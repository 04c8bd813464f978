// SPDX-License-Identifier: BSD-3-Clause
// replay_memory.h - real memory for a trace: the same layout, and pages that really change.
//
// Owns     the mappings of all clusters, and the layout.
// Threads  one at a time.
#ifndef PINRAIL_CONTRIB_TOOLS_PERF_REPLAY_MEMORY_H
#define PINRAIL_CONTRIB_TOOLS_PERF_REPLAY_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/trace.h"

namespace pinrail::perf {

// Buffers whose every page has contents that identify its mapping.
//
// Owns     Buffers: its mapping.
// Threads  at() may run on several threads; map() and remap() exclude all else.
//
// Two pages have different contents, and so has one page before and after it was remapped.

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

// Maps a trace's addresses to addresses in this process.
//
// Owns     nothing: a Layout is arithmetic. ReplayMemory maps real memory for it.
// Threads  const functions may run together.
//
// A cluster consists of whole pages. Ranges of R and F lines that are at most 16 MiB apart share a cluster, so that
// their distances are kept. Clusters ascend and are disjoint. Touched spans are the pages of R lines: whole pages,
// ascending, disjoint, each inside one cluster.

// A half-open range of the trace's addresses.
struct TraceSpan {
  uint64_t begin, end;
};

struct Cluster {
  uint64_t begin, end;  // of the trace's addresses
  uintptr_t base;       // address of `begin` in this process
};

struct Touched {
  uint64_t begin, end;  // of the trace's addresses
  uint64_t first_page;  // number of touched pages below it
};

// A piece of a trace's range, at its address in this process.
struct Piece {
  uintptr_t base;
  uint64_t length;      // bytes
  uint64_t first_page;  // index of its first page among the touched pages
};

class Layout {
 public:
  static constexpr uint64_t kGap = 16 << 20;

  // Creates the layout. Clusters begin at their old addresses; the caller may move them.
  static Layout of(const Trace& trace, uint64_t page_bytes, uint64_t gap = kGap);

  std::vector<Cluster>& clusters() { return clusters_; }
  const std::vector<Cluster>& clusters() const { return clusters_; }
  const std::vector<Touched>& touched() const { return touched_; }
  uint64_t touched_pages() const { return pages_; }
  uint64_t page_bytes() const { return page_bytes_; }

  // The address in this process of an address in an R or F line.
  uintptr_t translate(uint64_t addr) const;

  // The parts of a range that lie in clusters, byte by byte.
  std::vector<Piece> in_clusters(TraceSpan span) const;

  // The touched pages that a range overlaps, as whole pages.
  std::vector<Piece> touched_pages_in(TraceSpan span) const;

 private:
  uint64_t page_bytes_ = 1;
  uint64_t pages_ = 0;
  std::vector<Cluster> clusters_;
  std::vector<Touched> touched_;
};

// When the pages of replayed memory become resident: as soon as they are mapped, or when a call first names them.
enum class Touch { at_birth, when_asked };

class ReplayMemory {
 public:
  explicit ReplayMemory(Touch touch = Touch::at_birth) : touch_(touch) {}
  ~ReplayMemory();
  ReplayMemory(const ReplayMemory&) = delete;
  ReplayMemory& operator=(const ReplayMemory&) = delete;

  // Reserves each cluster at its old address, or elsewhere if that is not free; maps the pages of R lines.
  Result map(const Trace& trace);

  const Layout& layout() const { return layout_; }
  void* at(uint64_t addr) const { return reinterpret_cast<void*>(layout_.translate(addr)); }

  // The ranges to report for an I line: its parts in clusters, at their addresses here. Without any, a range of the
  // same length (at most 1 GiB) where nothing is ever mapped.
  std::vector<Piece> to_report(TraceSpan span) const;

  // Whether all of the range's pages are there. Those of an R line that failed may not be.
  bool has(TraceSpan span) const;
  // Makes the pages of an R line's range resident, if they are not.
  void touch(TraceSpan span);

  // Remaps the touched pages that the range overlaps, with new contents.
  Result remap(TraceSpan span);

  // The number of the last remap() of a page of the range, from 1; 0: none.
  uint64_t changed_at(TraceSpan span) const;
  uint64_t changes() const { return changes_; }

 private:
  Result reserve(Cluster* cluster);
  Result map_piece(const Piece& piece);

  struct Mapping {
    void* base;
    size_t length;
  };

  const Touch touch_;
  Layout layout_;
  std::vector<Mapping> mappings_;
  std::vector<uint64_t> changed_at_;  // by touched page
  std::vector<bool> resident_;        // by touched page
  uint64_t changes_ = 0;
  uintptr_t nowhere_ = 0;
  uint64_t nowhere_bytes_ = 0;
};

}  // namespace pinrail::perf

#endif
