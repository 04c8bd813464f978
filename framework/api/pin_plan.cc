// SPDX-License-Identifier: BSD-3-Clause
// API context; takes no lock and no reference.
#include "framework/api/pin_plan.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "base/core/files.h"
#include "base/core/kernel.h"

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

// API context; takes no lock and no reference. Helper threads call most of it.

namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

uintptr_t page_bytes() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

// The kernel's PAGEMAP_SCAN, which headers before Linux 6.7 lack.
struct PageRegion {
  uint64_t start, end, categories;
};
struct ScanArgument {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, ScanArgument);
constexpr uint64_t kPresent = 1 << 3, kHuge = 1 << 6;

}  // namespace

void prefault(const Span& span, Populate populate) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return;
  const int advice = populate == Populate::for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  (void)madvise(pointer(pages.base), pages.length(), advice);
}

void request_huge_pages(const Span& span) {
  if (span.end < kHugePage || span.base > UINTPTR_MAX - kHugePage) return;
  const uintptr_t base = (span.base + kHugePage - 1) & ~(kHugePage - 1), end = span.end & ~(kHugePage - 1);
  if (base < end) (void)madvise(pointer(base), end - base, MADV_HUGEPAGE);
}

uint64_t huge_bytes(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_bytes())) return 0;
  const Descriptor file(open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!file.is_open()) return 0;
  PageRegion regions[16];
  ScanArgument scan{};
  scan.size = sizeof(scan);
  scan.start = pages.base;
  scan.end = pages.end;
  scan.vec = reinterpret_cast<uintptr_t>(regions);
  scan.vec_len = sizeof(regions) / sizeof(regions[0]);
  scan.category_mask = scan.return_mask = kPresent | kHuge;
  uint64_t bytes = 0;
  while (scan.start < scan.end) {
    const int found = ioctl_of(file.get(), kPagemapScan, &scan);
    if (found < 0) break;
    for (int i = 0; i < found; ++i) bytes += regions[i].end - regions[i].start;
    if (scan.walk_end <= scan.start) break;
    scan.start = scan.walk_end;
  }
  return bytes;
}

unsigned usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int count = CPU_COUNT(&set);
  return count > 1 ? static_cast<unsigned>(count) : 1;
}

}  // namespace pinrail::api
