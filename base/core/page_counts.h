// SPDX-License-Identifier: BSD-3-Clause
// page_counts.h - counts for each page how many registrations hold it, for registrars that lock memory by address.
//
// Owns     the counts. It does not touch the pages.
// Threads  One at a time: the owner's lock is held.
// Context  API only; add() allocates.
//
// The map has a node at each address where the count may change. A node exists exactly as long as a held span begins or
// ends at its address. So remove() finds its two nodes and never allocates, and there are at most two nodes per held
// span.
//
// page_counts/N1  A node's count is the number of held spans that cover [its address, the next node's address).
// page_counts/N2  A node's starts and ends are the numbers of held spans that begin and end at its address; not both
//     are 0, and the count rises by their difference there.
// page_counts/N3  The last node's count is 0.
#ifndef PINRAIL_BASE_CORE_PAGE_COUNTS_H
#define PINRAIL_BASE_CORE_PAGE_COUNTS_H

#include <iterator>
#include <map>

#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail {

class PageCounts {
 public:
  // Adds one holder to each page of the span. BAD_PARAM: the span is empty. OUT_OF_RESOURCE: no memory. After an error
  // nothing has changed.
  Status add(Span span);

  // Removes one holder, and calls visit(Span), in rising order, for each piece that has no holder any more. visit runs
  // in the middle of the change: it must not throw, and must not use this object. BAD_PARAM, nothing changed: no held
  // span begins at span.base, or none ends at span.end.
  template <typename Visit>
  Status remove(Span span, Visit visit);

  // Calls visit(Span), in rising order, for each piece of the span that has no holder.
  template <typename Visit>
  void for_each_unheld(Span span, Visit visit) const;

  size_t nodes() const { return nodes_.size(); }
  // Checks page_counts/N1 as far as the nodes alone show it, page_counts/N2 and page_counts/N3.
  bool check_invariants() const;

 private:
  struct Node {
    size_t count = 0;
    size_t starts = 0, ends = 0;
  };
  using Map = std::map<uintptr_t, Node>;

  // Returns the node at the address, and makes it if needed. Throws bad_alloc.
  Map::iterator need_node(uintptr_t at);
  void erase_if_unused(Map::iterator node);

  Map nodes_;
};

inline PageCounts::Map::iterator PageCounts::need_node(uintptr_t at) {
  const auto next = nodes_.upper_bound(at);
  const size_t count = next == nodes_.begin() ? 0 : std::prev(next)->second.count;
  return nodes_.try_emplace(next, at, Node{count, 0, 0});
}

inline void PageCounts::erase_if_unused(Map::iterator node) {
  if (node->second.starts == 0 && node->second.ends == 0) nodes_.erase(node);
}

inline Status PageCounts::add(Span span) {
  if (span.base >= span.end) return PINRAIL_ERR_BAD_PARAM;
  auto first = nodes_.end();
  try {
    first = need_node(span.base);
    const auto last = need_node(span.end);
    ++first->second.starts;
    ++last->second.ends;
    for (auto node = first; node != last; ++node) ++node->second.count;
  } catch (const std::bad_alloc&) {
    if (first != nodes_.end()) erase_if_unused(first);
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  return success();
}

inline bool PageCounts::check_invariants() const {
  size_t before = 0;
  for (const auto& entry : nodes_) {
    const Node& node = entry.second;
    if (node.starts == 0 && node.ends == 0) return false;
    if (before + node.starts != node.count + node.ends) return false;
    before = node.count;
  }
  return before == 0;
}

template <typename Visit>
Status PageCounts::remove(Span span, Visit visit) {
  const auto first = nodes_.find(span.base);
  const auto last = nodes_.find(span.end);
  if (span.base >= span.end || first == nodes_.end() || last == nodes_.end()) return PINRAIL_ERR_BAD_PARAM;
  if (first->second.starts == 0 || last->second.ends == 0) return PINRAIL_ERR_BAD_PARAM;
  for (auto node = first; node != last; ++node) {
    if (node->second.count == 0) return PINRAIL_ERR_BAD_PARAM;
  }
  for (auto node = first; node != last;) {
    const auto here = node++;
    if (--here->second.count == 0) visit(Span{here->first, node->first});
  }
  --first->second.starts;
  --last->second.ends;
  erase_if_unused(first);
  erase_if_unused(last);
  return success();
}

template <typename Visit>
void PageCounts::for_each_unheld(Span span, Visit visit) const {
  auto next = nodes_.upper_bound(span.base);
  size_t count = next == nodes_.begin() ? 0 : std::prev(next)->second.count;
  for (uintptr_t at = span.base; at < span.end;) {
    const uintptr_t end = next == nodes_.end() ? span.end : std::min(span.end, next->first);
    if (count == 0) visit(Span{at, end});
    if (next == nodes_.end()) return;
    count = next->second.count;
    at = end;
    ++next;
  }
}

}  // namespace pinrail

#endif
