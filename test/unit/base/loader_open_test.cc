// SPDX-License-Identifier: BSD-3-Clause
// loader_open_test.cc - opening and closing, and what an open component is lent.
#include <dlfcn.h>

#include "test/support/cases.h"
#include "test/unit/base/fixtures.h"

namespace pinrail::loader {
namespace {

using test::said_anew_by;
using test::times;

constexpr char kCatalogue[] = "[trouble]\nWhat happened  {what}.\nWhat follows   nothing.\nWhat to do     rest.\n";

// A component of the test's own, so that what it is lent can be looked at.
const pinrail_host_t* lent = nullptr;
int closed = 0;
pinrail_status_t take_host(const pinrail_host_t* host, void** context_out) {
  lent = host;
  *context_out = &lent;
  return PINRAIL_SUCCESS;
}
void count_close(void*) { ++closed; }

const pinrail_param_t kOwnParams[] = {{sizeof(pinrail_param_t), "greeting", "hello", "A text.", PINRAIL_TYPE_STRING,
                                       PINRAIL_SCOPE_READONLY, 9, nullptr, 0, 0, nullptr}};
const pinrail_mpool_ops_t kOps = empty_table();
const pinrail_component_t kOwn = {sizeof(pinrail_component_t),
                                  PINRAIL_MPOOL_ABI,
                                  50,
                                  "mpool",
                                  "own",
                                  "1.0.0",
                                  "The test's own.",
                                  kCatalogue,
                                  kOwnParams,
                                  1,
                                  nullptr,
                                  take_host,
                                  count_close,
                                  &kOps};

class LoaderOpen : public LoaderTest {
 protected:
  void add(const char* name, int32_t priority) {
    write(std::string("mpool_") + name, Image().name(name).priority(priority));
  }
  void says(const char* name, int status) { set(std::string("mpool_") + name + "_open_says", std::to_string(status)); }

  void open_own() {
    built_in_ = {&kOwn, nullptr};
    lent = nullptr;
    ASSERT_TRUE(discover().ok());
    ASSERT_TRUE(open().ok());
    ASSERT_NE(lent, nullptr);
  }
};

TEST_F(LoaderOpen, opened_ones_are_listed_by_priority_and_then_by_name) {
  add("b", 10);
  add("a", 10);
  add("c", 20);
  ASSERT_TRUE(discover().ok());
  EXPECT_EQ(opened(), "") << "found is not open";
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(opened(), "c a b");
  EXPECT_EQ(opened("rcache"), "");
}

TEST_F(LoaderOpen, only_the_named_ones_are_opened) {
  for (const char* name : {"a", "b", "c"}) add(name, 10);
  set("mpool", " c , a ");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said_, "") << "all that were named are open";
  EXPECT_EQ(opened(), "a c");
  for (const Opened& it : loader_->opened("mpool")) EXPECT_TRUE(it.named);
}

TEST_F(LoaderOpen, all_but_the_excluded_ones_are_opened) {
  for (const char* name : {"a", "b", "c"}) add(name, 10);
  set("mpool", "^b,nosuch");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok()) << "one that is left out need not exist";
  EXPECT_EQ(opened(), "a c");
  for (const Opened& it : loader_->opened("mpool")) EXPECT_FALSE(it.named);
}

TEST_F(LoaderOpen, a_priority_below_zero_waits_to_be_named) {
  add("a", 10);
  add("b", -1);
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(opened(), "a");
  EXPECT_FALSE(listed("b").selected);
  EXPECT_TRUE(test::has(listed("b").reason, "only when parameter mpool names it"));
  set("mpool", "b");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(opened(), "b");
}

TEST_F(LoaderOpen, a_name_that_no_component_has_is_an_error_with_a_suggestion) {
  add("grdma", 10);
  set("mpool", "grdam");
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(open().is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(said("mpool component \"grdam\"") && said("did you mean grdma?") && said(folder_.path())) << said_;
}

TEST_F(LoaderOpen, of_several_names_the_good_ones_are_open_and_each_bad_one_is_said) {
  add("a", 10);
  set("mpool", "a,x1234,y1234");
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(open().is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(opened(), "a");
  EXPECT_TRUE(said("\"x1234\"") && said("\"y1234\"")) << said_;
}

TEST_F(LoaderOpen, one_that_is_not_available_is_skipped_in_silence) {
  add("a", 10);
  add("b", 10);
  says("b", PINRAIL_ERR_NOT_AVAILABLE);
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said_, "");
  EXPECT_EQ(opened(), "a");
  EXPECT_TRUE(listed("b").status.is(PINRAIL_ERR_NOT_AVAILABLE));
  set("mca_base_verbose", "10");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_TRUE(said("mpool_b.so: it does not open: NOT_AVAILABLE")) << said_;
}

TEST_F(LoaderOpen, one_that_fails_is_skipped_with_one_message) {
  add("a", 10);
  add("b", 10);
  says("b", PINRAIL_ERR_PERM);
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said_, "[pinrail:loader] skipped " + folder_.path("mpool_b.so") + ": it does not open: PERM\n");
  EXPECT_EQ(opened(), "a");
}

TEST_F(LoaderOpen, asked_for_by_name_each_of_these_is_an_error) {
  add("b", 10);
  set("mpool", "b");
  for (const pinrail_status_t status : {PINRAIL_ERR_NOT_AVAILABLE, PINRAIL_ERR_PERM, PINRAIL_ERR_ERROR}) {
    says("b", status);
    ASSERT_TRUE(discover().ok());
    EXPECT_TRUE(open().is(status));
    EXPECT_EQ(times(said_, "component unusable"), 1U) << said_;
    EXPECT_TRUE(said(std::string("does not open: ") + status_name(status))) << said_;
  }
}

TEST_F(LoaderOpen, a_framework_that_was_not_discovered_cannot_be_opened) {
  ASSERT_TRUE(discover().ok());
  EXPECT_TRUE(open("btl").is(PINRAIL_ERR_BAD_PARAM));
}

TEST_F(LoaderOpen, a_framework_that_is_opened_again_opens_what_is_open_no_second_time) {
  add("a", 20);
  says("a", PINRAIL_ERR_ERROR);
  add("b", 10);
  set("mpool_base_verbose", "10");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(times(said_, "[pinrail:b] opens\n"), 1U) << said_;
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(times(said_, "[pinrail:b] opens\n"), 0U) << said_;
  EXPECT_EQ(opened(), "b");
  EXPECT_EQ(times(said_anew_by([this] { loader_->close_all(); }), "[pinrail:b] closes\n"), 1U);
}

TEST_F(LoaderOpen, what_was_opened_is_closed_in_reverse) {
  add("a", 30);
  add("b", 20);
  add("c", 10);
  set("mpool_base_verbose", "10");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  EXPECT_EQ(said_, "[pinrail:a] opens\n[pinrail:b] opens\n[pinrail:c] opens\n");
  EXPECT_EQ(said_anew_by([this] { loader_->close_all(); }),
            "[pinrail:c] closes\n[pinrail:b] closes\n[pinrail:a] closes\n");
  EXPECT_EQ(opened(), "");
}

TEST_F(LoaderOpen, files_are_unmapped_when_they_are_closed_and_their_parameters_stay_listed) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  add("a", 10);
  const std::string path = folder_.path("mpool_a.so");
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open().ok());
  void* const again = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(again, nullptr);
  dlclose(again);
  loader_->close_all();
  EXPECT_EQ(dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD), nullptr);
  pinrail_param_info_t info{};
  ASSERT_TRUE(params_->find("mpool_a_open_says", &info).ok());
  EXPECT_STREQ(info.declaration->help, "What open() returns.");
  EXPECT_EQ(listed("a").version, "1.2.3");
}

TEST_F(LoaderOpen, a_monitor_stays_mapped_for_the_hooks_that_may_still_run_in_it) {
  const std::string path =
      folder_.write("monitor_tiny.so", Image().framework("monitor").abi(PINRAIL_MONITOR_ABI).bytes());
  ASSERT_TRUE(discover().ok());
  ASSERT_TRUE(open("monitor").ok());
  loader_->close_all();
  void* const still = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  EXPECT_NE(still, nullptr);
  if (still != nullptr) dlclose(still);
}

TEST_F(LoaderOpen, closing_again_or_never_having_opened_does_no_harm) {
  open_own();
  closed = 0;
  loader_->close_all();
  loader_->close_all();
  loader_.reset();
  EXPECT_EQ(closed, 1);
  ASSERT_TRUE(discover().ok());
  loader_.reset();
  EXPECT_EQ(closed, 1) << "what is not open is not closed";
}

TEST_F(LoaderOpen, the_host_table_says_whose_it_is) {
  services_.monitor_works = [](const pinrail_host_t*, const char**) { return 42; };
  open_own();
  EXPECT_EQ(lent->size, sizeof(pinrail_host_t));
  EXPECT_EQ(lent->abi, uint32_t{PINRAIL_HOST_ABI});
  EXPECT_EQ(lent->monitor_works(lent, nullptr), 42) << "the rest is the services'";
  EXPECT_EQ(loader_->opened("mpool").at(0).host, lent);
  EXPECT_EQ(loader_->opened("mpool").at(0).context, &lent);
}

TEST_F(LoaderOpen, a_component_reads_its_own_parameters_by_their_short_names) {
  set("mpool_own_greeting", "good day");
  open_own();
  pinrail_param_value_t value{};
  ASSERT_EQ(lent->param(lent, "greeting", &value), PINRAIL_SUCCESS);
  EXPECT_STREQ(value.s, "good day");
  EXPECT_EQ(lent->param(lent, "verbose", &value), PINRAIL_SUCCESS);
  EXPECT_EQ(lent->param(lent, "size_limit", &value), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(lent->param(lent, nullptr, &value), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(lent->param(lent, "greeting", nullptr), PINRAIL_ERR_BAD_PARAM);
}

TEST_F(LoaderOpen, and_any_parameter_by_its_full_name) {
  open_own();
  pinrail_param_info_t info{};
  info.size = sizeof(info);
  ASSERT_EQ(lent->param_info(lent, "leave_pinned", &info), PINRAIL_SUCCESS);
  EXPECT_STREQ(info.value, "auto");
  EXPECT_EQ(lent->param_info(lent, "nothing", &info), PINRAIL_ERR_NOT_FOUND);
  info.size = 0;
  EXPECT_EQ(lent->param_info(lent, "leave_pinned", &info), PINRAIL_ERR_BAD_PARAM);
}

TEST_F(LoaderOpen, a_components_log_obeys_its_verbosity_at_once) {
  open_own();
  const auto log = [] { lent->log(lent, PINRAIL_LOG_INFO, "a line"); };
  EXPECT_EQ(said_anew_by(log), "");
  ASSERT_TRUE(params_->set("mpool_own_verbose", "10").ok());
  EXPECT_EQ(said_anew_by(log), "[pinrail:own] a line\n");
  ASSERT_TRUE(params_->set("mpool_own_verbose", "0").ok());
  EXPECT_EQ(said_anew_by(log), "");
}

TEST_F(LoaderOpen, a_components_help_is_of_its_own_catalogue) {
  open_own();
  const std::string said = said_anew_by([] {
    const pinrail_help_arg_t arg = {"what", "it broke"};
    lent->help(lent, "trouble", &arg, 1);
    lent->help(lent, "trouble", &arg, 1);
    lent->help(lent, "trouble", nullptr, 1);
  });
  EXPECT_EQ(times(said, "[pinrail:own] trouble\n  What happened  it broke.\n"), 1U) << said;
  EXPECT_EQ(times(said, "What happened  {what}."), 1U) << said;
}

}  // namespace
}  // namespace pinrail::loader
