// SPDX-License-Identifier: BSD-3-Clause
// layout.cc - maps a trace's addresses to addresses in this process.
#include "contrib/tools/perf/layout.h"

#include <algorithm>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

// Merges spans that are at most `gap` apart.
std::vector<TraceSpan> merged(std::vector<TraceSpan> spans, uint64_t gap) {
  std::sort(spans.begin(), spans.end(), [](const TraceSpan& a, const TraceSpan& b) { return a.begin < b.begin; });
  std::vector<TraceSpan> out;
  for (const TraceSpan& span : spans) {
    if (!out.empty() && span.begin <= out.back().end + gap)
      out.back().end = std::max(out.back().end, span.end);
    else
      out.push_back(span);
  }
  return out;
}

// Returns the first of sorted, disjoint spans that ends above addr.
template <typename Span>
typename std::vector<Span>::const_iterator first_behind(const std::vector<Span>& spans, uint64_t addr) {
  return std::upper_bound(spans.begin(), spans.end(), addr,
                          [](uint64_t value, const Span& span) { return value < span.end; });
}

}  // namespace

Layout Layout::of(const Trace& trace, uint64_t page_bytes, uint64_t gap) {
  std::vector<TraceSpan> registered, all;
  for (const TraceRecord& record : trace.records) {
    if (record.op != TraceOp::reg && record.op != TraceOp::find) continue;
    const TraceSpan span = {round_down(record.addr, page_bytes), round_up(record.addr + record.size, page_bytes)};
    all.push_back(span);
    if (record.op == TraceOp::reg) registered.push_back(span);
  }
  Layout layout;
  layout.page_bytes_ = page_bytes;
  for (const TraceSpan& span : merged(std::move(all), gap))
    layout.clusters_.push_back({span.begin, span.end, static_cast<uintptr_t>(span.begin)});
  for (const TraceSpan& span : merged(std::move(registered), 0)) {
    layout.touched_.push_back({span.begin, span.end, layout.pages_});
    layout.pages_ += (span.end - span.begin) / page_bytes;
  }
  return layout;
}

uintptr_t Layout::translate(uint64_t addr) const {
  const auto cluster = first_behind(clusters_, addr);
  return cluster->base + static_cast<uintptr_t>(addr - cluster->begin);
}

std::vector<Piece> Layout::in_clusters(TraceSpan span) const {
  std::vector<Piece> pieces;
  for (auto it = first_behind(clusters_, span.begin); it != clusters_.end() && it->begin < span.end; ++it) {
    const uint64_t begin = std::max(it->begin, span.begin), end = std::min(it->end, span.end);
    if (begin < end) pieces.push_back({it->base + static_cast<uintptr_t>(begin - it->begin), end - begin, 0});
  }
  return pieces;
}

std::vector<Piece> Layout::touched_pages_in(TraceSpan span) const {
  std::vector<Piece> pieces;
  if (span.begin >= span.end) return pieces;
  span = {round_down(span.begin, page_bytes_), round_up(span.end, page_bytes_)};
  for (auto it = first_behind(touched_, span.begin); it != touched_.end() && it->begin < span.end; ++it) {
    const uint64_t begin = std::max(it->begin, span.begin), end = std::min(it->end, span.end);
    pieces.push_back({translate(begin), end - begin, it->first_page + (begin - it->begin) / page_bytes_});
  }
  return pieces;
}

}  // namespace pinrail::perf
