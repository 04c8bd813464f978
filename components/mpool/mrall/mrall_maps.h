// SPDX-License-Identifier: BSD-3-Clause
// mrall_maps.h - what is mapped in this process, and with which rights a device may reach it.
//
// Owns     the lines that read() found, whose memory is kept from one read to the next: what a read allocated would
//          itself be a change of the mappings.
// Threads  One at a time. API context: read() may allocate.
//
// Lines ascend, are disjoint, and lie next to each other only if they differ or the kernel lists them so.
#ifndef PINRAIL_COMPONENTS_MPOOL_MRALL_MAPS_H
#define PINRAIL_COMPONENTS_MPOOL_MRALL_MAPS_H

#include <pinrail/listing.h>

#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"

namespace pinrail::mrall {

struct Line {
  Span span;
  uint32_t rights;                   // PINRAIL_ACCESS_* that the mapping permits
  bool is_registrable;               // false: `reason` says why not
  pinrail_left_out_reason_t reason;  // PROTECTED or DEVICE
};

class Maps {
 public:
  // Reads /proc/self/maps. May throw bad_alloc. TEMP_OUT_OF_RESOURCE: there is no descriptor. NOT_AVAILABLE: the system
  // has no such file.
  Status read();
  // Adds one line of it. What is malformed is left out.
  void add(const char* text);

  const std::vector<Line>& lines() const { return lines_; }
  // The first line that ends above the address.
  size_t first_above(uintptr_t at) const;

  // Whether the whole span is registrable. rights_out: what all its lines permit. If not: reason_out says why, NONE: a
  // part is not mapped.
  bool is_registrable(const Span& span, uint32_t* rights_out, pinrail_left_out_reason_t* reason_out) const;
  // Extends the span to multiples of `step`, as far as memory that permits the rights is mapped without a gap.
  Span extend(const Span& span, uint32_t rights, size_t step) const;

 private:
  std::vector<Line> lines_;
};

}  // namespace pinrail::mrall

#endif
