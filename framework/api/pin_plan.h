// SPDX-License-Identifier: BSD-3-Clause
// pin_plan.h - how ranges that are to be pinned are divided into chunks, each of which becomes one registration.
//
// Ranges whose pages touch or overlap form a group, as long as the group is not longer than a chunk may be. A group is
// one chunk. Only a range that is longer than that is cut: at multiples of the length of a chunk, as the iterator of
// pinrail.h does, so that overlapping buffers share chunks.
//
// Owns     the order of the ranges and the groups.
// Threads  immutable after construction: all functions may run together.
//
// Each byte of each range lies in a chunk of its range's group, and each chunk overlaps a range.
//
// pin_plan/L2  No chunk is longer than the limit, apart from the rounding of its ends to pages.
#ifndef PINRAIL_FRAMEWORK_API_PIN_PLAN_H
#define PINRAIL_FRAMEWORK_API_PIN_PLAN_H

#include <pinrail/pin.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/core/span.h"

namespace pinrail::api {

class PinPlan {
 public:
  struct Range {
    Span span;
    size_t number;  // in the caller's order
    size_t group;
  };

  // limit: the longest chunk in bytes, 0: none; rounded down to whole pages, of 4 KiB or of granularity, a power of
  // two, if that is more. May throw bad_alloc.
  PinPlan(const pinrail_range_t* ranges, size_t count, size_t limit, size_t granularity);

  size_t chunk_count() const { return chunk_count_; }
  // By address.
  const std::vector<Range>& ranges() const { return ranges_; }
  Span chunk(size_t number) const;
  // How many chunks the range overlaps.
  size_t chunks_of(const Range& range) const;
  // The sum of the lengths of the groups.
  uint64_t bytes() const { return bytes_; }

  // Calls visit(index in ranges(), the part of the range inside the chunk).
  template <typename Visit>
  void for_ranges(size_t chunk_number, Visit&& visit) const {
    const Group& group = group_of(chunk_number);
    const Span span = chunk(chunk_number);
    for (size_t i = group.first_range; i < group.end_range && ranges_[i].span.base < span.end; ++i) {
      const Span part{std::max(ranges_[i].span.base, span.base), std::min(ranges_[i].span.end, span.end)};
      if (part.base < part.end) visit(i, part);
    }
  }
  // Whether the chunk lies in a group of more than one range.
  bool is_shared(size_t chunk_number) const {
    const Group& group = group_of(chunk_number);
    return group.end_range - group.first_range > 1;
  }

  // Calls visit(number) for the chunks that overlap the span, by address in each group.
  template <typename Visit>
  void for_chunks(const Span& span, Visit&& visit) const {
    for (const Group& group : groups_) {
      if (group.span.base >= span.end) return;
      if (group.span.end <= span.base) continue;
      const size_t first = index_in(group, std::max(span.base, group.span.base));
      const size_t last = index_in(group, std::min(span.end, group.span.end) - 1);
      for (size_t i = first; i <= last; ++i) visit(group.first_chunk + i);
    }
  }

  // The chunk that contains the whole span. False: there is none.
  bool find_around(const Span& span, size_t* number_out) const;

 private:
  struct Group {
    Span span;
    size_t step;  // 0: one chunk
    size_t first_chunk;
    size_t first_range, end_range;
  };

  void add_group(size_t first_range);
  size_t end_of_group(size_t first_range, Span* span_out) const;
  const Group& group_of(size_t chunk_number) const;
  static size_t index_in(const Group& group, uintptr_t address) {
    return group.step == 0 ? 0 : address / group.step - group.span.base / group.step;
  }

  uintptr_t page_down(uintptr_t address) const { return address & ~(page_ - 1); }
  uintptr_t page_up(uintptr_t address) const { return (address + page_ - 1) & ~(page_ - 1); }

  const size_t limit_;
  const uintptr_t page_;  // what the pool extends a registration to, at least 4 KiB
  std::vector<Range> ranges_;
  std::vector<Group> groups_;  // by address and by chunk; a group may overlap its neighbours
  size_t chunk_count_ = 0;
  uint64_t bytes_ = 0;
};

// Populates pages before they are registered, in parallel and near a NUMA node.
//
// Threads  all functions may run together. API context; they take no lock of Pinrail.

enum class Populate : uint8_t { for_reading, for_writing };

// Populates the pages of the span. A hint: what the kernel refuses is left to the registrar.
void prefault(const Span& span, Populate populate);

// Requests transparent huge pages for the huge pages that lie wholly in the span. A hint.
void request_huge_pages(const Span& span);

// The bytes of the span that are mapped by huge pages now, of any kind. 0 if the kernel does not report them (before
// Linux 6.7).
uint64_t huge_bytes(const Span& span);

// How many processors this thread may use, at least 1.
unsigned usable_processors();

}  // namespace pinrail::api

#endif
