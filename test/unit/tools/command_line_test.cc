// SPDX-License-Identifier: BSD-3-Clause
// command_line_test.cc - what the tools' command lines accept, print and refuse.
#include "contrib/tools/common/program.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "contrib/tools/common/json.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/info/snapshot.h"
#include "test/support/files.h"

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
  EXPECT_EQ(read({"--count", "3", "-a", "--count", "9", "--mca", "a", "1", "--param", "all", "base", "--mca", "b", "-2",
                  "--mca", "c", ""}),
            std::nullopt);
  EXPECT_EQ(count_, 9U);
  EXPECT_TRUE(all_);
  EXPECT_EQ(mca_, (Pairs{{"a", "1"}, {"b", "-2"}, {"c", ""}}));
  EXPECT_EQ(params_, (Pairs{{"all", "base"}}));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLineTest, a_wrong_word_or_value_is_named) {
  for (const char* word : {"--nonsense", "-x", "word"}) {
    expect_wrong({word}, "The following argument was not expected: " + std::string(word));
  }
  expect_wrong({"--name", ""}, "--name: its value is empty");
  for (const char* name : {"a b", ""}) {
    expect_wrong({"--mca", name, "1"}, "--mca: \"" + std::string(name) + "\" is not a parameter's name");
  }
  expect_wrong({"--count"}, "--count is followed by N");
  expect_wrong({"--param"}, "--param is followed by FRAMEWORK COMPONENT");
  expect_wrong({"--mca", "name"}, "--mca is followed by NAME VALUE");
  for (const char* typed : {"0", "10", "-1", "+1", "1x", " 1", "0x1", "1.0", "", "18446744073709551616"}) {
    expect_wrong({"--count", typed}, "--count: \"" + std::string(typed) + "\" is no number from 1 to 9");
  }
  EXPECT_EQ(count_, 0U);
  EXPECT_EQ(read({"--name", "x", "--count", "1"}), 2) << "they exclude each other";
  EXPECT_TRUE(test::has(err_.str(), "--name") && test::has(err_.str(), "--count")) << err_.str();
}

TEST_F(CommandLineTest, help_shows_each_option_in_lines_as_wide_as_the_window) {
  line_.flag("--long", "A sentence of many words that no window of forty characters shows in one line, nor of eighty.",
             &all_);
  for (const size_t width : {40, 80, 132}) {
    setenv("COLUMNS", std::to_string(width).c_str(), 1);
    out_.str("");
    for (const char* word : {"-h", "--help"}) EXPECT_EQ(read({word}), 0);
    for (const char* wanted : {"Usage: tool", "-a, --all", "--count N", "--param FRAMEWORK COMPONENT",
                               "--mca NAME VALUE", "-h, --help", "-V, --version", "Exit status: 0."}) {
      EXPECT_TRUE(test::has(out_.str(), wanted)) << wanted << " in\n" << out_.str();
    }
    std::istringstream lines(out_.str());
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), width) << line;
  }
  for (const char* typed : {"", "0", "-5", "wide"}) {
    setenv("COLUMNS", typed, 1);
    EXPECT_EQ(text_width(), 100U) << typed;
  }
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
