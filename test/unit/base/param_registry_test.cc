// SPDX-License-Identifier: BSD-3-Clause
// param_registry_test.cc - who sets a parameter, and who wins; declared parameters: scopes, old names, followed ones,
// names that mean nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "test/support/cases.h"
#include "test/support/threads.h"
#include "test/unit/base/fixtures.h"

namespace pinrail::param {
namespace {

using test::has;
using test::said_anew_by;
using test::times;

constexpr const char* kName = "mpool_test_x";

// Sources, weakest first. Each sets mpool_test_x in its own way.
class EachPairOfSources : public ParamTest, public testing::WithParamInterface<int> {
 protected:
  void list_files() {
    folder_.write("first.conf", "");
    folder_.write("last.conf", "");
    sources_.environment.push_back("PINRAIL_MCA_mca_base_param_files=" + folder_.path("first.conf") + ":" +
                                   folder_.path("last.conf"));
  }
  void set(int source, const std::string& value) {
    const std::string line = std::string(kName) + " = " + value + "\n", variable = std::string(kName) + "=" + value;
    switch (source) {
      case 0: sources_.defaults.push_back({kName, value}); break;
      case 1: folder_.write("site.conf", line); break;
      case 2: folder_.write("user.conf", line); break;
      case 3: folder_.write("last.conf", line); break;
      case 4: folder_.write("first.conf", line); break;
      case 5: sources_.environment.push_back("PINRAIL_MCA_" + variable); break;
      case 6: sources_.environment.push_back("FOO_MCA_" + variable); break;
      case 7: sources_.settings.push_back({kName, value}); break;
      case 8: folder_.write("override.conf", line); break;
    }
  }
};

TEST_P(EachPairOfSources, the_stronger_one_decides) {
  list_files();
  // The stronger one first: what was set later must not win by being later.
  set(GetParam() + 1, "stronger");
  set(GetParam(), "weaker");
  start();
  EXPECT_EQ(value(), "stronger");
}

INSTANTIATE_TEST_SUITE_P(ParamSources, EachPairOfSources, testing::Range(0, 8));

class ParamSources : public ParamTest {
 protected:
  std::string said_by_failing_read() {
    return said_anew_by([this] { EXPECT_TRUE(read().is(PINRAIL_ERR_BAD_PARAM)); });
  }
};

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

TEST_F(ParamSources, a_value_knows_where_it_is_from) {
  sources_.defaults = {{"mpool_test_d", "4"}};
  folder_.write("user.conf", "# comment\nmpool_test_f = 1\nmpool_test_f = 2\n");
  folder_.write("override.conf", "mpool_test_o = 3\n");
  // A variable without a name or a value sets nothing.
  sources_.environment = {"PINRAIL_MCA_mpool_test_e=1", "HOME=/",      "PINRAIL_MCA_=1",
                          "PINRAIL_MCA_mpool_test_x",   "PINRAIL_MCA", ""};
  sources_.settings = {{"mpool_test_s", "2"}};
  start();
  const struct {
    std::string name;
    pinrail_param_source_t source;
    std::string described;
  } rows[] = {
      {"x", PINRAIL_SOURCE_DEFAULT, "default, from the default"},
      {"d", PINRAIL_SOURCE_DEFAULT, "4"},
      {"f", PINRAIL_SOURCE_FILE, "2, from " + sources_.user_file + " line 3"},  // of equal sources the later one
      {"e", PINRAIL_SOURCE_ENVIRONMENT, "1, from the environment"},
      {"s", PINRAIL_SOURCE_COMMAND_LINE, "2, from the program"},
      {"o", PINRAIL_SOURCE_OVERRIDE, "3, from the override file " + sources_.override_file + " line 1"},
  };
  for (const auto& row : rows) {
    if (row.name != "x") {
      ASSERT_TRUE(declare(declaration(row.name.c_str(), PINRAIL_TYPE_INT, "0")).ok());
    }
    const std::string name = "mpool_test_" + row.name;
    EXPECT_EQ(info(name.c_str()).source, row.source) << name;
    EXPECT_EQ(registry_.describe(name).rfind(row.described, 0), 0U) << registry_.describe(name);
  }
  EXPECT_EQ(info("mpool_test_f").source_file, sources_.user_file);
  EXPECT_EQ(info("mpool_test_f").source_line, 3);
}

TEST_F(ParamSources, the_list_of_files_comes_from_any_source_but_a_listed_file) {
  const std::string other = folder_.write("other.conf", "mpool_test_y = 9\n");
  const std::string a = folder_.write("a.conf", "mpool_test_x = a\nmca_base_param_files = " + other + "\n");
  const std::string b = folder_.write("b.conf", "mpool_test_x = b\nmpool_test_z = 7\n");
  folder_.write("user.conf", "mpool_test_x = user\nmca_base_param_files = " + a + "," + b + "\n");
  const std::string said = said_anew_by([this] { start(); });
  ASSERT_TRUE(declare(declaration("y", PINRAIL_TYPE_INT, "0")).ok());
  ASSERT_TRUE(declare(declaration("z", PINRAIL_TYPE_INT, "0")).ok());
  EXPECT_EQ(value(), "a");
  EXPECT_EQ(value("mpool_test_y"), "0");
  EXPECT_EQ(value("mpool_test_z"), "7");
  EXPECT_EQ(value("mca_base_param_files"), a + "," + b);
  EXPECT_TRUE(has(said, "nested file list") && has(said, a + " line 2")) << said;
}

TEST_F(ParamSources, a_missing_file_is_an_error_only_where_it_was_listed) {
  EXPECT_EQ(said_anew_by([this] { EXPECT_TRUE(read().ok()); }), "");
  sources_.settings = {{"mca_base_param_files", folder_.path("none.conf")}};
  const std::string said = said_by_failing_read();
  EXPECT_TRUE(has(said, folder_.path("none.conf")) && has(said, "No such file")) << said;
}

TEST_F(ParamSources, each_bad_file_is_an_error_that_names_file_and_line) {
  sources_.user_file = folder_.path();
  folder_.write("site.conf", "a = 1\nthis is no setting\n");
  folder_.write("override.conf", "nonsense\n");
  const std::string said = said_by_failing_read();
  EXPECT_TRUE(has(said, "it is a folder") && has(said, "the user's file")) << said;
  EXPECT_TRUE(has(said, sources_.site_file + " line 2 has no =")) << said;
  EXPECT_TRUE(has(said, sources_.override_file)) << said;
}

TEST_F(ParamSources, a_file_that_may_not_be_read_is_told_of_and_an_error_unless_it_is_the_users) {
  for (const bool is_users : {true, false}) {
    const std::string path = folder_.write(is_users ? "user.conf" : "override.conf", "mpool_test_x = 1\n");
    ASSERT_EQ(chmod(path.c_str(), 0), 0);
    Sources sources;
    (is_users ? sources.user_file : sources.override_file) = path;
    const test::ChildAnswer answer = test::answer_of([&]() -> test::ChildAnswer {
      if (geteuid() == 0 && setuid(65534) != 0) return {-1};
      Status status = PINRAIL_ERR_ERROR;
      const std::string said = said_anew_by([&] { status = registry_.read_sources(sources); });
      return {status.code(), has(said, path) && has(said, "Permission denied")};
    });
    EXPECT_EQ(answer[0], is_users ? PINRAIL_SUCCESS : PINRAIL_ERR_BAD_PARAM);
    EXPECT_EQ(answer[1], 1);
  }
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

class ParamRegistry : public ParamTest {
 protected:
  std::string finish(const std::vector<std::string>& shipped = {}) {
    return said_anew_by([&] { registry_.finish(shipped); });
  }
};

TEST_F(ParamRegistry, parameters_are_listed_by_framework_component_and_name) {
  ASSERT_TRUE(read().ok());
  const pinrail_param_t b = declaration("b", PINRAIL_TYPE_INT, "2");
  const pinrail_param_t a = declaration("a", PINRAIL_TYPE_INT, "1");
  ASSERT_TRUE(registry_.declare("rcache", "vma", &b, 1).ok());
  ASSERT_TRUE(registry_.declare("mpool", "grdma", &b, 1).ok());
  ASSERT_TRUE(registry_.declare("mpool", "grdma", &a, 1).ok());
  std::string names;
  pinrail_param_info_t info{};
  for (size_t i = 0; registry_.at(i, &info).ok(); ++i) names += std::string(info.name) + " ";
  EXPECT_EQ(names, "leave_pinned mca_base_param_files mca_base_verbose mpool_grdma_a mpool_grdma_b rcache_vma_b ");
  EXPECT_EQ(registry_.count(), 6U);
}

TEST_F(ParamRegistry, a_declaration_may_go_away_once_it_is_made) {
  ASSERT_TRUE(read().ok());
  {
    std::string name = "x", fallback = "two", help = "Help.", synonym = "old_x";
    const std::vector<pinrail_enum_value_t> values = {{1, "one"}, {2, fallback.c_str()}, {0, nullptr}};
    const char* const synonyms[] = {synonym.c_str(), nullptr};
    pinrail_param_t it = declaration(name.c_str(), PINRAIL_TYPE_ENUM, fallback.c_str());
    it.help = help.c_str();
    it.values = values.data();
    it.synonyms = synonyms;
    ASSERT_TRUE(declare(it).ok());
    name = fallback = help = synonym = "?";
  }
  const pinrail_param_t& kept = *info("old_x").declaration;
  EXPECT_STREQ(kept.name, "x");
  EXPECT_STREQ(kept.help, "Help.");
  EXPECT_STREQ(kept.values[1].name, "two");
  EXPECT_EQ(kept.values[2].name, nullptr);
  EXPECT_STREQ(kept.synonyms[0], "old_x");
  EXPECT_EQ(kept.synonyms[1], nullptr);
}

TEST_F(ParamRegistry, a_settable_parameter_takes_what_it_is_given_unless_the_override_file_holds_it) {
  folder_.write("override.conf", "mpool_test_o = 2K\n");
  start();
  ASSERT_TRUE(declare(declaration("s", PINRAIL_TYPE_SIZE, "1K", PINRAIL_SCOPE_SETTABLE)).ok());
  ASSERT_TRUE(declare(declaration("o", PINRAIL_TYPE_SIZE, "1K", PINRAIL_SCOPE_SETTABLE)).ok());
  EXPECT_TRUE(registry_.set("mpool_test_s", "8M").ok());
  EXPECT_EQ(registry_.value("mpool_test_s").u, 8U << 20);
  EXPECT_EQ(registry_.describe("mpool_test_s"), "8M, from a call of the program");
  std::string said = said_anew_by([this] { EXPECT_TRUE(registry_.set("mpool_test_o", "3K").is(PINRAIL_ERR_PERM)); });
  EXPECT_TRUE(has(said, sources_.override_file)) << said;
  EXPECT_EQ(value("mpool_test_o"), "2K");
  said = said_anew_by([this] { EXPECT_TRUE(registry_.set("mca_base_verbos", "3").is(PINRAIL_ERR_NOT_FOUND)); });
  EXPECT_TRUE(has(said, "did you mean mca_base_verbose?")) << said;
}

TEST_F(ParamRegistry, strings_that_were_handed_out_stay_when_the_parameter_is_set) {
  start();
  const pinrail_param_info_t before = info("mpool_test_x");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(registry_.set("mpool_test_x", std::to_string(i)).ok());
  EXPECT_STREQ(before.value, "default");
  EXPECT_STREQ(before.typed.s, "default");
}

TEST_F(ParamRegistry, parameters_are_read_on_many_threads_while_one_sets_them) {
  start();
  ASSERT_TRUE(declare(declaration("n", PINRAIL_TYPE_INT, "0", PINRAIL_SCOPE_SETTABLE)).ok());
  constexpr int kRounds = 2000;
  std::atomic<int> wrong{0};
  const auto reader = [&] {
    const std::atomic<int64_t>* number = registry_.watch("mpool_test_n");
    for (int i = 0; i < kRounds; ++i) {
      pinrail_param_info_t seen{};
      const bool whole = registry_.find("mpool_test_n", &seen).ok() && seen.value == std::to_string(seen.typed.i);
      const int64_t now = number->load(std::memory_order_relaxed);
      if (!whole || now < 0 || now > kRounds || registry_.count() < 2) ++wrong;
    }
  };
  test::Team readers(3, reader);
  for (int i = 1; i <= kRounds; ++i) {
    if (!registry_.set("mpool_test_n", std::to_string(i)).ok()) ++wrong;
  }
  readers.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(registry_.value("mpool_test_n").i, kRounds);
  EXPECT_EQ(registry_.watch("nothing"), nullptr);
}

const char* const kOldPrefixes[] = {"rcache_test_", nullptr};

TEST_F(ParamRegistry, an_old_name_sets_the_parameter_and_is_noted_once) {
  static const char* const kSynonyms[] = {"mpool_test_old", nullptr};
  sources_.environment = {"PINRAIL_MCA_mpool_test_old=7"};
  folder_.write("site.conf", "rcache_test_m = 8\n");
  sources_.settings = {{"rcache_test_k", "x"}};
  ASSERT_TRUE(read().ok());
  pinrail_param_t it = declaration("n", PINRAIL_TYPE_INT, "0");
  it.synonyms = kSynonyms;
  std::string said = said_anew_by([&] { EXPECT_TRUE(declare(it).ok()); });
  EXPECT_EQ(value("mpool_test_n"), "7");
  EXPECT_STREQ(info("mpool_test_old").name, "mpool_test_n");
  EXPECT_EQ(times(said, "mpool_test_old, set by the environment, is an old name of mpool_test_n"), 1U) << said;

  said = said_anew_by([&] { EXPECT_TRUE(declare(declaration("m", PINRAIL_TYPE_INT, "0"), kOldPrefixes).ok()); });
  EXPECT_EQ(value("mpool_test_m"), "8");
  EXPECT_TRUE(has(said, "rcache_test_m") && has(said, "write mpool_test_m")) << said;
  EXPECT_STREQ(info("mpool_test_m").declaration->synonyms[0], "rcache_test_m");

  said = said_anew_by([&] { EXPECT_FALSE(declare(declaration("k", PINRAIL_TYPE_INT, "0"), kOldPrefixes).ok()); });
  EXPECT_TRUE(has(said, "mpool_test_k (by its old name rcache_test_k), from the program")) << said;
  EXPECT_EQ(finish(), "") << "an old name is no unknown one";
}

TEST_F(ParamRegistry, the_stronger_source_decides_whatever_name_it_uses) {
  folder_.write("site.conf", "mpool_test_n = 1\nmpool_test_m = 1\nrcache_test_m = 2\n");
  folder_.write("user.conf", "rcache_test_n = 2\n");
  sources_.environment = {"PINRAIL_MCA_mpool_test_e=1", "PINRAIL_MCA_rcache_test_e=2"};
  ASSERT_TRUE(read().ok());
  said_anew_by([&] {
    for (const char* name : {"n", "m", "e"}) {
      EXPECT_TRUE(declare(declaration(name, PINRAIL_TYPE_INT, "0"), kOldPrefixes).ok());
    }
  });
  EXPECT_EQ(value("mpool_test_n"), "2");
  EXPECT_EQ(value("mpool_test_m"), "2") << "of one file the later line";
  EXPECT_EQ(value("mpool_test_e"), "1") << "the environment has no order: the name before its synonym";
}

TEST_F(ParamRegistry, a_components_verbosity_follows_its_frameworks) {
  const pinrail_param_t verbose = declaration("verbose", PINRAIL_TYPE_INT, "0", PINRAIL_SCOPE_SETTABLE);
  sources_.environment = {"PINRAIL_MCA_mpool_base_verbose=10", "PINRAIL_MCA_mpool_other_verbose=3"};
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(registry_.declare("mpool", "base", &verbose, 1).ok());
  ASSERT_TRUE(registry_.declare("mpool", "test", &verbose, 1).ok());
  ASSERT_TRUE(registry_.declare("mpool", "other", &verbose, 1).ok());
  EXPECT_EQ(value("mpool_test_verbose"), "10");
  EXPECT_EQ(info("mpool_test_verbose").source, PINRAIL_SOURCE_ENVIRONMENT);
  EXPECT_EQ(registry_.describe("mpool_test_verbose"), "10, from the environment (as mpool_base_verbose)");
  EXPECT_EQ(value("mpool_other_verbose"), "3");
  ASSERT_TRUE(registry_.set("mpool_base_verbose", "50").ok());
  EXPECT_EQ(registry_.watch("mpool_test_verbose")->load(), 50);
  EXPECT_EQ(registry_.watch("mpool_other_verbose")->load(), 3);
  ASSERT_TRUE(registry_.set("mpool_test_verbose", "1").ok());
  ASSERT_TRUE(registry_.set("mpool_base_verbose", "20").ok());
  EXPECT_EQ(value("mpool_test_verbose"), "1") << "it was set itself";
}

TEST_F(ParamRegistry, leave_pinned_of_a_component_follows_the_global_one_unless_it_was_set_itself) {
  static constexpr pinrail_enum_value_t kValues[] = {{0, "drop"}, {1, "keep"}, {0, nullptr}};
  const struct {
    const char *own_default, *callers_default, *in_file, *global, *value;
  } rows[] = {
      {"keep", "", "", "", "keep"},        {"keep", "", "", "no", "drop"},   {"drop", "", "keep", "no", "keep"},
      {"drop", "drop", "", "yes", "keep"}, {"keep", "", "", "auto", "keep"},  // a value that the component does not
                                                                              // know
  };
  for (const auto& row : rows) {
    Registry registry;
    Sources sources;
    if (*row.callers_default != 0) sources.defaults = {{"mpool_test_leave_pinned", row.callers_default}};
    if (*row.in_file != 0)
      sources.site_file = folder_.write("site.conf", std::string("mpool_test_leave_pinned = ") + row.in_file);
    if (*row.global != 0) sources.settings = {{"leave_pinned", row.global}};
    pinrail_param_t it = declaration("leave_pinned", PINRAIL_TYPE_ENUM, row.own_default);
    it.values = kValues;
    ASSERT_TRUE(registry.read_sources(sources).ok());
    ASSERT_TRUE(registry.declare("mpool", "test", &it, 1).ok());
    pinrail_param_info_t seen{};
    ASSERT_TRUE(registry.find("mpool_test_leave_pinned", &seen).ok());
    EXPECT_STREQ(seen.value, row.value) << &row - rows;
  }
}

TEST_F(ParamRegistry, an_unknown_name_of_a_known_framework_is_warned_of_once) {
  folder_.write("site.conf", "mpool_test_xx = 1\n");
  sources_.environment = {"PINRAIL_MCA_mpool_test_xx=2", "PINRAIL_MCA_mpool_test_nothing_like_it=2"};
  start();
  const std::string said = finish();
  EXPECT_EQ(times(said, "sets mpool_test_xx,"), 1U) << said;
  EXPECT_TRUE(has(said, "the environment sets mpool_test_xx")) << "the strongest source is named: " << said;
  EXPECT_TRUE(has(said, "did you mean mpool_test_x?")) << said;
  EXPECT_TRUE(has(said, "mpool_test_nothing_like_it") && has(said, "pinrail_info")) << said;
}

TEST_F(ParamRegistry, what_was_meant_by_an_unknown_name_is_said_unless_it_may_be_anothers) {
  sources_.environment = {"PINRAIL_MCA_rcache_test_size_limt=2", "PINRAIL_MCA_mpol_test_x=2",
                          "PINRAIL_MCA_leave_pined=1",           "PINRAIL_MCA_x=2",
                          "PINRAIL_MCA_nothing_like_it=2",       "PINRAIL_MCA_btl_tcp_if_include=eth0"};
  folder_.write("user.conf", "PINRAIL_MCA_mpool_test_x = 1\n");
  start();
  ASSERT_TRUE(declare(declaration("size_limit", PINRAIL_TYPE_SIZE, "0"), kOldPrefixes).ok());
  const std::string said = finish();
  EXPECT_TRUE(has(said, "did you mean mpool_test_size_limit?")) << "a slip in an old name: " << said;
  EXPECT_TRUE(has(said, "sets mpol_test_x,")) << "a slip in the framework's name: " << said;
  EXPECT_TRUE(has(said, "did you mean leave_pinned?")) << said;
  EXPECT_TRUE(has(said, "sets x,")) << "neither framework nor component: " << said;
  EXPECT_EQ(times(said, "did you mean mpool_test_x?"), 2U) << said;
  EXPECT_TRUE(has(said, "leave PINRAIL_MCA_ away")) << said;
  EXPECT_FALSE(has(said, "nothing_like_it") || has(said, "btl_tcp")) << said;
}

TEST_F(ParamRegistry, names_of_components_that_are_shipped_and_not_loaded_are_silent) {
  folder_.write("site.conf",
                "mpool_rgpusm_size_limit = 1G\nrcache_rgpusm_size_limit = 1G\nmpool_grdma_x = 1\n"
                "mpool_test_wrong = 1\nmpool_grmda_size_limit = 1G\n");
  start();
  registry_.expect("mpool_grdma");
  const std::string said = finish({"mpool_rgpusm", "rcache_rgpusm", "mpool_test"});
  EXPECT_TRUE(has(said, "mpool_test_wrong")) << "it is loaded: " << said;
  EXPECT_TRUE(has(said, "mpool_grmda_size_limit")) << "no such component: " << said;
  EXPECT_FALSE(has(said, "rgpusm") || has(said, "mpool_grdma_x")) << said;
}

TEST_F(ParamRegistry, a_declaration_of_another_size_is_of_another_version) {
  pinrail_param_t it = declaration("x", PINRAIL_TYPE_INT, "0");
  it.size -= 8;
  ASSERT_TRUE(read().ok());
  const std::string said = said_anew_by([&] { EXPECT_TRUE(declare(it).is(PINRAIL_ERR_VERSION)); });
  EXPECT_TRUE(has(said, std::to_string(sizeof(it))) && has(said, std::to_string(sizeof(it) - 8))) << said;
}

TEST_F(ParamRegistry, a_wrong_declaration_is_refused) {
  start();
  pinrail_param_t no_level = declaration("y", PINRAIL_TYPE_INT, "0");
  no_level.level = 0;
  pinrail_param_t empty_range = declaration("y", PINRAIL_TYPE_INT, "0");
  empty_range.minimum = 1;
  const struct {
    const char* what;
    pinrail_param_t it;
  } rows[] = {
      {"a malformed default", declaration("y", PINRAIL_TYPE_INT, "many")},
      {"no values", declaration("y", PINRAIL_TYPE_ENUM, "a")},
      {"no level", no_level},
      {"an empty range", empty_range},
      {"a name with a space", declaration("x y", PINRAIL_TYPE_INT, "0")},
      {"no name", declaration(nullptr, PINRAIL_TYPE_INT, "0")},
      {"no scope", declaration("y", PINRAIL_TYPE_INT, "0", pinrail_param_scope_t{})},
      {"an unknown type", declaration("y", static_cast<pinrail_param_type_t>(7), "0")},
      {"a name that is taken", declaration("x", PINRAIL_TYPE_STRING, "0")},
  };
  for (const auto& row : rows) {
    const std::string said = said_anew_by([&] { EXPECT_TRUE(declare(row.it).is(PINRAIL_ERR_ERROR)) << row.what; });
    EXPECT_TRUE(has(said, "wrong declaration") && has(said, "mpool_test")) << row.what << said;
  }
  const pinrail_param_t twice[] = {declaration("y", PINRAIL_TYPE_INT, "0"), declaration("y", PINRAIL_TYPE_INT, "0")};
  said_anew_by([&] { EXPECT_TRUE(registry_.declare("mpool", "test", twice, 2).is(PINRAIL_ERR_ERROR)); });
  EXPECT_EQ(value(), "default");
}

}  // namespace
}  // namespace pinrail::param
