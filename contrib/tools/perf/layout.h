// SPDX-License-Identifier: BSD-3-Clause
// layout.h - where a trace's memory lies, then and now.
//
// Owns     nothing: a Layout is arithmetic. ReplayMemory puts real memory behind it.
// Threads  const functions may run together.
//
// layout/L1  A cluster holds whole pages; ranges of R and F lines that lie at most 16 MiB apart share one, so that
//     their distances are kept. Clusters are in rising order and apart.
// layout/L2  Touched spans are the pages of R lines: whole pages, in rising order, apart, each inside one cluster.
#ifndef PINRAIL_TOOLS_PERF_LAYOUT_H
#define PINRAIL_TOOLS_PERF_LAYOUT_H

#include <cstdint>
#include <vector>

#include "contrib/tools/perf/trace.h"

namespace pinrail::perf {

// Half-open, of the trace's addresses.
struct TraceSpan {
  uint64_t begin, end;
};

struct Cluster {
  uint64_t begin, end;  // of the trace's addresses
  uintptr_t base;       // where begin lies now
};

struct Touched {
  uint64_t begin, end;  // of the trace's addresses
  uint64_t first_page;  // how many touched pages lie below it
};

// A piece of a trace's range as it lies now.
struct Piece {
  uintptr_t base;
  uint64_t length;      // bytes
  uint64_t first_page;  // ordinal of its first page, for touched pieces
};

class Layout {
 public:
  static constexpr uint64_t kGap = 16 << 20;

  // Clusters begin where they lay; a user of the layout may move them.
  static Layout of(const Trace& trace, uint64_t page_bytes, uint64_t gap = kGap);

  std::vector<Cluster>& clusters() { return clusters_; }
  const std::vector<Cluster>& clusters() const { return clusters_; }
  const std::vector<Touched>& touched() const { return touched_; }
  uint64_t touched_pages() const { return pages_; }
  uint64_t page_bytes() const { return page_bytes_; }

  // Where a range of an R or F line lies now.
  uintptr_t translate(uint64_t addr) const;

  // The parts of any range that lie in clusters, to the byte.
  std::vector<Piece> in_clusters(TraceSpan span) const;

  // The touched pages that a range overlaps, if only by one byte: whole pages.
  std::vector<Piece> touched_pages_in(TraceSpan span) const;

 private:
  uint64_t page_bytes_ = 1;
  uint64_t pages_ = 0;
  std::vector<Cluster> clusters_;
  std::vector<Touched> touched_;
};

}  // namespace pinrail::perf

#endif
