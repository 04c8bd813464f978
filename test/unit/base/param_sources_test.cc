// SPDX-License-Identifier: BSD-3-Clause
// param_sources_test.cc - who sets a parameter, and who wins.
#include <sys/stat.h>
#include <unistd.h>

#include <functional>

#include "test/support/cases.h"
#include "test/unit/base/fixtures.h"

namespace pinrail::param {
namespace {

using test::has;
using test::said_anew_by;

class ParamSources : public ParamTest {
 protected:
  static constexpr const char* kName = "mpool_test_x";

  // Each source, weakest first, and how it sets a value.
  struct Source {
    const char* what;
    std::function<void(const std::string&)> set;
  };
  std::vector<Source> all_sources() {
    const auto to_file = [this](const std::string& path) {
      return [this, path](const std::string& value) {
        folder_.write(path.substr(path.rfind('/') + 1), std::string(kName) + " = " + value + "\n");
      };
    };
    const auto to_environment = [this](const char* prefix) {
      return [this, prefix](const std::string& value) {
        sources_.environment.push_back(std::string(prefix) + kName + "=" + value);
      };
    };
    return {{"the caller's defaults",
             [this](const std::string& v) {
               sources_.defaults.push_back({kName, v});
             }},
            {"the site's file", to_file(sources_.site_file)},
            {"the user's file", to_file(sources_.user_file)},
            {"the last listed file", to_file(folder_.path("last.conf"))},
            {"the first listed file", to_file(folder_.path("first.conf"))},
            {"the environment", to_environment("PINRAIL_MCA_")},
            {"the environment with the stronger prefix", to_environment("FOO_MCA_")},
            {"the program",
             [this](const std::string& v) {
               sources_.settings.push_back({kName, v});
             }},
            {"the override file", to_file(sources_.override_file)}};
  }

  void list_files() {
    folder_.write("first.conf", "");
    folder_.write("last.conf", "");
    sources_.environment.push_back("PINRAIL_MCA_mca_base_param_files=" + folder_.path("first.conf") + ":" +
                                   folder_.path("last.conf"));
  }
};

class EachPairOfSources : public ParamSources, public testing::WithParamInterface<size_t> {};

TEST_F(ParamSources, a_malformed_value_is_said_also_where_a_stronger_source_hides_it) {
  folder_.write("user.conf", "mpool_test_n = many\n");
  sources_.environment.push_back("PINRAIL_MCA_mpool_test_n=7");
  const std::string said = said_anew_by([this] {
    ASSERT_TRUE(read().ok());
    EXPECT_TRUE(declare(declaration("n", PINRAIL_TYPE_INT, "1")).ok());
  });
  EXPECT_EQ(value("mpool_test_n"), "7");
  EXPECT_EQ(test::times(said, "\"many\" for parameter mpool_test_n, from " + folder_.path("user.conf") + " line 1"), 1U)
      << said;
  EXPECT_TRUE(has(said, "because the environment overrides it")) << said;
}

TEST_P(EachPairOfSources, the_stronger_one_decides) {
  list_files();
  const std::vector<Source> sources = all_sources();
  const Source& weaker = sources.at(GetParam());
  const Source& stronger = sources.at(GetParam() + 1);
  SCOPED_TRACE(std::string(stronger.what) + " over " + weaker.what);
  // The stronger one first: what was set later must not win by being later.
  stronger.set("stronger");
  weaker.set("weaker");
  start();
  EXPECT_EQ(value(), "stronger");
}

TEST_P(EachPairOfSources, the_weaker_one_alone_is_heard) {
  list_files();
  all_sources().at(GetParam()).set("alone");
  start();
  EXPECT_EQ(value(), "alone");
}

INSTANTIATE_TEST_SUITE_P(ParamSources, EachPairOfSources, testing::Range<size_t>(0, 8));

TEST_F(ParamSources, a_default_holds_while_nothing_is_set) {
  start();
  EXPECT_EQ(value(), "default");
  EXPECT_EQ(info(kName).source, PINRAIL_SOURCE_DEFAULT);
  EXPECT_EQ(registry_.describe(kName), "default, from the default");
}

TEST_F(ParamSources, the_callers_default_replaces_the_default_and_stays_one) {
  sources_.defaults = {{kName, "callers"}};
  start();
  EXPECT_EQ(value(), "callers");
  EXPECT_EQ(info(kName).source, PINRAIL_SOURCE_DEFAULT);
}

TEST_F(ParamSources, a_value_knows_its_file_and_line) {
  folder_.write("user.conf", "# comment\nmpool_test_x = 1\nmpool_test_x = 2\n");
  start();
  EXPECT_EQ(value(), "2") << "of equal sources the later one";
  EXPECT_EQ(info(kName).source, PINRAIL_SOURCE_FILE);
  EXPECT_EQ(info(kName).source_file, sources_.user_file);
  EXPECT_EQ(info(kName).source_line, 3);
  EXPECT_EQ(registry_.describe(kName), "2, from " + sources_.user_file + " line 3");
}

TEST_F(ParamSources, environment_and_command_line_and_override_are_told_apart) {
  sources_.environment = {"PINRAIL_MCA_mpool_test_x=1", "HOME=/"};
  sources_.settings = {{"mpool_test_y", "2"}};
  folder_.write("override.conf", "mpool_test_z = 3\n");
  start();
  ASSERT_TRUE(declare(declaration("y", PINRAIL_TYPE_INT, "0")).ok());
  ASSERT_TRUE(declare(declaration("z", PINRAIL_TYPE_INT, "0")).ok());
  EXPECT_EQ(info(kName).source, PINRAIL_SOURCE_ENVIRONMENT);
  EXPECT_EQ(info("mpool_test_y").source, PINRAIL_SOURCE_COMMAND_LINE);
  EXPECT_EQ(info("mpool_test_z").source, PINRAIL_SOURCE_OVERRIDE);
  EXPECT_EQ(registry_.describe("mpool_test_z"), "3, from the override file " + sources_.override_file + " line 1");
}

TEST_F(ParamSources, a_variable_with_nothing_behind_the_prefix_or_no_value_is_no_setting) {
  sources_.environment = {"PINRAIL_MCA_=1", "PINRAIL_MCA_mpool_test_x", "PINRAIL_MCA", ""};
  start();
  EXPECT_EQ(value(), "default");
}

TEST_F(ParamSources, listed_files_may_be_separated_by_commas) {
  const std::string a = folder_.write("a.conf", "mpool_test_x = a\n");
  const std::string b = folder_.write("b.conf", "mpool_test_x = b\nmpool_test_y = 7\n");
  sources_.settings = {{"mca_base_param_files", a + "," + b}};
  start();
  ASSERT_TRUE(declare(declaration("y", PINRAIL_TYPE_INT, "0")).ok());
  EXPECT_EQ(value(), "a");
  EXPECT_EQ(value("mpool_test_y"), "7");
  EXPECT_EQ(value("mca_base_param_files"), a + "," + b);
}

TEST_F(ParamSources, the_list_of_files_may_come_from_the_users_file) {
  const std::string a = folder_.write("a.conf", "mpool_test_x = a\n");
  folder_.write("user.conf", "mpool_test_x = user\nmca_base_param_files = " + a + "\n");
  start();
  EXPECT_EQ(value(), "a");
}

TEST_F(ParamSources, a_listed_file_does_not_change_the_list) {
  const std::string b = folder_.write("b.conf", "mpool_test_x = b\n");
  const std::string a = folder_.write("a.conf", "mca_base_param_files = " + b + "\n");
  sources_.settings = {{"mca_base_param_files", a}};
  const std::string said = said_anew_by([this] { start(); });
  EXPECT_EQ(value(), "default");
  EXPECT_EQ(value("mca_base_param_files"), a);
  EXPECT_TRUE(has(said, "nested file list") && has(said, a + " line 1")) << said;
}

TEST_F(ParamSources, a_listed_file_that_is_missing_is_an_error) {
  sources_.settings = {{"mca_base_param_files", folder_.path("none.conf")}};
  const std::string said = said_anew_by([this] { EXPECT_TRUE(read().is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(has(said, folder_.path("none.conf")) && has(said, "No such file")) << said;
}

TEST_F(ParamSources, missing_usual_files_are_no_error) {
  EXPECT_EQ(said_anew_by([this] { EXPECT_TRUE(read().ok()); }), "");
}

TEST_F(ParamSources, a_folder_in_place_of_a_file_is_an_error) {
  sources_.user_file = folder_.path();
  const std::string said = said_anew_by([this] { EXPECT_TRUE(read().is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(has(said, "it is a folder") && has(said, "the user's file")) << said;
}

// The result of read() for a user who may not read the file, and whether a message names the file.
test::ChildAnswer read_without_rights(const std::function<Status()>& read, const std::string& path) {
  if (geteuid() == 0 && setuid(65534) != 0) return {-1};
  Status status = PINRAIL_ERR_ERROR;
  const std::string said = said_anew_by([&] { status = read(); });
  return {status.code(), has(said, path) && has(said, "Permission denied")};
}

TEST_F(ParamSources, another_users_file_does_not_stop_a_program_but_is_told_of) {
  folder_.write("user.conf", "mpool_test_x = 1\n");
  ASSERT_EQ(chmod(sources_.user_file.c_str(), 0), 0);
  sources_.site_file = sources_.override_file = "";
  const auto body = [this] { return read_without_rights([this] { return read(); }, sources_.user_file); };
  const test::ChildAnswer answer = test::answer_of(body);
  EXPECT_EQ(answer[0], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[1], 1);
}

TEST_F(ParamSources, a_sites_file_that_may_not_be_read_is_an_error) {
  folder_.write("override.conf", "mpool_test_x = 1\n");
  ASSERT_EQ(chmod(sources_.override_file.c_str(), 0), 0);
  sources_.site_file = sources_.user_file = "";
  const auto body = [this] { return read_without_rights([this] { return read(); }, sources_.override_file); };
  const test::ChildAnswer answer = test::answer_of(body);
  EXPECT_EQ(answer[0], PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer[1], 1);
}

TEST_F(ParamSources, a_malformed_line_is_an_error_with_file_and_line) {
  folder_.write("site.conf", "a = 1\nthis is no setting\n");
  const std::string said = said_anew_by([this] { EXPECT_TRUE(read().is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(has(said, sources_.site_file + " line 2 has no =")) << said;
}

TEST_F(ParamSources, a_bad_file_does_not_hide_what_others_say) {
  folder_.write("site.conf", "nonsense\n");
  folder_.write("override.conf", "nonsense\n");
  const std::string said = said_anew_by([this] { EXPECT_FALSE(read().ok()); });
  EXPECT_TRUE(has(said, sources_.site_file) && has(said, sources_.override_file)) << said;
}

TEST_F(ParamSources, a_malformed_value_names_value_parameter_source_and_what_would_do) {
  folder_.write("user.conf", "\nmpool_test_n = many\n");
  ASSERT_TRUE(read().ok());
  const std::string said =
      said_anew_by([this] { EXPECT_TRUE(declare(declaration("n", PINRAIL_TYPE_INT, "0")).is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(has(said, "\"many\" for parameter mpool_test_n, from " + sources_.user_file + " line 2")) << said;
  EXPECT_TRUE(has(said, "is not a whole number") && has(said, "give a whole number")) << said;
  pinrail_param_info_t info{};
  EXPECT_TRUE(registry_.find("mpool_test_n", &info).is(PINRAIL_ERR_NOT_FOUND)) << "nothing takes its place";
}

TEST_F(ParamSources, of_a_table_every_malformed_value_is_named) {
  sources_.environment = {"PINRAIL_MCA_mpool_test_a=x", "PINRAIL_MCA_mpool_test_b=y"};
  ASSERT_TRUE(read().ok());
  const pinrail_param_t table[] = {declaration("a", PINRAIL_TYPE_INT, "0"), declaration("b", PINRAIL_TYPE_INT, "0"),
                                   declaration("c", PINRAIL_TYPE_INT, "0")};
  const std::string said =
      said_anew_by([&] { EXPECT_TRUE(registry_.declare("mpool", "test", table, 3).is(PINRAIL_ERR_BAD_PARAM)); });
  EXPECT_TRUE(has(said, "mpool_test_a") && has(said, "mpool_test_b")) << said;
  EXPECT_EQ(registry_.count(), 3U) << "the base's own; an error declares nothing of the table";
}

TEST_F(ParamSources, this_process_has_its_environment_and_the_sites_files) {
  const Sources sources = process_sources();
  EXPECT_EQ(sources.environment_prefixes.at(0), "PINRAIL_MCA_");
  EXPECT_FALSE(sources.environment.empty());
  EXPECT_TRUE(has(sources.site_file, "/pinrail-mca-params.conf"));
  EXPECT_TRUE(has(sources.override_file, "/pinrail-mca-params-override.conf"));
  EXPECT_TRUE(has(sources.user_file, "/.pinrail/mca-params.conf"));
}

}  // namespace
}  // namespace pinrail::param
