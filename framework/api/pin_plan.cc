// SPDX-License-Identifier: BSD-3-Clause
// API context; takes no lock and no reference.
#include "framework/api/pin_plan.h"

namespace pinrail::api {
namespace {

constexpr uintptr_t kPage = 4096;

// Whole pages, because the pool registers whole pages.
size_t usable(size_t limit, size_t page) {
  if (limit == 0) return SIZE_MAX;
  return std::max(limit & ~(page - 1), page);
}

}  // namespace

PinPlan::PinPlan(const pinrail_range_t* ranges, size_t count, size_t limit, size_t granularity)
    : limit_(usable(limit, std::max<uintptr_t>(kPage, granularity))), page_(std::max<uintptr_t>(kPage, granularity)) {
  ranges_.reserve(count);
  for (size_t i = 0; i < count; ++i) ranges_.push_back({Span::of(ranges[i].addr, ranges[i].length), i, 0});
  std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
    return a.span.base != b.span.base ? a.span.base < b.span.base : a.span.end > b.span.end;
  });
  for (size_t first = 0; first < ranges_.size(); first = groups_.back().end_range) add_group(first);
}

void PinPlan::add_group(size_t first_range) {
  Group group{};
  group.first_range = first_range;
  group.first_chunk = chunk_count_;
  group.end_range = end_of_group(first_range, &group.span);
  const size_t whole = page_up(group.span.end) - page_down(group.span.base);
  if (whole > limit_) group.step = limit_;
  for (size_t i = first_range; i < group.end_range; ++i) ranges_[i].group = groups_.size();
  groups_.push_back(group);
  chunk_count_ += index_in(group, group.span.end - 1) + 1;
  bytes_ += group.span.length();
}

// A range joins if it lies inside, or if it touches and the group stays within the limit.
size_t PinPlan::end_of_group(size_t first_range, Span* span_out) const {
  Span span = ranges_[first_range].span;
  size_t next = first_range + 1;
  for (; next < ranges_.size(); ++next) {
    const Span& range = ranges_[next].span;
    if (range.end <= span.end) continue;
    const bool touches = page_down(range.base) <= page_up(span.end);
    if (!touches || page_up(range.end) - page_down(span.base) > limit_) break;
    span.end = range.end;
  }
  *span_out = span;
  return next;
}

const PinPlan::Group& PinPlan::group_of(size_t chunk_number) const {
  const auto after = std::upper_bound(groups_.begin(), groups_.end(), chunk_number,
                                      [](size_t number, const Group& group) { return number < group.first_chunk; });
  return *(after - 1);
}

Span PinPlan::chunk(size_t number) const {
  const Group& group = group_of(number);
  if (group.step == 0) return group.span;
  const uintptr_t base = (group.span.base / group.step + (number - group.first_chunk)) * group.step;
  const uintptr_t end = UINTPTR_MAX - base < group.step ? UINTPTR_MAX : base + group.step;
  return {std::max(base, group.span.base), std::min(end, group.span.end)};
}

size_t PinPlan::chunks_of(const Range& range) const {
  const Group& group = groups_[range.group];
  return index_in(group, range.span.end - 1) - index_in(group, range.span.base) + 1;
}

bool PinPlan::find_around(const Span& span, size_t* number_out) const {
  auto at = std::upper_bound(groups_.begin(), groups_.end(), span.base,
                             [](uintptr_t base, const Group& group) { return base < group.span.base; });
  while (at != groups_.begin()) {
    const Group& group = *--at;
    const size_t index = index_in(group, span.base);
    if (group.span.contains(span) && index == index_in(group, span.end - 1)) {
      *number_out = group.first_chunk + index;
      return true;
    }
    if (group.span.end <= span.base) return false;  // earlier groups end before this one: they do not nest
  }
  return false;
}

}  // namespace pinrail::api
