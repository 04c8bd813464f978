// SPDX-License-Identifier: BSD-3-Clause
// budget.h - checks that what Pinrail registers stays within its limit and equals what the kernel counts.
//
// Threads  one at a time, while no other thread uses the pool.
#ifndef PINRAIL_TOOLS_PERF_BUDGET_H
#define PINRAIL_TOOLS_PERF_BUDGET_H

#include <cstdint>
#include <string>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

// Growth in bytes since begin().
struct Growth {
  int64_t registered = 0, pinned = 0;  // by Pinrail's statistics
  int64_t vm_pin = 0, vm_lck = 0;      // by the kernel; 0 if it does not count
};

class Budget {
 public:
  Budget(const Session& session, Errors* errors);

  // Starts the measurement of a row. small_pages: the kernel counts pins by page, so its numbers can be compared.
  void begin(bool small_pages);

  // Counts an error if a limit is exceeded, or if the kernel's numbers differ.
  void check(const std::string& when);

  Growth growth() const { return growth_; }  // at the last check

 private:
  void measure_others();
  bool confirmed();
  std::string differences() const;

  const Session& session_;
  Errors* const errors_;
  const bool counts_pin_, counts_lock_;  // whether the kernel counts what this registrar registers
  bool compare_ = false, knows_others_ = false;
  int64_t other_pin_ = 0, other_lock_ = 0;
  pinrail_mpool_stats_t at_start_ = {};
  Growth growth_;
};

// Names the limit of the pool or the user that applies; "" if there is none.
std::string limit_text(const Session& session);

// Explains why a register call of that length was refused while `held` bytes were registered and referenced.
// legitimate: no idle registration could have been evicted for it.
struct Refusal {
  bool legitimate;
  std::string why;
};
bool is_refusal(pinrail_status_t status);
Refusal explain_refusal(const Session& session, pinrail_status_t status, size_t length, uint64_t held);

}  // namespace pinrail::perf

#endif
