// SPDX-License-Identifier: BSD-3-Clause
// params_test.cc - parameters and listings through the API, as a program sees them.
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <set>
#include <string>
#include <vector>

#include "test/support/sized.h"

namespace {

class ParamsFace : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(start({}), PINRAIL_SUCCESS); }
  void TearDown() override { EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS); }

  static pinrail_status_t start(const std::vector<pinrail_setting_t>& settings) {
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = settings.data();
    options.setting_count = settings.size();
    return pinrail_init(&options);
  }

  static pinrail_param_info_t info(const char* name) {
    auto it = pinrail::test::sized<pinrail_param_info_t>();
    EXPECT_EQ(pinrail_param_find(name, &it), PINRAIL_SUCCESS) << name;
    return it;
  }
};

TEST_F(ParamsFace, every_parameter_is_listed_once_in_its_place) {
  auto it = pinrail::test::sized<pinrail_param_info_t>();
  std::set<std::string> names;
  std::string before;
  for (size_t i = 0; i < pinrail_param_count(); ++i) {
    ASSERT_EQ(pinrail_param_at(i, &it), PINRAIL_SUCCESS);
    EXPECT_TRUE(names.insert(it.name).second) << it.name;
    const std::string place = std::string(it.framework) + '\1' + it.component + '\1' + it.name;
    EXPECT_LT(before, place);
    before = place;
    EXPECT_STREQ(info(it.name).value, it.value);
    EXPECT_STRNE(it.declaration->help, "") << it.name;
  }
  EXPECT_EQ(pinrail_param_at(pinrail_param_count(), &it), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(names.count("mpool_grdma_size_limit"), 1U);
}

TEST_F(ParamsFace, a_parameter_is_found_by_its_old_name_too) {
  EXPECT_STREQ(info("rcache_grdma_size_limit").name, "mpool_grdma_size_limit");
  EXPECT_STREQ(info("mpool_grdma_size_limit").framework, "mpool");
  EXPECT_STREQ(info("mpool_grdma_size_limit").component, "grdma");
  EXPECT_EQ(info("mpool_grdma_size_limit").source, PINRAIL_SOURCE_DEFAULT);
  EXPECT_EQ(info("mpool_grdma_size_limit").source_line, 0) << "a default stands in no file";
  auto it = pinrail::test::sized<pinrail_param_info_t>();
  EXPECT_EQ(pinrail_param_find("mpool_grdma_nothing", &it), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(ParamsFace, settable_ones_are_set_and_others_are_not) {
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbose", "10"), PINRAIL_SUCCESS);
  EXPECT_EQ(info("mpool_grdma_verbose").typed.i, 10);
  EXPECT_EQ(info("mpool_grdma_verbose").source, PINRAIL_SOURCE_API);
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbose", "loud"), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbose", "101"), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_param_set("mpool_grdma_size_limit", "1G"), PINRAIL_ERR_PERM);
  EXPECT_EQ(pinrail_param_set("mpool_grdma_nothing", "1"), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(info("mpool_grdma_verbose").typed.i, 10);
}

TEST_F(ParamsFace, wrong_arguments_are_refused) {
  pinrail_param_info_t it{};
  EXPECT_EQ(pinrail_param_find("leave_pinned", &it), PINRAIL_ERR_BAD_PARAM) << "size is 0";
  EXPECT_EQ(pinrail_param_find(nullptr, &it), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_param_set(nullptr, "1"), PINRAIL_ERR_BAD_PARAM);
  pinrail_component_info_t component{};
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_ERR_BAD_PARAM) << "size is 0";
  component.size = sizeof(component.size);
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_SUCCESS) << "it has room for its size alone";
}

TEST_F(ParamsFace, components_are_listed_with_what_became_of_them) {
  auto it = pinrail::test::sized<pinrail_component_info_t>();
  std::set<std::string> names;
  for (size_t i = 0; pinrail_component_at(i, &it) == PINRAIL_SUCCESS; ++i) {
    names.insert(std::string(it.framework) + "_" + it.name);
    EXPECT_STRNE(it.path, "");
    const bool open = it.selected != 0 && it.status == PINRAIL_SUCCESS;
    const bool has_reason = !std::string(it.reason).empty();
    EXPECT_TRUE(open || has_reason) << it.name;
    // A monitor may be open and not at work.
    EXPECT_TRUE(!open || !has_reason || std::string(it.framework) == "monitor") << it.name << ": " << it.reason;
  }
  EXPECT_EQ(names.size(), pinrail_component_count());
  EXPECT_EQ(names.count("mpool_grdma"), 1U);
  EXPECT_EQ(names.count("rcache_vma"), 1U);
}

TEST(ParamsFaceOutside, there_is_nothing_before_init_and_after_finalize) {
  EXPECT_EQ(pinrail_param_count(), 0U);
  EXPECT_EQ(pinrail_component_count(), 0U);
  auto it = pinrail::test::sized<pinrail_param_info_t>();
  EXPECT_EQ(pinrail_param_at(0, &it), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_param_find("leave_pinned", &it), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_param_set("leave_pinned", "1"), PINRAIL_ERR_NOT_FOUND);
  auto component = pinrail::test::sized<pinrail_component_info_t>();
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_ERR_NOT_FOUND);
}

TEST(ParamsFaceOutside, the_facts_of_the_build_are_always_there) {
  std::set<std::string> names;
  for (size_t i = 0; pinrail_build_at(i) != nullptr; ++i) names.insert(pinrail_build_at(i)->name);
  for (const char* name : {"version", "sysconfdir", "pkglibdir"}) EXPECT_EQ(names.count(name), 1U) << name;
}

TEST(ParamsFaceOutside, every_source_has_a_name) {
  std::set<std::string> names;
  for (const auto source : {PINRAIL_SOURCE_DEFAULT, PINRAIL_SOURCE_FILE, PINRAIL_SOURCE_ENVIRONMENT,
                            PINRAIL_SOURCE_COMMAND_LINE, PINRAIL_SOURCE_API, PINRAIL_SOURCE_OVERRIDE}) {
    names.insert(pinrail_param_source_name(source));
  }
  EXPECT_EQ(names.size(), 6U);
}

TEST(ParamsFaceOutside, a_malformed_setting_stops_the_start_and_nothing_is_left) {
  const pinrail_setting_t setting = {"mpool_grdma_size_limit", "lots"};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = &setting;
  options.setting_count = 1;
  EXPECT_EQ(pinrail_init(&options), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_param_count(), 0U);
}

}  // namespace
