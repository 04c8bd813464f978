// SPDX-License-Identifier: BSD-3-Clause
// selection_test.cc - lists of components.
#include <gtest/gtest.h>

#include "base/loader/loader.h"

namespace pinrail::loader {
namespace {

Selection parsed(const char* text) {
  Selection selection;
  std::string why;
  EXPECT_TRUE(Selection::parse(text, &selection, &why).ok()) << text << ": " << why;
  return selection;
}

std::string refusal(const char* text) {
  Selection selection;
  std::string why = "accepted";
  EXPECT_TRUE(Selection::parse(text, &selection, &why).is(PINRAIL_ERR_BAD_PARAM)) << text;
  return why;
}

TEST(Selection, an_empty_list_allows_everything_that_need_not_be_named) {
  for (const char* text : {"", "  ", ",", " , ,"}) {
    EXPECT_TRUE(parsed(text).allows("grdma", 0)) << text;
    EXPECT_FALSE(parsed(text).allows("grdma", -1)) << text;
    EXPECT_FALSE(parsed(text).requests("grdma")) << text;
  }
}

TEST(Selection, none_allows_nothing_and_stands_alone) {
  EXPECT_TRUE(parsed(" none ").is_none());
  EXPECT_FALSE(parsed("none").allows("grdma", 50));
  EXPECT_FALSE(parsed("").is_none() || parsed("grdma").is_none());
  EXPECT_EQ(refusal("none,grdma"), "none stands alone");
  EXPECT_EQ(refusal("^none"), "none stands alone");
}

TEST(Selection, a_list_allows_what_it_names_at_any_priority) {
  const Selection selection = parsed("grdma,rgpusm");
  EXPECT_TRUE(selection.allows("grdma", -1));
  EXPECT_TRUE(selection.allows("rgpusm", 50));
  EXPECT_FALSE(selection.allows("gpusm", 50));
  EXPECT_TRUE(selection.requests("grdma"));
  EXPECT_FALSE(selection.requests("gpusm"));
}

TEST(Selection, white_space_and_empty_and_repeated_names_mean_nothing) {
  const Selection selection = parsed("  grdma ,, rgpusm,\tgrdma, ");
  EXPECT_EQ(selection.names, (std::vector<std::string>{"grdma", "rgpusm"}));
}

TEST(Selection, a_caret_leaves_out_the_whole_list) {
  for (const char* text : {"^grdma,rgpusm", " ^ grdma , rgpusm"}) {
    const Selection selection = parsed(text);
    EXPECT_FALSE(selection.allows("grdma", 50)) << text;
    EXPECT_FALSE(selection.allows("rgpusm", 50)) << text;
    EXPECT_TRUE(selection.allows("gpusm", 50)) << text;
    EXPECT_FALSE(selection.allows("gpusm", -1)) << "left out is not named: " << text;
    EXPECT_FALSE(selection.requests("grdma")) << text;
  }
}

TEST(Selection, a_caret_elsewhere_is_refused) {
  EXPECT_EQ(refusal("grdma,^rgpusm"), "^ must be the first character, and leaves out the whole list");
  EXPECT_EQ(refusal("^grdma,^rgpusm"), "^ must be the first character, and leaves out the whole list");
  EXPECT_EQ(refusal("^"), "^ leaves out nothing");
  EXPECT_EQ(refusal("^ ,"), "^ leaves out nothing");
}

TEST(Selection, what_no_component_is_called_is_refused) {
  EXPECT_EQ(refusal("grdma rgpusm"), "\"grdma rgpusm\" is not a component's name");
  EXPECT_EQ(refusal("grdma;rgpusm"), "\"grdma;rgpusm\" is not a component's name");
  EXPECT_EQ(refusal("../grdma"), "\"../grdma\" is not a component's name");
}

}  // namespace
}  // namespace pinrail::loader
