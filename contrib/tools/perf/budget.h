// SPDX-License-Identifier: BSD-3-Clause
// budget.h - does what Pinrail says it holds stay within its limit, and equal what the kernel counts?
//
// Threads  one at a time, while no other thread uses the pool.
#ifndef PINRAIL_TOOLS_PERF_BUDGET_H
#define PINRAIL_TOOLS_PERF_BUDGET_H

#include <cstdint>
#include <string>

#include "contrib/tools/perf/errors.h"
#include "contrib/tools/perf/session.h"

namespace pinrail::perf {

// Growth since a Budget was made.
struct Growth {
  int64_t registered = 0, pinned = 0;  // as Pinrail says
  int64_t vm_pin = 0, vm_lck = 0;      // as the kernel says; 0 where it says nothing
};

class Budget {
 public:
  // From now on; small_pages: the kernel counts pins page by page, so that its figures may be compared.
  Budget(const Session& session, bool small_pages, Errors* errors);

  // Counts an error for a limit that does not hold, and for a figure that the kernel does not confirm.
  void check(const std::string& when);

  Growth growth() const { return growth_; }  // at the last check

 private:
  bool confirmed();
  std::string differences() const;

  const Session& session_;
  Errors* const errors_;
  const bool compare_pin_, compare_lock_;
  const pinrail_mpool_stats_t at_start_;
  const int64_t vm_pin_, vm_lck_;
  Growth growth_;
};

// Which limit of this pool or this user is in force, in words; "" if none is.
std::string limit_text(const Session& session);

// Why a register call of that length was refused, in words, when held bytes are registered and referenced.
// legitimate: nothing idle could have been evicted for it.
struct Refusal {
  bool legitimate;
  std::string why;
};
bool is_refusal(pinrail_status_t status);
Refusal explain_refusal(const Session& session, pinrail_status_t status, size_t length, uint64_t held);

}  // namespace pinrail::perf

#endif
