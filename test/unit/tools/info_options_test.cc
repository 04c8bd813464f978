// SPDX-License-Identifier: BSD-3-Clause
// info_options_test.cc - the command line of pinrail_info, and fields of its parsable output.
#include <gtest/gtest.h>

#include <sstream>

#include "contrib/tools/info/options.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {
namespace {

std::string why;  // what the last command line was refused with

std::optional<int> parse(std::vector<const char*> words, Options* options) {
  words.insert(words.begin(), "pinrail_info");
  std::ostringstream out, err;
  const std::optional<int> status = read_options(static_cast<int>(words.size()), words.data(), options, out, err);
  why = err.str();
  return status;
}

TEST(InfoOptions, nothing_asks_for_the_overview) {
  Options options;
  EXPECT_EQ(parse({}, &options), std::nullopt) << why;
  EXPECT_EQ(options.format(), Format::text);
  EXPECT_FALSE(options.lists_params());
}

TEST(InfoOptions, all_means_the_highest_level_unless_one_is_given) {
  Options all, some;
  EXPECT_EQ(parse({"--all"}, &all), std::nullopt) << why;
  EXPECT_EQ(all.highest_level(), 9);
  EXPECT_EQ(parse({"-a", "--level", "4"}, &some), std::nullopt) << why;
  EXPECT_EQ(some.highest_level(), 4);
}

TEST(InfoOptions, param_has_two_arguments_and_may_be_repeated) {
  Options options;
  EXPECT_EQ(parse({"--param", "mpool", "grdma", "--json", "--param", "all", "base"}, &options), std::nullopt) << why;
  ASSERT_EQ(options.params.size(), 2U);
  EXPECT_EQ(options.params[0].second, "grdma");
  EXPECT_EQ(options.params[1].first, "all");
  EXPECT_EQ(options.format(), Format::json);
  EXPECT_EQ(options.highest_level(), kUsualLevel);
}

TEST(InfoOptions, what_contradicts_itself_or_has_no_such_level_is_refused) {
  const std::vector<std::vector<const char*>> wrong = {
      {"--level", "0"}, {"--level", "10"}, {"--json", "--parsable"}, {"--monitors", "--all"}, {"--json", "word"}};
  for (const auto& words : wrong) {
    Options options;
    EXPECT_EQ(parse(words, &options), 2);
    EXPECT_EQ(why.rfind("pinrail_info: ", 0), 0U) << why;
  }
}

TEST(ParsableField, is_quoted_when_its_end_would_not_be_seen) {
  EXPECT_EQ(parsable_field("8M"), "8M");
  EXPECT_EQ(parsable_field(""), "");
  EXPECT_EQ(parsable_field("/a:/b"), "\"/a:/b\"");
  EXPECT_EQ(parsable_field("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(parsable_field("a\nb"), "\"a b\"");
}

}  // namespace
}  // namespace pinrail::info
