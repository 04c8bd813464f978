// SPDX-License-Identifier: BSD-3-Clause
#include "test/model/explorer.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

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

// Main() of the model's programs. They are built without sanitizers whatever the rest is built with, so that a build
// with one of them has nothing new to see here.

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* const sanitizers = std::getenv("PINRAIL_SANITIZE");
  if (sanitizers != nullptr && *sanitizers != 0) {
    std::puts("SKIP: the same as in a build without sanitizers");
    return 77;
  }
  return RUN_ALL_TESTS();
}
