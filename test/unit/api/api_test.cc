// SPDX-License-Identifier: BSD-3-Clause
// api_test.cc - memory events for other runtimes (E3's exception), and what a program reads before init.
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

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
  heard->found = heard->pool->has(kBase, kPage);
}

TEST(MonitorFace, a_stranger_hears_of_every_event_after_the_pools_and_with_no_lock_held_until_it_unsubscribes) {
  const Library library;
  const fake::FakeRegistrar registrar;
  const Pool pool(registrar);
  Heard heard;
  heard.pool = &pool;
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_SUCCESS);
  pool.use(kBase, kPage);
  report(kBase + 100, 64);
  ASSERT_EQ(heard.events.size(), 1U);
  EXPECT_TRUE(heard.events[0].contains(Span::of(kBase + 100, 64)));
  EXPECT_FALSE(heard.found) << "it was called before the pool had heard of it";
  report(kBase + 100, 0);
  EXPECT_EQ(heard.events.size(), 1U) << "an empty range is no event";
  pinrail_monitor_unsubscribe(subscription);
  report(kBase + 100, 64);
  EXPECT_EQ(heard.events.size(), 1U);
}

// munmap(kBase + 4096, 4) and munmap(kBase, 4100) take whole pages.
TEST(MonitorFace, a_report_ends_what_lies_in_the_rest_of_its_pages) {
  const Library library;
  for (const bool by_call : {false, true}) {
    const fake::FakeRegistrar registrar(fake::options_with(&fake::FakeOptions::granularity, 1));
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

TEST(MonitorFace, works_from_init_on_where_a_monitor_sees) {
  Heard heard;
  pinrail_subscription_t* subscription = nullptr;
  EXPECT_EQ(pinrail_monitor_works() | pinrail_monitor_sees_all_memory() | pinrail_monitor_covers(&heard, 1), 0);
  {
    const Library blind(Settings{{"monitor", "^patcher,uffd"}});
    EXPECT_EQ(pinrail_monitor_works() | pinrail_monitor_sees_all_memory(), 0);
    EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_ERR_NOT_AVAILABLE);
  }
  const Library library;
  EXPECT_EQ(pinrail_monitor_works() & pinrail_monitor_sees_all_memory(), 1);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(subscription, nullptr);
  pinrail_monitor_unsubscribe(nullptr);
}

// ftruncate() and fallocate() name a file and no addresses.
TEST(MonitorFace, a_stranger_hears_of_what_is_cut_from_a_file_in_the_ranges_that_it_asks_about) {
  const Library library(Settings{{"monitor", "patcher"}});
  const int file = memfd_create("cut", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(file, kPage), 0);
  void* const base = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  std::vector<Span> events;
  const auto note = [](void* arg, void* addr, size_t length) {
    static_cast<std::vector<Span>*>(arg)->push_back(Span::of(addr, length));
  };
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(note, &events, &subscription), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_monitor_covers(base, 0), 0);
  EXPECT_EQ(pinrail_monitor_covers(base, SIZE_MAX), 0);
  EXPECT_EQ(pinrail_monitor_covers(base, kPage), 1);
  events.clear();
  EXPECT_EQ(ftruncate(file, 0), 0);
  EXPECT_TRUE(std::any_of(events.begin(), events.end(),
                          [&](const Span& event) { return event.contains(Span::of(base, kPage)); }));
  pinrail_monitor_unsubscribe(subscription);
  munmap(base, kPage);
  close(file);
  EXPECT_EQ(pinrail_monitor_covers(base, kPage), 0) << "nothing is there";
}

TEST(ParamsFace, there_is_nothing_before_init_and_after_a_start_that_failed) {
  const pinrail_setting_t setting = {"mpool_grdma_size_limit", "lots"};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = &setting;
  options.setting_count = 1;
  EXPECT_EQ(pinrail_init(&options), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_param_count(), 0U);
  EXPECT_EQ(pinrail_component_count(), 0U);
  auto it = sized<pinrail_param_info_t>();
  EXPECT_EQ(pinrail_param_at(0, &it), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_param_find("leave_pinned", &it), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_param_set("leave_pinned", "1"), PINRAIL_ERR_NOT_FOUND);
  auto component = sized<pinrail_component_info_t>();
  EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_ERR_NOT_FOUND);
}

TEST(ParamsFace, every_parameter_is_listed_once_in_its_place) {
  const Library library;
  auto it = sized<pinrail_param_info_t>();
  std::string before;
  for (size_t i = 0; i < pinrail_param_count(); ++i) {
    ASSERT_EQ(pinrail_param_at(i, &it), PINRAIL_SUCCESS);
    const std::string place = std::string(it.framework) + '\1' + it.component + '\1' + it.name;
    EXPECT_LT(before, place);
    before = place;
    EXPECT_STRNE(it.declaration->help, "") << it.name;
  }
  EXPECT_EQ(pinrail_param_at(pinrail_param_count(), &it), PINRAIL_ERR_NOT_FOUND);
}

TEST(ParamsFace, what_is_settable_is_set_and_components_are_listed_with_what_became_of_them) {
  const Library library;
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbose", "10"), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_param_set("mpool_grdma_verbose", "101"), PINRAIL_ERR_BAD_PARAM);
  auto parameter = sized<pinrail_param_info_t>();
  ASSERT_EQ(pinrail_param_find("rcache_grdma_verbose", &parameter), PINRAIL_SUCCESS) << "by its old name";
  EXPECT_STREQ(parameter.name, "mpool_grdma_verbose");
  EXPECT_EQ(parameter.typed.i, 10);
  auto it = sized<pinrail_component_info_t>();
  const std::string frameworks = "mpool rcache registrar monitor";
  std::pair<size_t, std::string> before;  // place of the framework, name
  for (size_t i = 0; i < pinrail_component_count(); ++i) {
    ASSERT_EQ(pinrail_component_at(i, &it), PINRAIL_SUCCESS);
    const std::pair<size_t, std::string> place = {frameworks.find(it.framework), it.name};
    EXPECT_LT(before, place);
    before = place;
    const bool is_open = it.selected != 0 && it.status == PINRAIL_SUCCESS;
    const bool has_reason = !std::string(it.reason).empty();
    // A monitor may be open and not at work.
    EXPECT_TRUE(!is_open || *it.help != '\0') << it.name;
    EXPECT_TRUE(is_open != has_reason || std::string(it.framework) == "monitor") << it.name << ": " << it.reason;
  }
  EXPECT_EQ(before.first, frameworks.find("monitor"));
  EXPECT_EQ(pinrail_component_at(pinrail_component_count(), &it), PINRAIL_ERR_NOT_FOUND);
}

}  // namespace
}  // namespace pinrail::test
