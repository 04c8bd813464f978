// SPDX-License-Identifier: BSD-3-Clause
// info_print_test.cc - what pinrail_info shows of what, on a snapshot of a test's own.
#include <gtest/gtest.h>

#include <sstream>

#include "contrib/tools/info/snapshot.h"

namespace pinrail::info {
namespace {

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
