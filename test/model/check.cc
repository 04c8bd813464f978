// SPDX-License-Identifier: BSD-3-Clause
#include "test/model/check.h"

#include <gtest/gtest.h>

#include <cstdio>

namespace pinrail::model {

void expect_right(const Scenario& scenario) {
  const Outcome outcome = explore(scenario);
  std::printf("             %llu states, %llu ends, %llu executions\n", static_cast<unsigned long long>(outcome.states),
              static_cast<unsigned long long>(outcome.paths), static_cast<unsigned long long>(outcome.replays));
  std::string trace;
  for (const std::string& line : outcome.trace) trace += "\n  " + line;
  EXPECT_EQ(outcome.violation, "") << trace;
  if (outcome.violation.empty()) {
    EXPECT_TRUE(outcome.complete) << "too many states to visit all of them";
  }
}

}  // namespace pinrail::model
