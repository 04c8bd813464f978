// SPDX-License-Identifier: BSD-3-Clause
// command_line_test.cc - what the tools' command lines accept, print and refuse.
#include "contrib/tools/common/program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "contrib/tools/common/text.h"
#include "contrib/tools/info/snapshot.h"

namespace pinrail::tools {
namespace {

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() {
    line_.flag("-a,--all", "Everything.", &all_);
    line_.number("--count", "N", "How many.", 1, 9, &count_);
    line_.text("--name", "NAME", "Whose.", &name_);
    line_.pairs("--param", "FRAMEWORK COMPONENT", "Which.", &params_);
    line_.exclude("--name", "--count");
  }
  std::optional<int> read(std::vector<const char*> words) {
    words.insert(words.begin(), "tool");
    return line_.read(static_cast<int>(words.size()), words.data(), out_, err_);
  }
  void expect_wrong(const std::vector<const char*>& words, const std::string& why) {
    EXPECT_EQ(read(words), 2);
    EXPECT_EQ(err_.str(), "tool: " + why + "\nTry tool --help.\n");
    EXPECT_EQ(out_.str(), "");
    err_.str("");
  }

  bool all_ = false;
  unsigned count_ = 0;
  std::string name_;
  Pairs params_, mca_;
  std::ostringstream out_, err_;
  CommandLine line_{"tool", "Does it.", "Exit status: 0.", &mca_};
};

TEST_F(CommandLineTest, options_reach_their_places_and_the_last_one_counts) {
  EXPECT_EQ(read({"--count", "3", "-a", "--count", "9"}), std::nullopt);
  EXPECT_EQ(count_, 9U);
  EXPECT_TRUE(all_);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLineTest, options_of_two_values_may_be_repeated_and_take_any_words) {
  EXPECT_EQ(read({"--mca", "a", "1", "--param", "all", "base", "--mca", "b", "-2", "--mca", "c", ""}), std::nullopt);
  EXPECT_EQ(mca_, (Pairs{{"a", "1"}, {"b", "-2"}, {"c", ""}}));
  EXPECT_EQ(params_, (Pairs{{"all", "base"}}));
  EXPECT_STREQ(settings_of(mca_)[1].value, "-2");
}

TEST_F(CommandLineTest, a_wrong_word_is_named) {
  expect_wrong({"--nonsense"}, "The following argument was not expected: --nonsense");
  expect_wrong({"-x"}, "The following argument was not expected: -x");
  expect_wrong({"word"}, "The following argument was not expected: word");
  expect_wrong({"--name", ""}, "--name: its value is empty");
  expect_wrong({"--mca", "a b", "1"}, "--mca: \"a b\" is not a parameter's name");
  expect_wrong({"--mca", "", "1"}, "--mca: \"\" is not a parameter's name");
}

TEST_F(CommandLineTest, a_missing_value_is_named_with_its_option) {
  expect_wrong({"--count"}, "--count is followed by N");
  expect_wrong({"--param"}, "--param is followed by FRAMEWORK COMPONENT");
  expect_wrong({"--mca", "name"}, "--mca is followed by NAME VALUE");
}

TEST_F(CommandLineTest, a_number_is_decimal_digits_within_its_bounds) {
  for (const char* typed : {"0", "10", "-1", "+1", "1x", " 1", "0x1", "1.0", "", "18446744073709551616"}) {
    expect_wrong({"--count", typed}, "--count: \"" + std::string(typed) + "\" is no number from 1 to 9");
  }
  EXPECT_EQ(count_, 0U);
}

TEST_F(CommandLineTest, options_that_exclude_each_other_are_refused) {
  EXPECT_EQ(read({"--name", "x", "--count", "1"}), 2);
  EXPECT_NE(err_.str().find("--name"), std::string::npos);
  EXPECT_NE(err_.str().find("--count"), std::string::npos);
}

TEST_F(CommandLineTest, version_is_that_of_the_library) {
  for (const char* word : {"-V", "--version"}) {
    EXPECT_EQ(read({word, "--nonsense"}), 0);
    EXPECT_EQ(out_.str(), std::string("tool ") + pinrail_version() + "\n");
    out_.str("");
  }
}

// Of one text, for each width; the environment is as before afterwards.
class HelpOf : public CommandLineTest, public testing::WithParamInterface<size_t> {
 protected:
  void SetUp() override { setenv("COLUMNS", std::to_string(GetParam()).c_str(), 1); }
  void TearDown() override { unsetenv("COLUMNS"); }
};

TEST_P(HelpOf, each_option_is_there_and_no_line_is_wider_than_the_window) {
  line_.flag("--long", "A sentence of many words that no window of forty characters shows in one line, nor of eighty.",
             &all_);
  for (const char* word : {"-h", "--help"}) EXPECT_EQ(read({word}), 0);
  for (const char* wanted : {"Usage: tool", "-a, --all", "--count N", "--param FRAMEWORK COMPONENT", "--mca NAME VALUE",
                             "-h, --help", "-V, --version", "Exit status: 0."}) {
    EXPECT_NE(out_.str().find(wanted), std::string::npos) << wanted << " in\n" << out_.str();
  }
  std::istringstream lines(out_.str());
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), GetParam()) << line;
}

INSTANTIATE_TEST_SUITE_P(Widths, HelpOf, testing::Values(40, 80, 132));

TEST(TextWidth, is_that_of_the_environment_and_otherwise_the_usual_one) {
  unsetenv("COLUMNS");
  EXPECT_EQ(text_width(), 100U);
  for (const char* typed : {"", "0", "-5", "wide"}) {
    setenv("COLUMNS", typed, 1);
    EXPECT_EQ(text_width(), 100U) << typed;
  }
  setenv("COLUMNS", "7", 1);
  EXPECT_EQ(text_width(), 40U);
  unsetenv("COLUMNS");
}

TEST(Json, what_is_not_utf8_or_not_finite_is_replaced_and_order_is_kept) {
  std::ostringstream out;
  print({{"b", 0.0 / 0.0}, {"a", "x\x80"}, {"c", UINT64_MAX}}, out);
  EXPECT_EQ(out.str(), "{\n  \"b\": null,\n  \"a\": \"x\xEF\xBF\xBD\",\n  \"c\": 18446744073709551615\n}\n");
}

}  // namespace
}  // namespace pinrail::tools

namespace pinrail::info {
namespace {

TEST(ParsableField, is_quoted_when_its_end_would_not_be_seen) {
  EXPECT_EQ(parsable_field("8M"), "8M");
  EXPECT_EQ(parsable_field(""), "");
  EXPECT_EQ(parsable_field("/a:/b"), "\"/a:/b\"");
  EXPECT_EQ(parsable_field("a\"b\\c"), "\"a\\\"b\\\\c\"");
  EXPECT_EQ(parsable_field("a\nb"), "\"a b\"");
}

}  // namespace
}  // namespace pinrail::info
