// SPDX-License-Identifier: BSD-3-Clause
// few_descriptors.h - a time in which this process can open no files, or only a few.
#ifndef PINRAIL_TEST_SUPPORT_FEW_DESCRIPTORS_H
#define PINRAIL_TEST_SUPPORT_FEW_DESCRIPTORS_H

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

namespace pinrail::test {

class FewDescriptors {
 public:
  // left: how many can be opened.
  explicit FewDescriptors(rlim_t left = 0) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = dup(STDIN_FILENO);
    EXPECT_GE(lowest_free, 0);
    ::close(lowest_free);
    const rlimit few{static_cast<rlim_t>(lowest_free) + left, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

}  // namespace pinrail::test

#endif
