// SPDX-License-Identifier: BSD-3-Clause
// command_line_test.cc - what the tools' command lines accept, print and refuse.
#include "contrib/tools/common/command_line.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

#include "contrib/tools/common/reasons.h"
#include "contrib/tools/common/text.h"
#include "contrib/tools/info/options.h"
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

// What pinrail_info shows of what, on a snapshot of a test's own.

constexpr pinrail_enum_value_t kValues[] = {{0, "no"}, {1, "yes"}, {0, nullptr}};
constexpr const char* kSynonyms[] = {"rcache_a_keep", "mpool_a_hold", nullptr};

pinrail_param_t declared(const char* name, pinrail_param_type_t type, int level) {
  pinrail_param_t it{};
  it.size = sizeof(it);
  it.name = name;
  it.fallback = "no";
  it.help = "Says: \"keep\".";
  it.type = type;
  it.scope = PINRAIL_SCOPE_SETTABLE;
  it.level = level;
  return it;
}

class InfoPrint : public testing::Test {
 protected:
  InfoPrint() {
    keep_.values = kValues;
    keep_.synonyms = kSynonyms;
    add("mpool", "a", "mpool_a_keep", &keep_);
    add("mpool", "b", "mpool_b_depth", &depth_);
    add("mpool", "", "mpool", &list_);
    add("", "", "leave_pinned", &global_);
    snapshot_.params[0].value = "yes";
    snapshot_.params[0].source = PINRAIL_SOURCE_FILE;
    snapshot_.params[0].source_file = "/a:b.conf";
    snapshot_.params[0].source_line = 7;
    add_component("a", PINRAIL_SUCCESS, "");
    add_component("b", PINRAIL_ERR_NOT_AVAILABLE, "does not open: NOT_AVAILABLE");
    snapshot_.machine.source = "no source";
  }

  void add(const char* framework, const char* component, const char* name, const pinrail_param_t* declaration) {
    snapshot_.params.push_back({sizeof(pinrail_param_info_t),
                                name,
                                framework,
                                component,
                                "no",
                                {},
                                PINRAIL_SOURCE_DEFAULT,
                                "",
                                0,
                                declaration});
  }
  void add_component(const char* name, pinrail_status_t status, const char* reason) {
    snapshot_.components.push_back(
        {sizeof(pinrail_component_info_t), "mpool", name, "1.0.0", "For tests.", "/x.so", reason, 5, 1, status});
  }

  template <typename Print>
  std::string printed(Print print) {
    std::ostringstream out;
    print(options_, snapshot_, out);
    return out.str();
  }
  std::string text() { return printed(print_text); }
  std::string parsable() { return printed(print_parsable); }
  std::string json() {
    return printed([](const Options& options, const Snapshot& snapshot, std::ostream& out) {
      tools::print(document_of(options, snapshot), out);
    });
  }

  static bool has(const std::string& all, const std::string& part) { return all.find(part) != std::string::npos; }

  pinrail_param_t keep_ = declared("keep", PINRAIL_TYPE_ENUM, 3), depth_ = declared("depth", PINRAIL_TYPE_INT, 9),
                  list_ = declared("", PINRAIL_TYPE_STRING, 2),
                  global_ = declared("leave_pinned", PINRAIL_TYPE_BOOL, 1);
  Snapshot snapshot_;
  Options options_;
};

TEST_F(InfoPrint, the_overview_counts_parameters_by_level_and_shows_none) {
  const std::string shown = text();
  EXPECT_TRUE(has(shown, "level 1           1\n") && has(shown, "level 3           1\n")) << shown;
  EXPECT_TRUE(has(shown, "levels 4 to 9     1\n")) << shown;
  EXPECT_FALSE(has(shown, "mpool_a_keep")) << shown;
}

TEST_F(InfoPrint, a_component_shows_whether_it_is_open_and_if_not_why_and_where) {
  const std::string shown = text();
  EXPECT_TRUE(has(shown, "a                 1.0.0  priority 5  open\n")) << shown;
  EXPECT_TRUE(has(shown, "b                 1.0.0  priority 5  does not open: NOT_AVAILABLE\n")) << shown;
  EXPECT_TRUE(has(shown, "/x.so")) << shown;
}

TEST_F(InfoPrint, a_parameter_shows_all_that_is_known_of_it) {
  options_.params = {{"mpool", "a"}};
  const std::string shown = text();
  EXPECT_TRUE(has(shown, "mpool_a_keep = yes  (file /a:b.conf line 7)\n    level 3, enum, settable, default no\n"))
      << shown;
  EXPECT_TRUE(has(shown, "values: no (0), yes (1)\n") && has(shown, "old names: rcache_a_keep mpool_a_hold\n"))
      << shown;
  EXPECT_FALSE(has(shown, "mpool_b")) << shown;
}

TEST_F(InfoPrint, parameters_above_the_level_are_counted_and_shown_when_asked_for) {
  options_.params = {{"mpool", kAll}};
  EXPECT_TRUE(has(text(), "(1 more at higher levels: --level 9)"));
  options_.level = kHighestLevel;
  EXPECT_TRUE(has(text(), "mpool_b_depth"));
  EXPECT_FALSE(has(text(), "higher levels"));
}

TEST_F(InfoPrint, parsable_lines_are_filed_by_framework_component_and_short_name) {
  options_.all = true;
  const std::string shown = parsable();
  EXPECT_TRUE(has(shown, "\nmca:mpool:a:param:keep:value:yes\nmca:mpool:a:param:keep:source:file\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:a:param:keep:source_file:\"/a:b.conf\"\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:a:param:keep:source_line:7\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:a:param:keep:enumerator:value:1:yes\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:a:param:keep:synonym:mpool_a_hold\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:a:param:keep:help:\"Says: \\\"keep\\\".\"\n")) << shown;
  EXPECT_TRUE(has(shown, "mca:mpool:base:param:mpool:value:no\n")) << "a selection list";
  EXPECT_TRUE(has(shown, "mca:mca:base:param:leave_pinned:value:no\n")) << "one of the base";
  EXPECT_TRUE(has(shown, "mca:mpool:b:status:NOT_AVAILABLE\n")) << shown;
}

TEST_F(InfoPrint, json_says_the_same) {
  options_.params = {{"mpool", "a"}};
  const std::string shown = json();
  EXPECT_TRUE(has(shown, "\"name\": \"mpool_a_keep\",") && has(shown, "\"short_name\": \"keep\",")) << shown;
  EXPECT_TRUE(has(shown, "\"source_line\": 7,") && has(shown, "\"help\": \"Says: \\\"keep\\\".\"")) << shown;
  EXPECT_FALSE(has(shown, "\"build\"")) << "only what was asked for";
}

TEST_F(InfoPrint, a_filter_that_nothing_answers_to_names_what_would) {
  std::string why;
  options_.params = {{"mpool", "a"}, {"mca", "base"}, {kAll, kAll}};
  EXPECT_TRUE(check_filters(options_, snapshot_, &why)) << why;
  options_.params = {{"mpol", "a"}};
  EXPECT_FALSE(check_filters(options_, snapshot_, &why));
  EXPECT_EQ(why, "--param mpol: no such framework; try all, mpool, mca");
  options_.params = {{"mpool", "c"}};
  EXPECT_FALSE(check_filters(options_, snapshot_, &why));
  EXPECT_EQ(why, "--param mpool c: no such component; try all, a, b, base");
}

}  // namespace
}  // namespace pinrail::info
