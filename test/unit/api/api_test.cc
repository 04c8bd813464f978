// SPDX-License-Identifier: BSD-3-Clause
// api_test.cc - parameters and listings through the API, as a program sees them.
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/support/cases.h"
#include "test/support/library.h"
#include "test/support/threads.h"

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

namespace pinrail::test {
namespace {

// Memory events for other runtimes (E3's exception), through the API.

constexpr uintptr_t kBase = 0x10000000;

struct Heard {
  const Pool* pool = nullptr;
  std::vector<Span> events;
  bool found = true;  // by a find from inside the event
};

// Allocates, and calls Pinrail: what no hook of ours may do.
void hear(void* arg, void* addr, size_t length) {
  auto* heard = static_cast<Heard*>(arg);
  heard->events.push_back(Span::of(addr, length));
  if (heard->pool != nullptr) heard->found = heard->pool->has(kBase, kPage);
}

TEST(MonitorFace, a_stranger_hears_of_every_event_until_it_unsubscribes) {
  const Library library;
  Heard heard;
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_SUCCESS);
  report(kBase + 100, 64);
  ASSERT_EQ(heard.events.size(), 1U);
  EXPECT_TRUE(heard.events[0].contains(Span::of(kBase + 100, 64)));
  report(kBase + 100, 0);
  EXPECT_EQ(heard.events.size(), 1U) << "an empty range is no event";
  pinrail_monitor_unsubscribe(subscription);
  report(kBase + 100, 64);
  EXPECT_EQ(heard.events.size(), 1U);
}

TEST(MonitorFace, a_stranger_is_called_after_the_pools_with_no_lock_held) {
  const Library library;
  const fake::FakeRegistrar registrar;
  const Pool pool(registrar);
  Heard heard;
  heard.pool = &pool;
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_SUCCESS);
  pool.use(kBase, kPage);
  report(kBase, kPage);
  EXPECT_EQ(heard.events.size(), 1U);
  EXPECT_FALSE(heard.found) << "it was called before the pool had heard of it";
  pinrail_monitor_unsubscribe(subscription);
}

// munmap(kBase + 4096, 4) and munmap(kBase, 4100) take whole pages.
TEST(MonitorFace, a_report_ends_what_lies_in_the_rest_of_its_pages) {
  const Library library;
  fake::FakeOptions to_the_byte;
  to_the_byte.granularity = 1;
  for (const bool by_call : {false, true}) {
    const fake::FakeRegistrar registrar(to_the_byte);
    const Pool pool(registrar);
    const auto has = [&](size_t at) { return pool.has(kBase + at, 100); };
    const auto end = [&](size_t at, size_t length) {
      if (!by_call) return report(kBase + at, length);
      EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), reinterpret_cast<void*>(kBase + at), length),
                PINRAIL_SUCCESS);
    };
    for (const size_t at : {0U, 4096U, 8000U, 8192U}) {
      EXPECT_EQ(pool.hold(kBase + at, 100).reg->length, 100U) << "it is not registered to the byte";
    }
    end(4096, 4);
    EXPECT_TRUE(has(0) && has(8192));
    EXPECT_FALSE(has(4096) || has(8000));
    pool.use(kBase + 8000, 100);
    end(0, 4100);
    EXPECT_TRUE(has(8192));
    EXPECT_FALSE(has(0) || has(8000)) << "the rest of the last page is left";
  }
}

// A subscriber whose calls last until the test ends them.
struct Slow {
  std::atomic<int> entered{0}, left{0};
  std::atomic<bool> may_leave{false};

  static void hear(void* slow, void* /*addr*/, size_t /*length*/) {
    auto* const self = static_cast<Slow*>(slow);
    ++self->entered;
    while (!self->may_leave.load()) sched_yield();
    ++self->left;
  }
};

// Threads count themselves in at different places.
TEST(MonitorFace, unsubscribe_returns_after_the_calls_that_are_under_way) {
  const Library library;
  Slow slow;
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(Slow::hear, &slow, &subscription), PINRAIL_SUCCESS);
  char memory[64];
  constexpr int kThreads = 8;
  Team events(kThreads, [&] { pinrail_monitor_report(memory, sizeof(memory)); });
  while (slow.entered.load() != kThreads) sched_yield();
  std::atomic<bool> returned{false};
  std::thread leaver([&] {
    pinrail_monitor_unsubscribe(subscription);
    EXPECT_EQ(slow.left.load(), kThreads);
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(returned.load());
  slow.may_leave = true;
  events.join();
  leaver.join();
}

TEST(MonitorFace, kinds_of_memory_are_those_that_a_program_registers_each_listed_once) {
  const Library library;
  std::vector<std::string> names;
  auto kind = sized<pinrail_memory_kind_t>();
  while (pinrail_memory_kind_at(names.size(), &kind) == PINRAIL_SUCCESS) names.emplace_back(kind.name);
  EXPECT_EQ(names, (std::vector<std::string>{"anonymous", "heap", "stack", "shared anonymous", "System V",
                                             "private file", "shared file", "file on disk"}));
}

TEST(MonitorFace, refuses_what_would_never_be_called) {
  Heard heard;
  pinrail_subscription_t* subscription = nullptr;
  EXPECT_EQ(pinrail_monitor_works(), 0);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_ERR_BAD_PARAM) << "before init";
  {
    const Library blind(Settings{{"monitor", "^patcher,uffd"}});
    EXPECT_EQ(pinrail_monitor_works(), 0);
    EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_ERR_NOT_AVAILABLE);
  }
  const Library library;
  EXPECT_EQ(pinrail_monitor_works(), 1);
  EXPECT_EQ(pinrail_monitor_subscribe(nullptr, &heard, &subscription), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(subscription, nullptr);
  pinrail_monitor_unsubscribe(nullptr);
}

}  // namespace
}  // namespace pinrail::test
