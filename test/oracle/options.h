// SPDX-License-Identifier: BSD-3-Clause
// options.h - what one run of the oracle does, and for how long.
#ifndef PINRAIL_TEST_ORACLE_OPTIONS_H
#define PINRAIL_TEST_ORACLE_OPTIONS_H

#include <cstdint>
#include <string>

#include "contrib/tools/common/command_line.h"
#include "contrib/tools/common/memory_events.h"

namespace pinrail::oracle {

constexpr int kSound = 0, kWrong = 1, kUnable = 2, kSkipped = 77;

struct Options {
  double seconds = 60;
  unsigned threads = 0;  // 0: as many as processors, within 2 and 8
  uint64_t seed = 0;     // 0: by the clock
  std::string monitor;   // "": Pinrail's own choice; "none": nothing is reported
  std::string registrar = "iouring";
  std::string events;  // "": all; else names with commas between them
  bool raw_calls = false;
  bool maps_all = false;   // the pool that is not limited is of the mpool mrall
  bool allocates = false;  // memory of the pools' allocators is used beside the buffers
  bool pins = false;       // pieces of the buffers are pinned ahead of their use
  bool lists_mutants = false;
  const tools::MemoryEvent* mutant = nullptr;
  size_t largest = size_t{1} << 20;     // bytes of a buffer
  size_t size_limit = size_t{8} << 20;  // of the pool that evicts
  tools::Pairs mca;
};

// As CommandLine::read() does.
std::optional<int> read_options(int argc, const char* const* argv, Options* options_out, std::ostream& out,
                                std::ostream& err);

// Whether its registrations are stale afterwards, so that a run that drops it must find differences.
bool is_mutant(const tools::MemoryEvent& event);

}  // namespace pinrail::oracle

#endif
