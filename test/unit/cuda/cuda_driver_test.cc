// SPDX-License-Identifier: BSD-3-Clause
// What base/cuda/cuda_driver.h and test/fake/cuda/cuda_for_tests.h declare is what the CUDA toolkit declares, and
// nothing in them goes uncompared.
#include <gtest/gtest.h>

#include <fstream>
#include <regex>
#include <sstream>

#include "test/fake/cuda/cuda_for_tests.h"
#include "test/unit/cuda/facts.h"

namespace pinrail::test {

Facts facts_of_ours() {
  Facts facts;
#include "test/unit/cuda/facts.inc"
  facts["cuGetProcAddress"] = words_of<decltype(cuGetProcAddress)>();
  return facts;
}

namespace {

std::string code_of(const char* path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return std::regex_replace(text.str(), std::regex(R"(/\*[^*]*(\*[^*/][^*]*)*\*/)"), "");
}

// The names that they declare or define; tags and names with a version are part of the facts about others.
TEST(CudaDriver, each_name_in_the_headers_is_compared) {
  const std::string code = code_of(PINRAIL_TEST_CUDA_DRIVER_H) + code_of(PINRAIL_TEST_CUDA_FOR_TESTS_H);
  const Facts facts = facts_of_ours();
  const std::regex name(R"(\b(cu[A-Z]\w*|CU\w+)\b)"), part(R"(.*(_v\d+|_st|_enum))");
  size_t seen = 0;
  for (std::sregex_iterator at(code.begin(), code.end(), name), end; at != end; ++at) {
    if (std::regex_match(at->str(), part)) continue;
    EXPECT_EQ(facts.count(at->str()), 1u) << at->str() << " stands in no line of test/unit/cuda/facts.inc";
    ++seen;
  }
  EXPECT_GT(seen, facts.size() / 2);
}

TEST(CudaDriver, each_size_value_and_signature_is_the_toolkits) {
  const Facts ours = facts_of_ours(), theirs = facts_of_toolkit();
  if (theirs.empty()) GTEST_SKIP() << "configure found no cuda.h: there is nothing to compare with";
  EXPECT_EQ(ours.size(), theirs.size());
  for (const auto& [name, fact] : ours) EXPECT_EQ(fact, theirs.at(name)) << name;
}

}  // namespace
}  // namespace pinrail::test
