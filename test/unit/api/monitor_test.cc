// SPDX-License-Identifier: BSD-3-Clause
// monitor_test.cc - memory events for other runtimes (E3's exception), through the API.
#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <pinrail/pinrail.h>

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "test/fake/fake_registrar.h"
#include "test/support/team.h"

namespace {

struct Heard {
  pinrail_mpool_t* pool = nullptr;
  void* buffer = nullptr;
  std::vector<std::pair<void*, size_t>> events;
  pinrail_status_t found = PINRAIL_SUCCESS;  // of a find from inside the event
};

// Allocates, and calls Pinrail: what no hook of ours may do.
void hear(void* arg, void* addr, size_t length) {
  auto* heard = static_cast<Heard*>(arg);
  heard->events.emplace_back(addr, length);
  pinrail_handle_t handle;
  if (heard->pool == nullptr) return;
  heard->found = pinrail_mpool_find(heard->pool, heard->buffer, 4096, 0, &handle);
  if (heard->found == PINRAIL_SUCCESS) {
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
}

pinrail_status_t start(const char* monitor) {
  const pinrail_setting_t setting = {"monitor", monitor};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = &setting;
  options.setting_count = 1;
  return pinrail_init(&options);
}

TEST(MonitorFace, a_stranger_hears_of_every_event_until_it_unsubscribes) {
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  Heard heard;
  pinrail_subscription_t* subscription = nullptr;
  char memory[64];
  ASSERT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_SUCCESS);
  pinrail_monitor_report(memory, sizeof(memory));
  ASSERT_EQ(heard.events.size(), 1U);
  const auto said = reinterpret_cast<uintptr_t>(heard.events[0].first);
  EXPECT_LE(said, reinterpret_cast<uintptr_t>(memory));
  EXPECT_GE(said + heard.events[0].second, reinterpret_cast<uintptr_t>(memory) + sizeof(memory));
  pinrail_monitor_report(memory, 0);
  EXPECT_EQ(heard.events.size(), 1U) << "an empty range is no event";
  pinrail_monitor_unsubscribe(subscription);
  pinrail_monitor_report(memory, sizeof(memory));
  EXPECT_EQ(heard.events.size(), 1U);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

TEST(MonitorFace, a_stranger_is_called_after_the_pools_with_no_lock_held) {
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  const pinrail::fake::FakeRegistrar registrar;
  pinrail_registrar_choice_t choice{};
  choice.table = registrar.table();
  Heard heard;
  heard.buffer = std::aligned_alloc(4096, 4096);
  ASSERT_EQ(pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &heard.pool), PINRAIL_SUCCESS);
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_SUCCESS);
  pinrail_handle_t handle;
  ASSERT_EQ(pinrail_mpool_register(heard.pool, heard.buffer, 4096, 0, 0, &handle), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  pinrail_monitor_report(heard.buffer, 4096);
  EXPECT_EQ(heard.events.size(), 1U);
  EXPECT_EQ(heard.found, PINRAIL_ERR_NOT_FOUND) << "it was called before the pool had heard of it";
  pinrail_monitor_unsubscribe(subscription);
  EXPECT_EQ(pinrail_mpool_destroy(heard.pool, 0), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  std::free(heard.buffer);
}

// A pool that registers to the byte, with its device, on three pages.
class BytePool {
 public:
  BytePool() {
    pinrail_registrar_choice_t choice{};
    choice.table = registrar_.table();
    EXPECT_EQ(pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool), PINRAIL_SUCCESS);
  }
  ~BytePool() {
    EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
    std::free(memory);
  }
  BytePool(const BytePool&) = delete;
  BytePool& operator=(const BytePool&) = delete;

  void use(size_t at) const {
    pinrail_handle_t handle;
    ASSERT_EQ(pinrail_mpool_register(pool, memory + at, 100, 0, 0, &handle), PINRAIL_SUCCESS);
    EXPECT_EQ(handle.reg->length, 100U) << "it is not registered to the byte";
    ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
  bool has(size_t at) const {
    pinrail_handle_t handle;
    if (pinrail_mpool_find(pool, memory + at, 100, 0, &handle) != PINRAIL_SUCCESS) return false;
    return pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
  }

  pinrail_mpool_t* pool = nullptr;
  char* const memory = static_cast<char*>(std::aligned_alloc(4096, 3 * 4096));

 private:
  static pinrail::fake::FakeOptions to_the_byte() {
    pinrail::fake::FakeOptions options;
    options.granularity = 1;
    return options;
  }
  const pinrail::fake::FakeRegistrar registrar_{to_the_byte()};
};

// munmap(memory + 4096, 4) and munmap(memory, 4100) take whole pages.
void expect_whole_pages(void (*report)(const BytePool& pool, size_t at, size_t length)) {
  const BytePool pool;
  for (const size_t at : {0U, 4096U, 8000U, 8192U}) pool.use(at);
  report(pool, 4096, 4);
  EXPECT_TRUE(pool.has(0) && pool.has(8192));
  EXPECT_FALSE(pool.has(4096) || pool.has(8000));
  pool.use(8000);
  report(pool, 0, 4100);
  EXPECT_TRUE(pool.has(8192));
  EXPECT_FALSE(pool.has(0) || pool.has(8000)) << "the rest of the last page is left";
}

TEST(MonitorFace, a_report_ends_what_lies_in_the_rest_of_its_pages) {
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  expect_whole_pages(
      [](const BytePool& pool, size_t at, size_t length) { pinrail_monitor_report(pool.memory + at, length); });
  expect_whole_pages([](const BytePool& pool, size_t at, size_t length) {
    EXPECT_EQ(pinrail_mpool_invalidate_range(pool.pool, pool.memory + at, length), PINRAIL_SUCCESS);
  });
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
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
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  Slow slow;
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(Slow::hear, &slow, &subscription), PINRAIL_SUCCESS);
  char memory[64];
  constexpr int kThreads = 8;
  pinrail::test::Team events(kThreads, [&] { pinrail_monitor_report(memory, sizeof(memory)); });
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
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

TEST(MonitorFace, kinds_of_memory_are_those_that_a_program_registers_each_listed_once) {
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  std::vector<std::string> names;
  pinrail_memory_kind_t kind{};
  kind.size = sizeof(kind);
  while (pinrail_memory_kind_at(names.size(), &kind) == PINRAIL_SUCCESS) names.emplace_back(kind.name);
  EXPECT_EQ(names, (std::vector<std::string>{"anonymous", "heap", "stack", "shared anonymous", "System V",
                                             "private file", "shared file", "file on disk"}));
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

TEST(MonitorFace, refuses_what_would_never_be_called) {
  Heard heard;
  pinrail_subscription_t* subscription = nullptr;
  EXPECT_EQ(pinrail_monitor_works(), 0);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_ERR_BAD_PARAM) << "before init";
  ASSERT_EQ(start("^patcher,uffd"), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_monitor_works(), 0);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, &subscription), PINRAIL_ERR_NOT_AVAILABLE);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  ASSERT_EQ(start("external"), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_monitor_works(), 1);
  EXPECT_EQ(pinrail_monitor_subscribe(nullptr, &heard, &subscription), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_monitor_subscribe(hear, &heard, nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(subscription, nullptr);
  pinrail_monitor_unsubscribe(nullptr);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

}  // namespace
