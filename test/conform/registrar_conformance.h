// SPDX-License-Identifier: BSD-3-Clause
// registrar_conformance.h - the checks of registrars (test/conform/suite/registrar.h) as cases of GoogleTest. A
// registrar joins with one small file that describes it and says JOIN_REGISTRARS(its_name, subject).
//
// Threads  as GoogleTest runs them: one case at a time.
#ifndef PINRAIL_TEST_CONFORM_REGISTRAR_CONFORMANCE_H
#define PINRAIL_TEST_CONFORM_REGISTRAR_CONFORMANCE_H

#include <gtest/gtest.h>

#include <ostream>
#include <tuple>

#include "test/conform/suite/registrar.h"

namespace pinrail::test {

inline void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }
inline void PrintTo(const RegistrarCheck& check, std::ostream* out) { *out << check.claim; }

class RegistrarConformance : public ::testing::TestWithParam<std::tuple<Subject, RegistrarCheck>> {};

TEST_P(RegistrarConformance, keeps) {
  conform::Verdict verdict;
  run_registrar_check(std::get<0>(GetParam()), std::get<1>(GetParam()), &verdict);
  EXPECT_TRUE(verdict.kept()) << "rule " << verdict.rule << ": " << verdict.words;
  if (verdict.kept() && !verdict.skipped.empty()) GTEST_SKIP() << verdict.skipped;
}

// Whether the device, or the processor, sees the contents of that seed (see memory.h).
inline ::testing::AssertionResult device_sees(const Registration& registration, uint64_t seed, size_t offset,
                                              size_t length) {
  const std::string differs = device_differs(registration, seed, offset, length);
  return differs.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << differs;
}
inline ::testing::AssertionResult processor_sees(const Mapping& mapping, uint64_t seed, size_t offset, size_t length) {
  const std::string differs = processor_differs(mapping, seed, offset, length);
  return differs.empty() ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << differs;
}

#define JOIN_REGISTRARS(name, subject)                                                                    \
  INSTANTIATE_TEST_SUITE_P(                                                                               \
      name, RegistrarConformance,                                                                         \
      ::testing::Combine(::testing::Values(subject), ::testing::ValuesIn(registrar_checks_for(subject))), \
      [](const auto& one) { return std::string(std::get<1>(one.param).claim); })

}  // namespace pinrail::test

#endif
