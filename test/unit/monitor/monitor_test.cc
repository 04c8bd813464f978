// SPDX-License-Identifier: BSD-3-Clause
// monitor_test.cc - what several monitors see together, and what is left when one of them goes blind (E5).
#include "framework/monitor/monitor.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <string>

#include "base/core/status.h"
#include "framework/monitor/coverage.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"
#include "test/support/sized.h"

namespace pinrail::monitor {
namespace {

constexpr size_t kPage = 4096;

// Of the two monitors: their host tables, and what each of them sees wherever it happens.
const pinrail_host_t* hosts[2];
uint32_t events[2];

pinrail_status_t open_first(const pinrail_host_t* host, void** context_out) {
  hosts[0] = host;
  *context_out = &events[0];
  return PINRAIL_SUCCESS;
}
pinrail_status_t open_second(const pinrail_host_t* host, void** context_out) {
  hosts[1] = host;
  *context_out = &events[1];
  return PINRAIL_SUCCESS;
}
uint32_t sees(void* context) { return *static_cast<const uint32_t*>(context); }
void close_it(void*) {}
pinrail_status_t start_it(void*) { return PINRAIL_SUCCESS; }
void stop_it(void*) {}
uint32_t cover_nothing(void*, const pinrail_mapping_t*) { return 0; }
uint32_t cover_all(void*, const pinrail_mapping_t*) { return PINRAIL_EVENTS_ALL; }

using Cover = uint32_t (*)(void*, const pinrail_mapping_t*);

pinrail_monitor_ops_t ops(Cover cover) {
  auto table = test::sized<pinrail_monitor_ops_t>();
  table.start = start_it;
  table.stop = stop_it;
  table.sees = sees;
  table.cover = cover;
  table.flags = PINRAIL_MONITOR_ANY_CALLER;  // else they are tried with real events, of which they hear nothing
  return table;
}

pinrail_component_t component(const char* name, int priority, decltype(pinrail_component_t::open) open,
                              const pinrail_monitor_ops_t* table) {
  auto descriptor = test::sized<pinrail_component_t>();
  descriptor.abi = PINRAIL_MONITOR_ABI;
  descriptor.priority = priority;
  std::snprintf(descriptor.framework, sizeof(descriptor.framework), "monitor");
  std::snprintf(descriptor.name, sizeof(descriptor.name), "%s", name);
  descriptor.version = "1.0.0";
  descriptor.help = "For tests.";
  descriptor.open = open;
  descriptor.close = close_it;
  descriptor.ops = table;
  return descriptor;
}

// Two monitors that were asked for by name, and a page of memory.
class TwoMonitors {
 public:
  // What each of them sees anywhere, and what it says of a mapping (NULL: nothing).
  TwoMonitors(uint32_t first_events, Cover first_cover, uint32_t second_events, Cover second_cover)
      : first_ops_(ops(first_cover)), second_ops_(ops(second_cover)) {
    events[0] = first_events;
    events[1] = second_events;
    sources_.settings.push_back({"monitor", "first,second"});
    EXPECT_TRUE(params_.read_sources(sources_).ok());
    EXPECT_TRUE(declare(&params_).ok());
    EXPECT_TRUE(loader_.discover({{"monitor", PINRAIL_MONITOR_ABI, sizeof(pinrail_monitor_ops_t)}}).ok());
    EXPECT_TRUE(loader_.open("monitor").ok());
    EXPECT_TRUE(start(loader_, params_).ok());
    page_ = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  ~TwoMonitors() {
    munmap(page_, kPage);
    stop(loader_);
  }
  TwoMonitors(const TwoMonitors&) = delete;
  TwoMonitors& operator=(const TwoMonitors&) = delete;

  bool covers_the_page() const { return covers(reinterpret_cast<uintptr_t>(page_), kPage); }

 private:
  const pinrail_monitor_ops_t first_ops_, second_ops_;
  const pinrail_component_t first_ = component("first", 20, open_first, &first_ops_);
  const pinrail_component_t second_ = component("second", 10, open_second, &second_ops_);
  const pinrail_component_t* const built_in_[3] = {&first_, &second_, nullptr};
  const pinrail_host_t services_{};
  param::Sources sources_;
  param::Registry params_;
  loader::Loader loader_{params_, services_, built_in_};
  void* page_ = nullptr;
};

void go_blind(int which, uint32_t left, const char* why) {
  events[which] = left;
  blind(hosts[which], why);
}

TEST(Monitors, what_the_blind_one_saw_is_not_covered_any_more) {
  const TwoMonitors monitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENT_UNMAP, cover_nothing);
  EXPECT_TRUE(monitors.covers_the_page());
  go_blind(0, 0, "as a test wants it");
  EXPECT_FALSE(works(nullptr)) << "the second one still sees something, but no kind of memory is kept with that";
  EXPECT_FALSE(monitors.covers_the_page());
}

TEST(Monitors, what_the_blind_one_covered_of_a_mapping_is_not_covered_any_more) {
  const TwoMonitors monitors(0, cover_all, PINRAIL_EVENT_UNMAP, cover_nothing);
  EXPECT_TRUE(monitors.covers_the_page());
  go_blind(0, 0, "as a test wants it");
  EXPECT_FALSE(monitors.covers_the_page());
}

TEST(Monitors, one_that_goes_blind_for_some_events_is_believed_the_others) {
  const TwoMonitors monitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENT_DONTNEED, cover_nothing);
  go_blind(0, PINRAIL_EVENTS_ALL & ~PINRAIL_EVENT_DONTNEED, "for what the second one sees");
  EXPECT_TRUE(monitors.covers_the_page());
  go_blind(0, PINRAIL_EVENTS_ALL & ~PINRAIL_EVENT_UNMAP, "for what no other monitor sees");
  EXPECT_FALSE(monitors.covers_the_page());
  EXPECT_FALSE(works(nullptr)) << "each kind of memory can be unmapped";
}

TEST(Monitors, what_another_one_sees_too_stays_covered) {
  const TwoMonitors monitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENTS_ALL, cover_nothing);
  go_blind(0, 0, "as a test wants it");
  EXPECT_TRUE(monitors.covers_the_page());
  go_blind(0, 0, "a second time");
  EXPECT_TRUE(monitors.covers_the_page()) << "it was blind already";
  const char* why = nullptr;
  EXPECT_TRUE(works(&why));
  go_blind(1, 0, "the last one");
  EXPECT_FALSE(works(&why));
  EXPECT_STREQ(why, "the last one");
  EXPECT_FALSE(monitors.covers_the_page());
}

// Notes whether all memory of the process was reported.
void note_all_hook(void* noted, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<std::atomic<bool>*>(noted)->store(true);
}

TEST(Monitors, without_memory_the_blind_ones_registrations_die_all_the_same) {
  NEED_GLIBC("the library brings its own operator new");
  int reached = 0;
  for (long n = 1;; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    const TwoMonitors monitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENT_UNMAP, cover_nothing);
    std::atomic<bool> is_reported{false};
    void* subscription = nullptr;
    ASSERT_TRUE(subscribe(PINRAIL_KIND_HOST, note_all_hook, &is_reported, &subscription).ok());
    const bool failed = test::with_nth_allocation_failing(n, [] {
      EXPECT_EQ(guarded([] {
                  go_blind(0, 0, "without memory");
                  return success();
                }),
                PINRAIL_SUCCESS);
    });
    EXPECT_TRUE(is_reported);
    EXPECT_FALSE(monitors.covers_the_page());
    unsubscribe(subscription);
    if (!failed) break;
    ++reached;
  }
  EXPECT_GT(reached, 3);
}

}  // namespace
}  // namespace pinrail::monitor
