// SPDX-License-Identifier: BSD-3-Clause
// replay_memory.h - real memory for a trace: the same layout, and pages that really change.
//
// Owns     the mappings of all clusters, and the layout.
// Threads  one at a time.
#ifndef PINRAIL_TOOLS_PERF_REPLAY_MEMORY_H
#define PINRAIL_TOOLS_PERF_REPLAY_MEMORY_H

#include <cstdint>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/layout.h"

namespace pinrail::perf {

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
