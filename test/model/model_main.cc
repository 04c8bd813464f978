// SPDX-License-Identifier: BSD-3-Clause
// main() of the model's programs. They are built without sanitizers whatever the rest is built with, so that a build
// with one of them has nothing new to see here.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* const sanitizers = std::getenv("PINRAIL_SANITIZE");
  if (sanitizers != nullptr && *sanitizers != 0) {
    std::puts("SKIP: the same as in a build without sanitizers");
    return 77;
  }
  return RUN_ALL_TESTS();
}
