// SPDX-License-Identifier: BSD-3-Clause
// said.h - what the code under test says on stderr.
#ifndef PINRAIL_TEST_SUPPORT_SAID_H
#define PINRAIL_TEST_SUPPORT_SAID_H

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "base/report/report.h"

namespace pinrail::test {

// Runs body and returns what it wrote to stderr. What was said earlier is forgotten first.
template <typename Body>
std::string said_by(Body&& body) {
  report::forget();
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

inline size_t times(std::string_view text, std::string_view part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

inline bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

}  // namespace pinrail::test

#endif
