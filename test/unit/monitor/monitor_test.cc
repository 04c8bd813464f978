// SPDX-License-Identifier: BSD-3-Clause
// monitor_test.cc - what several monitors see together, and what is left when one of them goes blind (E5).
#include "framework/monitor/monitor.h"
#include "config.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <link.h>
#include <sched.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/core/compiler.h"
#include "base/core/status.h"
#include "base/sync/deferred_hook.h"
#include "framework/monitor/coverage.h"
#include "framework/monitor/own_calls.h"
#include "framework/monitor/subscriptions_hook.h"
#include "test/support/cases.h"
#include "test/support/files.h"
#include "test/support/threads.h"

namespace pinrail::monitor {
namespace {

constexpr size_t kPage = 4096;

// Of the two monitors: their host tables, and what each of them sees wherever it happens.
const pinrail_host_t* hosts[2];
uint32_t events[2];

template <int which>
pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  hosts[which] = host;
  *context_out = &events[which];
  return PINRAIL_SUCCESS;
}
uint32_t sees(void* context) { return *static_cast<const uint32_t*>(context); }
void close_it(void*) {}
pinrail_status_t start_it(void*) { return PINRAIL_SUCCESS; }
int stops = 0;
void stop_it(void*) { ++stops; }
uint32_t cover_nothing(void*, const pinrail_mapping_t*) { return 0; }
uint32_t cover_all(void*, const pinrail_mapping_t*) { return PINRAIL_EVENTS_ALL; }

using Cover = uint32_t (*)(void*, const pinrail_mapping_t*);

pinrail_monitor_ops_t ops(Cover cover, uint32_t more_flags) {
  auto table = test::sized<pinrail_monitor_ops_t>();
  table.start = start_it;
  table.stop = stop_it;
  table.sees = sees;
  table.cover = cover;
  // ANY_CALLER: else they are tried with real events, of which they hear nothing.
  table.flags = PINRAIL_MONITOR_ANY_CALLER | more_flags;
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

// Two monitors, asked for by name unless a test wants others, and a page of memory.
class TwoMonitors {
 public:
  // What each of them sees anywhere, and what it says of a mapping (NULL: nothing).
  TwoMonitors(uint32_t first_events, Cover first_cover, uint32_t second_events, Cover second_cover,
              uint32_t flags_of_first = 0, const char* named = "first,second")
      : first_ops_(ops(first_cover, flags_of_first)), second_ops_(ops(second_cover, 0)) {
    events[0] = first_events;
    events[1] = second_events;
    sources_.settings.push_back({"monitor", named});
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

  static bool is_told() { return is_told_afterwards(); }
  static bool sees_all() { return sees_all_memory(); }
  bool covers_the_page() const { return covers(reinterpret_cast<uintptr_t>(page_), kPage); }

 private:
  const pinrail_monitor_ops_t first_ops_, second_ops_;
  const pinrail_component_t first_ = component("first", 20, open_it<0>, &first_ops_);
  const pinrail_component_t second_ = component("second", 10, open_it<1>, &second_ops_);
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

TEST(Monitors, what_the_blind_one_saw_or_covered_of_a_mapping_is_not_covered_any_more) {
  for (const uint32_t seen : {uint32_t{PINRAIL_EVENTS_ALL}, uint32_t{0}}) {
    const TwoMonitors monitors(seen, seen != 0 ? nullptr : cover_all, PINRAIL_EVENT_UNMAP, cover_nothing);
    EXPECT_TRUE(monitors.covers_the_page());
    go_blind(0, 0, "as a test wants it");
    EXPECT_FALSE(works(nullptr)) << "the second one still sees something, but no kind of memory is kept with that";
    EXPECT_FALSE(monitors.covers_the_page());
  }
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

TEST(Monitors, each_that_was_started_is_stopped_once_and_no_other) {
  const auto stops_with = [](uint32_t first, uint32_t second) {
    stops = 0;
    { const TwoMonitors monitors(first, nullptr, second, nullptr, 0, ""); }
    return stops;
  };
  EXPECT_EQ(stops_with(PINRAIL_EVENTS_ALL, PINRAIL_EVENTS_ALL), 1) << "the second one adds nothing";
  EXPECT_EQ(stops_with(PINRAIL_EVENT_UNMAP, PINRAIL_EVENTS_ALL), 2) << "then the first one adds nothing";
}

TEST(Monitors, what_one_alone_reports_before_is_not_told_afterwards) {
  constexpr uint32_t kAll = PINRAIL_EVENTS_ALL, kDropped = PINRAIL_EVENT_DONTNEED;
  EXPECT_FALSE(TwoMonitors(kAll, nullptr, kDropped, nullptr).is_told());
  EXPECT_TRUE(TwoMonitors(kAll, nullptr, kDropped, nullptr, PINRAIL_MONITOR_AFTERWARDS).is_told());
  EXPECT_TRUE(TwoMonitors(kDropped, nullptr, 0, cover_all, PINRAIL_MONITOR_AFTERWARDS).is_told());
  EXPECT_FALSE(TwoMonitors(kAll & ~kDropped, nullptr, 0, cover_all, PINRAIL_MONITOR_AFTERWARDS).is_told());
  EXPECT_FALSE(TwoMonitors(kDropped, nullptr, kAll, nullptr, PINRAIL_MONITOR_AFTERWARDS).is_told());
}

TEST(Monitors, one_that_watches_when_asked_does_not_see_all_memory) {
  EXPECT_TRUE(TwoMonitors(PINRAIL_EVENTS_ALL, nullptr, 0, nullptr).sees_all());
  EXPECT_FALSE(TwoMonitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENT_UNMAP, cover_all).sees_all());
  EXPECT_FALSE(TwoMonitors(PINRAIL_EVENT_UNMAP, nullptr, 0, nullptr).sees_all()) << "nothing is kept";
}

// Notes whether all memory of the process was reported.
void note_all_hook(void* noted, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<std::atomic<bool>*>(noted)->store(true);
}

TEST(Monitors, without_memory_the_blind_ones_registrations_die_all_the_same) {
  NEED_GLIBC("the library brings its own operator new");
  const int reached = test::for_each_allocation([](long n) {
    const TwoMonitors monitors(PINRAIL_EVENTS_ALL, nullptr, PINRAIL_EVENT_UNMAP, cover_nothing);
    std::atomic<bool> is_reported{false};
    void* subscription = nullptr;
    EXPECT_TRUE(subscribe(PINRAIL_KIND_HOST, note_all_hook, &is_reported, &subscription).ok());
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
    return failed;
  });
  EXPECT_GT(reached, 3);
}

// A subscription is freed after the last hook that may use it, and a removal does not wait for
// those that begin later.

constexpr uintptr_t kBase = 0x10000;

// Delivers another event from within its hook, and lasts until it may leave.
struct Nested {
  std::atomic<int> entered{0}, left{0};
  std::atomic<bool> may_leave{false};
  static void hear(void* nested, uintptr_t base, size_t length) {
    thread_local bool is_inside = false;
    auto* const self = static_cast<Nested*>(nested);
    if (std::exchange(is_inside, true)) return;
    report_hook(0, base, length);
    ++self->entered;
    while (!self->may_leave.load()) sched_yield();
    ++self->left;
    is_inside = false;
  }
};

// A signal handler that frees memory interrupts the hook of another event: the end of the inner one is not that of the
// outer one. Threads count themselves in at different places.
TEST(Unsubscribe, waits_for_events_under_way_that_others_have_interrupted) {
  constexpr int kThreads = 8;
  Nested nested;
  void* subscription = nullptr;
  ASSERT_TRUE(subscribe(0, Nested::hear, &nested, &subscription).ok());
  test::Team reporters(kThreads, [] { report_hook(0, kBase, 1); });
  while (nested.entered.load() != kThreads) sched_yield();
  std::thread leaver([&] {
    unsubscribe(subscription);
    EXPECT_EQ(nested.left.load(), kThreads);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  nested.may_leave = true;
  reporters.join();
  leaver.join();
}

// Each hook lasts until the next one has begun, so that there is one at any time. A removal waits for those under way.
// Both threads count their hooks in one line, as threads do if there are more of them than lines.
struct Overlapping {
  std::atomic<uint64_t> begun{0};
  std::atomic<bool> is_over{false};
  static void hear(void* overlapping, uintptr_t, size_t) {
    auto* const self = static_cast<Overlapping*>(overlapping);
    const uint64_t own = self->begun.fetch_add(1) + 1;
    while (self->begun.load() == own && !self->is_over.load()) sched_yield();
  }
};

TEST(Unsubscribe, does_not_wait_for_hooks_that_begin_later) {
  Overlapping overlapping;
  void* stays = nullptr;
  ASSERT_TRUE(subscribe(0, Overlapping::hear, &overlapping, &stays).ok());
  const auto deliver = [&] {
    deferred::state.line = 1;
    while (!overlapping.is_over.load()) report_hook(0, kBase, 1);
  };
  test::Team deliveries(2, deliver);
  const Hook count = [](void* heard, uintptr_t, size_t) { static_cast<std::atomic<uint64_t>*>(heard)->fetch_add(1); };
  for (int i = 0; i < 100; ++i) {
    auto* const heard = new std::atomic<uint64_t>{0};
    void* leaves = nullptr;
    ASSERT_TRUE(subscribe(0, count, heard, &leaves).ok());
    while (heard->load() == 0) sched_yield();
    unsubscribe(leaves);
    delete heard;  // AddressSanitizer and ThreadSanitizer would see a hook that still uses it
  }
  overlapping.is_over = true;
  deliveries.join();
  unsubscribe(stays);
}

// One that has counted itself at the side that a removal has just left counts itself at the other one instead.
TEST(Unsubscribe, leaves_no_hook_counted_that_came_while_it_switched_sides) {
  static Subscriptions none;
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> came{0};
  const auto come_and_go = [&] {
    for (; !is_over.load(); ++came) Subscriptions::leave_hook(none.enter_hook());
  };
  test::Team hooks(2, come_and_go);
  while (came.load() < 2000000) none.wait_for_hooks();
  is_over = true;
  hooks.join();
  for (const Subscriptions::Line& line : none.lines) EXPECT_EQ(line.side[0].load() | line.side[1].load(), 0U);
}

// Which loaded allocators are new since the last look.

// A loaded copy of an allocator.
struct Loaded {
  explicit Loaded(const std::string& path) : handle(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {}
  ~Loaded() {
    if (handle != nullptr) dlclose(handle);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  uintptr_t base() const {
    link_map* map = nullptr;
    return handle != nullptr && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_addr : 0;
  }
  void* handle;
};

TEST(Allocators, one_that_is_loaded_where_another_was_is_new) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  const test::TempFolder folder;
  const std::string bytes = test::read_whole(PINRAIL_TEST_BUILD "/test/own_calls/.libs/raw_malloc.so");
  const std::string first = folder.write("first.so", bytes), second = folder.write("second.so", bytes);
  Allocators allocators;
  allocators.find_new();  // what this program has
  uintptr_t base = 0;
  {
    const Loaded loaded(first);
    base = loaded.base();
    ASSERT_NE(base, 0u) << dlerror();
    EXPECT_EQ(allocators.find_new().text, first);
    EXPECT_STREQ(allocators.find_new().text, "");
  }
  const Loaded loaded(second);
  ASSERT_EQ(loaded.base(), base);
  EXPECT_EQ(allocators.find_new().text, second);
  EXPECT_STREQ(allocators.find_new().text, "");
}

// Go's runtime exports no allocator.
TEST(Allocators, an_object_with_a_note_of_go_is_one) {
  Allocators allocators;
  allocators.find_new();
  const std::string path = PINRAIL_TEST_BUILD "/test/own_calls/.libs/go_note.so";
  const Loaded loaded(path);
  ASSERT_NE(loaded.handle, nullptr) << dlerror();
  EXPECT_EQ(allocators.find_new().text, path);
}

}  // namespace
}  // namespace pinrail::monitor
