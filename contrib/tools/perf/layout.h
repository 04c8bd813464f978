// SPDX-License-Identifier: BSD-3-Clause
// layout.h - maps a trace's addresses to addresses in this process.
//
// Owns     nothing: a Layout is arithmetic. ReplayMemory maps real memory for it.
// Threads  const functions may run together.
//
// A cluster consists of whole pages. Ranges of R and F lines that are at most 16 MiB apart share a cluster, so that
// their distances are kept. Clusters ascend and are disjoint. Touched spans are the pages of R lines: whole pages,
// ascending, disjoint, each inside one cluster.
#ifndef PINRAIL_TOOLS_PERF_LAYOUT_H
#define PINRAIL_TOOLS_PERF_LAYOUT_H

#include <cstdint>
#include <vector>

#include "contrib/tools/perf/trace.h"

namespace pinrail::perf {

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

}  // namespace pinrail::perf

#endif
