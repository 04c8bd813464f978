// SPDX-License-Identifier: BSD-3-Clause
// mca_options_test.cc - --mca NAME VALUE on a command line.
#include <gtest/gtest.h>

#include <string>

#include "contrib/tools/common/mca_options.h"

namespace pinrail::tools {
namespace {

char* word(const char* text) { return const_cast<char*>(text); }

TEST(McaOptions, pairs_are_kept_in_their_order_however_many_there_are) {
  McaOptions mca;
  std::string why;
  for (int i = 0; i < 100; ++i) {
    std::string name = "name_" + std::to_string(i), value = std::to_string(i);
    ASSERT_TRUE(mca.add(name, value, &why));
    name = value = "overwritten";
  }
  ASSERT_EQ(mca.settings().size(), 100U);
  for (int i = 0; i < 100; ++i) {
    const pinrail_setting_t& setting = mca.settings()[static_cast<size_t>(i)];
    EXPECT_EQ(setting.name, "name_" + std::to_string(i));
    EXPECT_EQ(setting.value, std::to_string(i));
  }
}

TEST(McaOptions, the_value_is_the_next_word_whatever_it_looks_like) {
  McaOptions mca;
  std::string why;
  char* const argv[] = {word("tool"), word("--mca"), word("leave_pinned"), word("-1"), word("--json")};
  int next = 3;
  ASSERT_TRUE(mca.take(argv[2], 5, argv, &next, &why));
  EXPECT_EQ(next, 4);
  EXPECT_STREQ(mca.settings().at(0).value, "-1");
}

TEST(McaOptions, a_missing_value_is_an_error) {
  McaOptions mca;
  std::string why;
  char* const argv[] = {word("tool"), word("--mca"), word("leave_pinned")};
  int next = 3;
  EXPECT_FALSE(mca.take(argv[2], 3, argv, &next, &why));
  EXPECT_EQ(why, "--mca leave_pinned: the value is missing");
  EXPECT_EQ(next, 3);
  EXPECT_TRUE(mca.settings().empty());
}

TEST(McaOptions, a_name_that_no_parameter_has_is_an_error) {
  McaOptions mca;
  std::string why;
  for (const char* name : {"", "a b", "a=b", "--json", "a-b"}) {
    EXPECT_FALSE(mca.add(name, "1", &why)) << name;
    EXPECT_NE(why.find(std::string("\"") + name + "\""), std::string::npos) << why;
  }
  EXPECT_TRUE(mca.add("empty_value", "", &why)) << "a value may be empty";
}

}  // namespace
}  // namespace pinrail::tools
