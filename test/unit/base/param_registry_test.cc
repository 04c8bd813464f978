// SPDX-License-Identifier: BSD-3-Clause
// param_registry_test.cc - declared parameters: scopes, old names, followed ones, names that mean nothing.
#include <atomic>
#include <thread>

#include "test/support/threads.h"
#include "test/unit/base/fixtures.h"

namespace pinrail::param {
namespace {

using test::has;
using test::said_anew_by;
using test::times;

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

TEST_F(ParamRegistry, a_constant_is_shown_but_never_set) {
  sources_.environment = {"PINRAIL_MCA_mpool_test_c=2"};
  ASSERT_TRUE(read().ok());
  const std::string said = said_anew_by([this] {
    EXPECT_TRUE(declare(declaration("c", PINRAIL_TYPE_INT, "1", PINRAIL_SCOPE_CONSTANT)).is(PINRAIL_ERR_BAD_PARAM));
  });
  EXPECT_TRUE(has(said, "the environment sets parameter mpool_test_c, which is a constant")) << said;
  ASSERT_TRUE(declare(declaration("d", PINRAIL_TYPE_INT, "1", PINRAIL_SCOPE_CONSTANT)).ok());
  said_anew_by([this] { EXPECT_TRUE(registry_.set("mpool_test_d", "2").is(PINRAIL_ERR_PERM)); });
  EXPECT_EQ(value("mpool_test_d"), "1");
}

TEST_F(ParamRegistry, a_settable_parameter_takes_what_it_is_given) {
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(declare(declaration("s", PINRAIL_TYPE_SIZE, "1K", PINRAIL_SCOPE_SETTABLE)).ok());
  EXPECT_TRUE(registry_.set("mpool_test_s", "8M").ok());
  EXPECT_EQ(registry_.value("mpool_test_s").u, 8U << 20);
  EXPECT_EQ(info("mpool_test_s").source, PINRAIL_SOURCE_API);
  EXPECT_EQ(registry_.describe("mpool_test_s"), "8M, from a call of the program");
}

TEST_F(ParamRegistry, what_the_override_file_holds_is_not_set) {
  folder_.write("override.conf", "mpool_test_s = 2K\n");
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(declare(declaration("s", PINRAIL_TYPE_SIZE, "1K", PINRAIL_SCOPE_SETTABLE)).ok());
  const std::string said =
      said_anew_by([this] { EXPECT_TRUE(registry_.set("mpool_test_s", "3K").is(PINRAIL_ERR_PERM)); });
  EXPECT_TRUE(has(said, sources_.override_file)) << said;
  EXPECT_EQ(value("mpool_test_s"), "2K");
}

TEST_F(ParamRegistry, setting_a_name_that_is_none_says_which_was_meant) {
  ASSERT_TRUE(read().ok());
  const std::string said =
      said_anew_by([this] { EXPECT_TRUE(registry_.set("mca_base_verbos", "3").is(PINRAIL_ERR_NOT_FOUND)); });
  EXPECT_TRUE(has(said, "did you mean mca_base_verbose?")) << said;
}

TEST_F(ParamRegistry, strings_that_were_handed_out_stay_when_the_parameter_is_set) {
  start();
  const pinrail_param_info_t before = info("mpool_test_x");
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(registry_.set("mpool_test_x", std::to_string(i)).ok());
  EXPECT_STREQ(before.value, "default");
  EXPECT_STREQ(before.typed.s, "default");
}

TEST_F(ParamRegistry, a_watched_number_follows_the_parameter) {
  ASSERT_TRUE(read().ok());
  const std::atomic<int64_t>* verbosity = registry_.watch("mca_base_verbose");
  ASSERT_NE(verbosity, nullptr);
  EXPECT_EQ(verbosity->load(), 0);
  ASSERT_TRUE(registry_.set("mca_base_verbose", "50").ok());
  EXPECT_EQ(verbosity->load(), 50);
  EXPECT_EQ(registry_.watch("nothing"), nullptr);
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
}

TEST_F(ParamRegistry, an_old_name_sets_the_parameter_and_is_noted_once) {
  static const char* const kSynonyms[] = {"mpool_test_old", nullptr};
  sources_.environment = {"PINRAIL_MCA_mpool_test_old=7"};
  ASSERT_TRUE(read().ok());
  pinrail_param_t it = declaration("n", PINRAIL_TYPE_INT, "0");
  it.synonyms = kSynonyms;
  const std::string said = said_anew_by([&] { EXPECT_TRUE(declare(it).ok()); });
  EXPECT_EQ(value("mpool_test_n"), "7");
  EXPECT_STREQ(info("mpool_test_old").name, "mpool_test_n");
  EXPECT_EQ(times(said, "mpool_test_old, set by the environment, is an old name of mpool_test_n"), 1U) << said;
  EXPECT_EQ(finish(), "") << "an old name is no unknown one";
}

TEST_F(ParamRegistry, an_old_family_of_names_covers_every_parameter) {
  static const char* const kPrefixes[] = {"rcache_test_", nullptr};
  folder_.write("site.conf", "rcache_test_n = 7\n");
  ASSERT_TRUE(read().ok());
  const std::string said =
      said_anew_by([&] { EXPECT_TRUE(declare(declaration("n", PINRAIL_TYPE_INT, "0"), kPrefixes).ok()); });
  EXPECT_EQ(value("mpool_test_n"), "7");
  EXPECT_TRUE(has(said, "rcache_test_n") && has(said, "write mpool_test_n")) << said;
  EXPECT_STREQ(info("mpool_test_n").declaration->synonyms[0], "rcache_test_n");
}

TEST_F(ParamRegistry, a_malformed_value_under_an_old_name_names_both) {
  static const char* const kPrefixes[] = {"rcache_test_", nullptr};
  sources_.settings = {{"rcache_test_n", "x"}};
  ASSERT_TRUE(read().ok());
  const std::string said =
      said_anew_by([&] { EXPECT_FALSE(declare(declaration("n", PINRAIL_TYPE_INT, "0"), kPrefixes).ok()); });
  EXPECT_TRUE(has(said, "mpool_test_n (by its old name rcache_test_n), from the program")) << said;
}

TEST_F(ParamRegistry, the_stronger_source_decides_whatever_name_it_uses) {
  static const char* const kPrefixes[] = {"rcache_test_", nullptr};
  folder_.write("site.conf", "mpool_test_n = 1\nmpool_test_m = 1\nrcache_test_m = 2\n");
  folder_.write("user.conf", "rcache_test_n = 2\n");
  sources_.environment = {"PINRAIL_MCA_mpool_test_e=1", "PINRAIL_MCA_rcache_test_e=2"};
  ASSERT_TRUE(read().ok());
  said_anew_by([&] {
    for (const char* name : {"n", "m", "e"}) {
      EXPECT_TRUE(declare(declaration(name, PINRAIL_TYPE_INT, "0"), kPrefixes).ok());
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

class LeavePinned : public ParamRegistry {
 protected:
  static constexpr pinrail_enum_value_t kValues[] = {{0, "drop"}, {1, "keep"}, {0, nullptr}};

  std::string declared(const char* fallback) {
    pinrail_param_t it = declaration("leave_pinned", PINRAIL_TYPE_ENUM, fallback);
    it.values = kValues;
    EXPECT_TRUE(read().ok());
    EXPECT_TRUE(declare(it).ok());
    return value("mpool_test_leave_pinned");
  }
};

TEST_F(LeavePinned, a_components_own_default_stands_while_the_global_one_is_not_set) {
  EXPECT_EQ(declared("keep"), "keep");
}

TEST_F(LeavePinned, the_global_one_holds_for_components_that_are_not_set) {
  sources_.environment = {"PINRAIL_MCA_leave_pinned=no"};
  EXPECT_EQ(declared("keep"), "drop");
}

TEST_F(LeavePinned, a_components_own_overrides_the_global_one_whatever_the_source) {
  sources_.settings = {{"leave_pinned", "no"}};
  folder_.write("site.conf", "mpool_test_leave_pinned = keep\n");
  EXPECT_EQ(declared("drop"), "keep");
}

TEST_F(LeavePinned, a_callers_default_gives_way_to_the_global_one_that_was_chosen) {
  sources_.defaults = {{"mpool_test_leave_pinned", "drop"}};
  sources_.environment = {"PINRAIL_MCA_leave_pinned=yes"};
  EXPECT_EQ(declared("drop"), "keep");
}

TEST_F(LeavePinned, a_global_value_that_the_component_does_not_know_leaves_its_default) {
  sources_.environment = {"PINRAIL_MCA_leave_pinned=auto"};
  EXPECT_EQ(declared("keep"), "keep");
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

TEST_F(ParamRegistry, a_slip_in_an_old_name_is_led_to_the_new_one) {
  static const char* const kPrefixes[] = {"rcache_test_", nullptr};
  sources_.environment = {"PINRAIL_MCA_rcache_test_size_limt=2"};
  ASSERT_TRUE(read().ok());
  ASSERT_TRUE(declare(declaration("size_limit", PINRAIL_TYPE_SIZE, "0"), kPrefixes).ok());
  const std::string said = finish();
  EXPECT_TRUE(has(said, "did you mean mpool_test_size_limit?")) << said;
}

TEST_F(ParamRegistry, a_slip_in_the_frameworks_name_is_found_too) {
  sources_.environment = {"PINRAIL_MCA_mpol_test_x=2", "PINRAIL_MCA_leave_pined=1"};
  start();
  const std::string said = finish();
  EXPECT_TRUE(has(said, "did you mean mpool_test_x?")) << said;
  EXPECT_TRUE(has(said, "did you mean leave_pinned?")) << said;
}

TEST_F(ParamRegistry, a_name_without_framework_and_component_is_completed) {
  sources_.environment = {"PINRAIL_MCA_x=2", "PINRAIL_MCA_nothing_like_it=2"};
  start();
  const std::string said = finish();
  EXPECT_TRUE(has(said, "sets x,") && has(said, "did you mean mpool_test_x?")) << said;
  EXPECT_FALSE(has(said, "nothing_like_it")) << "it may be another's: " << said;
}

TEST_F(ParamRegistry, names_of_others_are_none_of_our_business) {
  sources_.environment = {"PINRAIL_MCA_btl_tcp_if_include=eth0"};
  start();
  EXPECT_EQ(finish(), "");
}

TEST_F(ParamRegistry, a_variables_prefix_in_a_file_is_pointed_out) {
  folder_.write("user.conf", "PINRAIL_MCA_mpool_test_x = 1\n");
  start();
  const std::string said = finish();
  EXPECT_TRUE(has(said, "leave PINRAIL_MCA_ away")) << said;
}

TEST_F(ParamRegistry, names_of_shipped_components_that_are_not_loaded_are_silent) {
  folder_.write("site.conf", "mpool_rgpusm_size_limit = 1G\nrcache_rgpusm_size_limit = 1G\nmpool_grdma_x = 1\n");
  start();
  registry_.expect("mpool_grdma");
  EXPECT_EQ(finish({"mpool_rgpusm", "rcache_rgpusm", "mpool_test"}), "");
}

TEST_F(ParamRegistry, a_shipped_component_that_is_loaded_is_held_to_its_names) {
  folder_.write("site.conf", "mpool_test_wrong = 1\n");
  start();
  EXPECT_TRUE(has(finish({"mpool_test"}), "mpool_test_wrong"));
}

TEST_F(ParamRegistry, an_unknown_component_is_warned_of) {
  folder_.write("site.conf", "mpool_grmda_size_limit = 1G\n");
  start();
  EXPECT_TRUE(has(finish({"mpool_grdma"}), "mpool_grmda_size_limit"));
}

TEST_F(ParamRegistry, a_declaration_of_another_size_is_of_another_version) {
  pinrail_param_t it = declaration("x", PINRAIL_TYPE_INT, "0");
  it.size -= 8;
  ASSERT_TRUE(read().ok());
  const std::string said = said_anew_by([&] { EXPECT_TRUE(declare(it).is(PINRAIL_ERR_VERSION)); });
  EXPECT_TRUE(has(said, std::to_string(sizeof(it))) && has(said, std::to_string(sizeof(it) - 8))) << said;
}

TEST_F(ParamRegistry, a_wrong_declaration_is_refused) {
  ASSERT_TRUE(read().ok());
  const auto refused = [this](pinrail_param_t it) {
    bool is_refused = false;
    const std::string said = said_anew_by([&] { is_refused = declare(it).is(PINRAIL_ERR_ERROR); });
    return is_refused && has(said, "wrong declaration") && has(said, "mpool_test");
  };
  pinrail_param_t it = declaration("x", PINRAIL_TYPE_INT, "many");
  EXPECT_TRUE(refused(it)) << "a malformed default";
  it = declaration("x", PINRAIL_TYPE_ENUM, "a");
  EXPECT_TRUE(refused(it)) << "no values";
  it = declaration("x", PINRAIL_TYPE_INT, "0");
  it.level = 0;
  EXPECT_TRUE(refused(it)) << "no level";
  it = declaration("x", PINRAIL_TYPE_INT, "0");
  it.minimum = 1;
  EXPECT_TRUE(refused(it)) << "an empty range";
  it = declaration("x y", PINRAIL_TYPE_INT, "0");
  EXPECT_TRUE(refused(it)) << "a name with a space";
  it = declaration(nullptr, PINRAIL_TYPE_INT, "0");
  EXPECT_TRUE(refused(it)) << "no name";
  it = declaration("x", static_cast<pinrail_param_type_t>(7), "0");
  EXPECT_TRUE(refused(it)) << "an unknown type";
}

TEST_F(ParamRegistry, a_name_is_declared_once) {
  start();
  said_anew_by([this] { EXPECT_TRUE(declare(declaration("x", PINRAIL_TYPE_INT, "0")).is(PINRAIL_ERR_ERROR)); });
  const pinrail_param_t twice[] = {declaration("y", PINRAIL_TYPE_INT, "0"), declaration("y", PINRAIL_TYPE_INT, "0")};
  said_anew_by([&] { EXPECT_TRUE(registry_.declare("mpool", "test", twice, 2).is(PINRAIL_ERR_ERROR)); });
  EXPECT_EQ(value(), "default");
}

}  // namespace
}  // namespace pinrail::param
