// SPDX-License-Identifier: BSD-3-Clause
// info_options_test.cc - the command line of pinrail_info, and fields of its parsable output.
#include <getopt.h>
#include <gtest/gtest.h>

#include <vector>

#include "contrib/tools/info/options.h"
#include "contrib/tools/info/print.h"

namespace pinrail::info {
namespace {

// "" or why the command line is wrong.
std::string parse(std::vector<const char*> words, Options* options) {
  words.insert(words.begin(), "pinrail_info");
  words.push_back(nullptr);
  std::string why;
  optind = 0;  // glibc's way to begin anew
  const bool right = parse_options(static_cast<int>(words.size()) - 1, const_cast<char**>(words.data()), options, &why);
  EXPECT_EQ(right, why.empty());
  return why;
}

std::string why_wrong(std::vector<const char*> words) {
  Options options;
  return parse(std::move(words), &options);
}

TEST(InfoOptions, nothing_asks_for_the_overview) {
  Options options;
  EXPECT_EQ(parse({}, &options), "");
  EXPECT_EQ(options.format, Format::text);
  EXPECT_FALSE(options.lists_params());
}

TEST(InfoOptions, all_means_the_highest_level_unless_one_is_given) {
  Options all, some;
  EXPECT_EQ(parse({"--all"}, &all), "");
  EXPECT_EQ(all.highest_level(), 9);
  EXPECT_EQ(parse({"-a", "--level", "4"}, &some), "");
  EXPECT_EQ(some.highest_level(), 4);
}

TEST(InfoOptions, param_has_two_arguments_and_may_be_repeated) {
  Options options;
  EXPECT_EQ(parse({"--param", "mpool", "grdma", "--json", "--param", "all", "base"}, &options), "");
  ASSERT_EQ(options.params.size(), 2U);
  EXPECT_EQ(options.params[0].component, "grdma");
  EXPECT_EQ(options.params[1].framework, "all");
  EXPECT_EQ(options.format, Format::json);
  EXPECT_EQ(options.highest_level(), kUsualLevel);
}

TEST(InfoOptions, settings_are_collected) {
  Options options;
  EXPECT_EQ(parse({"--mca", "a", "1", "--mca", "b", "-2"}, &options), "");
  ASSERT_EQ(options.mca.settings().size(), 2U);
  EXPECT_STREQ(options.mca.settings()[1].value, "-2");
}

TEST(InfoOptions, a_wrong_word_is_named) {
  EXPECT_EQ(why_wrong({"--nonsense"}), "--nonsense: there is no such option");
  EXPECT_EQ(why_wrong({"-x"}), "-x: there is no such option");
  EXPECT_EQ(why_wrong({"--json", "word"}), "word: only options are expected");
  EXPECT_EQ(why_wrong({"--level"}), "--level: its argument is missing");
  EXPECT_EQ(why_wrong({"--level", "0"}), "--level 0: give a number from 1 to 9");
  EXPECT_EQ(why_wrong({"--level", "10"}), "--level 10: give a number from 1 to 9");
  EXPECT_EQ(why_wrong({"--param"}), "--param: its argument is missing");
  EXPECT_EQ(why_wrong({"--param", "mpool"}), "--param mpool: the component is missing; give its name or all");
  EXPECT_EQ(why_wrong({"--mca", "name"}), "--mca name: the value is missing");
  EXPECT_EQ(why_wrong({"--mca", "a b", "1"}), "--mca: \"a b\" is not a parameter's name");
  EXPECT_EQ(why_wrong({"--json", "--parsable"}), "--parsable and --json exclude each other");
  EXPECT_EQ(why_wrong({"--all=yes"}), "--all=yes: there is no such option");
}

TEST(InfoOptions, help_and_version_need_no_more) {
  Options help, version;
  EXPECT_EQ(parse({"--help", "--nonsense"}, &help), "");
  EXPECT_EQ(help.action, Action::help);
  EXPECT_EQ(parse({"-V"}, &version), "");
  EXPECT_EQ(version.action, Action::version);
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
