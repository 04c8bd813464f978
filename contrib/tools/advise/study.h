// SPDX-License-Identifier: BSD-3-Clause
// study.h - what a trace says by itself: why requests miss a cache without a limit, how long registrations live, how
// large a cache must be.
//
// Threads  one at a time.
//
// The cache of the study is an exact pool without a limit: a request hits the registration of most rights that contains
// it, and a miss registers its pages with its rights and those of what contains it. Its misses are those of
// pinrail_perf --trace FILE --exact. A distance is the sum of the bytes of all registrations that were used since the
// last use of this one, its own included: an LRU cache of at least so many bytes has it still. What an event has ended
// counts no more.
#ifndef PINRAIL_TOOLS_ADVISE_STUDY_H
#define PINRAIL_TOOLS_ADVISE_STUDY_H

#include <cstdint>
#include <string>
#include <vector>

#include "contrib/tools/common/reasons.h"
#include "contrib/tools/perf/trace.h"

namespace pinrail::advise {

struct Life {
  uint64_t begin, end;  // the range
  uint64_t born_ns, died_ns;
  uint64_t uses;  // requests that it served, the first one included
  bool by_event;  // an event ended it; else it lived to the end, or a larger one took its place
};

// Registrations whose pages touch or overlap.
struct Place {
  uint64_t begin, end;
  uint64_t requests, misses, pages;  // pages: of all registrations
};

struct Study {
  uint64_t requests = 0, hits = 0, events = 0;
  uint64_t peak_bytes = 0;  // registered at once
  // Of five reasons: cold; span; rights; event: an event has ended what contained a part of it; bypass.
  tools::Misses misses{}, pages{};
  std::vector<uint64_t> distances;  // of the hits, ascending, in bytes
  std::vector<Life> lives;
  std::vector<Place> places;  // ascending

  uint64_t all_misses() const;
  uint64_t misses_of_lru(uint64_t limit_bytes) const;
};

Study study(const perf::Trace& trace, uint64_t page_bytes);

}  // namespace pinrail::advise

#endif
