// SPDX-License-Identifier: BSD-3-Clause
// A main for tests that need something of the machine: a run in which anything was skipped says so to make check.
#include <gtest/gtest.h>

int main(int argc, char** argv) {
  constexpr int kSkipped = 77;  // automake's word
  ::testing::InitGoogleTest(&argc, argv);
  const int result = RUN_ALL_TESTS();
  const bool skipped = ::testing::UnitTest::GetInstance()->skipped_test_count() > 0;
  return result == 0 && skipped ? kSkipped : result;
}
