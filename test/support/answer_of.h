// SPDX-License-Identifier: BSD-3-Clause
// answer_of.h - what a child process of a test answers. That it does is expected.
#ifndef PINRAIL_TEST_SUPPORT_ANSWER_OF_H
#define PINRAIL_TEST_SUPPORT_ANSWER_OF_H

#include <gtest/gtest.h>

#include "test/support/child.h"

namespace pinrail::test {

inline ChildAnswer answer_of(const std::function<ChildAnswer()>& function) {
  ChildAnswer answer{};
  if (in_child(function, &answer)) return answer;
  ADD_FAILURE() << "the child process ended without an answer";
  answer.fill(INT64_MIN);
  return answer;
}

}  // namespace pinrail::test

#endif
