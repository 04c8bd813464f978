// SPDX-License-Identifier: BSD-3-Clause
// R10, C4: an embedder's function that throws leaves no lock, request or count behind.
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "test/support/library.h"
#include "test/support/registrars.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x100000;
constexpr size_t kLength = 0x1000;

struct Case {
  In where;
  pinrail_thread_mode_t mode;
};

// A hang is a failure.
class Unwinding : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }
};
// Out of what gives a registration back.
class UnwindingBack : public Unwinding {};

// The same range can be registered afterwards, no reference is counted that is not held, and the pool can be destroyed.
void expect_whole(Pool* pool, const LeavingRegistrar& registrar) {
  EXPECT_TRUE(registrar.has_left());
  on_a_thread([&] {
    const pinrail_handle_t handle = pool->must(kBase, kLength);
    drop(handle);
  });
  EXPECT_TRUE(pool->invariants_hold());
  EXPECT_EQ(pool->stats().registered_count, pool->stats().indexed);
  EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
}

TEST_P(Unwinding, out_of_a_miss_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {1, PINRAIL_UNSET, 1});
  // In the pool's way, so that a miss gives something back as well.
  drop(pool.must(2 * kBase, kLength));
  registrar.leave_in(GetParam().where);
  on_a_thread([&] {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pool.reg(kBase, kLength, &handle);
    if (status == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
  });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_release_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {0});
  registrar.leave_in(GetParam().where);
  on_a_thread([&] { pinrail_mpool_deregister(pool.must(kBase, kLength)); });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_drain_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {1});
  for (uintptr_t i = 0; i < 200; ++i) drop(pool.must(kBase + 2 * i * kLength, kLength));
  pinrail_monitor_report(reinterpret_cast<void*>(kBase), 400 * kLength);
  registrar.leave_in(GetParam().where);
  on_a_thread([&] { pinrail_mpool_progress(pool.get()); });
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().dead_bytes, 0u);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  expect_whole(&pool, registrar);
}

const Case kBack[] = {{In::deregister_mem, PINRAIL_THREAD_CONCURRENT},
                      {In::deregister_mem, PINRAIL_THREAD_SERIALIZED},
                      {In::tail_fini, PINRAIL_THREAD_CONCURRENT}};
const Case kForth[] = {{In::register_mem, PINRAIL_THREAD_CONCURRENT},
                       {In::register_mem, PINRAIL_THREAD_SERIALIZED},
                       {In::tail_init, PINRAIL_THREAD_CONCURRENT}};
INSTANTIATE_TEST_SUITE_P(back, Unwinding, ::testing::ValuesIn(kBack));
INSTANTIATE_TEST_SUITE_P(forth, Unwinding, ::testing::ValuesIn(kForth));
INSTANTIATE_TEST_SUITE_P(back, UnwindingBack, ::testing::ValuesIn(kBack));

// What is dead and on its way back to the device, when something goes wrong there: more dies than gc_limit permits, the
// device is slow or calls back, or a thread ends inside the registrar.

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

Settings with_gc_thread(const std::string& gc_limit) {
  return {{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_gc_limit", gc_limit}};
}

// E4: events wake the gc thread when they exceed the limit, and not again while it drains.
TEST(DeadAboveTheLimit, goes_back_at_once_though_it_died_during_a_drain) {
  const Library library(with_gc_thread("64K"));
  fake::FakeRegistrar device;
  const Pool pool(device);
  auto least = Clock::duration::max();
  for (int round = 0; round < 10; ++round) {
    std::atomic<bool> is_inside{false}, may_go{false};
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_inside.exchange(true)) return;
      while (!may_go) std::this_thread::yield();
    });
    pool.use(kBase, 64 * kPage);
    for (uintptr_t i = 0; i < 16; ++i) pool.use(2 * kBase + i * 64 * kPage, 64 * kPage);
    report(kBase, kPage);
    ASSERT_TRUE(comes_true([&] { return is_inside.load(); }));
    report(2 * kBase, 16 * 64 * kPage);
    const auto began = Clock::now();
    may_go = true;
    EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
    least = std::min(least, Clock::now() - began);
    device.on_deregister(nullptr);
  }
  EXPECT_LT(least, milliseconds(90)) << "100 ms is the time for what is below the limit";
}

// E4: a call has a batch in its hands while the gc thread comes and takes the others.
TEST(DeadAboveTheLimit, goes_back_at_once_though_a_call_has_put_it_back) {
  const Library library(with_gc_thread("64K"));
  fake::FakeRegistrar device;
  const Pool pool(device);
  constexpr uintptr_t kMany = 3000;
  auto least = Clock::duration::max();
  for (int round = 0; round < 5; ++round) {
    for (uintptr_t i = 0; i < kMany; ++i) pool.use(kBase + i * 2 * kPage, kPage);
    pool.use(kBase / 2, kPage);
    const pinrail_handle_t held = pool.must(kBase + 2 * kMany * kPage, kPage);
    std::atomic<int> inside{0};
    std::atomic<bool> gc_may_go{false}, may_go{false};
    const auto self = std::this_thread::get_id();
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (std::this_thread::get_id() == self) return;
      const int before = inside++;
      while (before == 0 && !gc_may_go) std::this_thread::yield();
      while (before == 1 && !may_go) std::this_thread::yield();
    });
    report(kBase / 2, kPage);
    ASSERT_TRUE(comes_true([&] { return inside == 1; })) << "the gc thread is at the device";
    report(kBase, 2 * kMany * kPage + kPage);
    std::thread dropper([&] { drop(held); });
    ASSERT_TRUE(comes_true([&] { return inside == 2; }));
    gc_may_go = true;
    std::this_thread::sleep_for(milliseconds(30));  // the gc thread finds nothing
    const auto began = Clock::now();
    may_go = true;
    EXPECT_TRUE(comes_true([&] { return device.live_count() == 0; }));
    least = std::min(least, Clock::now() - began);
    dropper.join();
    device.on_deregister(nullptr);
  }
  EXPECT_LT(least, milliseconds(90));
}

// R12: what an insert displaced is deregistered one by one; an event may come before the turn of each.
TEST(Displaced, is_in_reach_of_events_until_its_turn) {
  const Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  std::atomic<int> calls{0};
  uintptr_t second = 0;
  device.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (calls++ != 0) return;
    second = reinterpret_cast<uintptr_t>(reg->base) == kBase ? kBase + 2 * kPage : kBase;
    report(second, kPage);
  });
  pool.use(kBase, kPage);
  pool.use(kBase + 2 * kPage, kPage);
  const pinrail_handle_t large = pool.must(kBase, 4 * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(device.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  drop(large);
  EXPECT_TRUE(pool.invariants_hold());
}

// R3, R5: inside a registrar's function what is cached is a hit, also during an eviction, or while too much is dead for
// the short way.
TEST(InsideTheRegistrar, what_is_cached_is_hit_during_an_eviction) {
  const Library library;
  fake::FakeRegistrar device;
  constexpr uint64_t kMany = 64;
  const Pool pool(device, {1, PINRAIL_UNSET, kMany});
  for (uintptr_t i = 0; i < kMany; ++i) pool.use(kBase + i * 2 * kPage, kPage);
  bool is_first = true;
  device.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (!std::exchange(is_first, false)) return;
    const auto gone = reinterpret_cast<uintptr_t>(reg->base);
    for (uintptr_t i = 0; i < kMany; ++i) {
      const uintptr_t base = kBase + i * 2 * kPage;
      if (base != gone) pool.use(base, kPage);
    }
  });
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device.register_calls(), kMany);
  EXPECT_EQ(pool.stats().evictions, 1u);
}

TEST(InsideTheRegistrar, a_cached_range_is_hit_while_too_much_is_dead) {
  const Library library(Settings{{"mpool_grdma_gc_limit", "4K"}});
  fake::FakeRegistrar device;
  const Pool pool(device, {1, PINRAIL_UNSET, 2});
  const Held held = pool.hold(kBase, 64 * kPage);
  pool.use(kBase + 100 * kPage, 4 * kPage);
  bool is_first = true;
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (std::exchange(is_first, false)) pool.use(kBase + kPage, kPage);
  });
  report(kBase + 100 * kPage, kPage);
  pool.use(kBase + 200 * kPage, kPage);
  EXPECT_FALSE(is_first);
  EXPECT_EQ(device.register_calls(), 3u);
}

// R10: our own calls are no cancellation points.

// R5: a thread that waits for another's registration is cancelled after our call has returned, not inside it.
TEST(Cancellation, does_not_end_a_wait_for_another_thread) {
  const Library library;
  LeavingRegistrar registrar;
  registrar.hold_registrations();
  Pool pool(registrar.table(), {1});
  std::thread first([&] { drop(pool.must(kBase, kLength)); });
  while (!registrar.is_inside) usleep(100);
  struct Second {
    Pool* pool;
    std::atomic<bool> is_back{false};
  } second{&pool, {}};
  pthread_t waiting;
  const auto wait = [](void* pointer) -> void* {
    auto* own = static_cast<Second*>(pointer);
    pinrail_mpool_deregister(own->pool->must(kBase, kLength));
    own->is_back = true;
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&waiting, nullptr, wait, &second), 0);
  usleep(20000);
  pthread_cancel(waiting);
  usleep(20000);
  registrar.may_go_on = true;
  pthread_join(waiting, nullptr);
  first.join();
  EXPECT_TRUE(second.is_back);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

// Calls body() on a thread that is to be cancelled, and returns whether it came back.
bool comes_back(const std::function<void()>& body) {
  std::atomic<bool> is_back{false};
  on_a_thread([&] {
    pthread_cancel(pthread_self());
    body();
    is_back = true;
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
  });
  return is_back;
}

// R10: whatever a call reads or says.
TEST(Cancellation, ends_no_call) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  static char memory[4 * kLength];
  pinrail_range_t range = {memory, sizeof(memory)};
  auto machine = sized<pinrail_machine_t>();
  auto param = sized<pinrail_param_info_t>();
  auto component = sized<pinrail_component_info_t>();
  auto kind = sized<pinrail_memory_kind_t>();
  auto allocations = sized<pinrail_alloc_stats_t>();
  const struct {
    const char* name;
    std::function<void()> make;
  } calls[] = {
      {"machine_read", [&] { EXPECT_EQ(pinrail_machine_read(&machine), PINRAIL_SUCCESS); }},
      {"component_at", [&] { EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_SUCCESS); }},
      {"memory_kind_at", [&] { EXPECT_EQ(pinrail_memory_kind_at(0, &kind), PINRAIL_SUCCESS); }},
      {"monitors_at_work", [] { EXPECT_NE(pinrail_monitors_at_work(), nullptr); }},
      {"param_find", [&] { EXPECT_EQ(pinrail_param_find("mpool", &param), PINRAIL_SUCCESS); }},
      {"param_set", [] { EXPECT_EQ(pinrail_param_set("mca_base_verbose", "many"), PINRAIL_ERR_BAD_PARAM); }},
      {"monitor_subscribe",
       [] {
         pinrail_subscription_t* subscription = nullptr;
         (void)pinrail_monitor_subscribe([](void*, void*, size_t) {}, nullptr, &subscription);
         pinrail_monitor_unsubscribe(subscription);
       }},
      {"register", [&] { pool.use(reinterpret_cast<uintptr_t>(memory), kLength); }},
      {"a wrong register", [&] { EXPECT_EQ(pool.reg(0, 0, nullptr), PINRAIL_ERR_BAD_PARAM); }},
      {"register_with",
       [&] {
         pinrail_register_options_t options = PINRAIL_REGISTER_OPTIONS_INIT;
         pinrail_handle_t handle{};
         EXPECT_EQ(pinrail_mpool_register_with(pool.get(), memory, 1, 1, 0, &options, &handle), PINRAIL_SUCCESS);
         drop(handle);
       }},
      {"evict", [&] { (void)pinrail_mpool_evict(pool.get()); }},
      {"progress", [&] { EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS); }},
      {"checkpoint", [&] { EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS); }},
      {"alloc",
       [&] {
         void* at = nullptr;
         EXPECT_EQ(pinrail_mpool_alloc(pool.get(), 100, 0, PINRAIL_NODE_ANY, &at), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_realloc(pool.get(), at, size_t{4} << 20, &at), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool.get(), &allocations), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_free(pool.get(), at), PINRAIL_SUCCESS);
       }},
      {"chunk_stream",
       [&] {
         pinrail_chunk_stream_t* stream = nullptr;
         pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
         options.chunk_size = kLength;
         options.ahead = 2;
         EXPECT_EQ(pinrail_chunk_stream_open(pool.get(), memory, sizeof(memory), 1, &options, &stream),
                   PINRAIL_SUCCESS);
         pinrail_handle_t handle{};
         EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
         drop(handle);
         EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
       }},
      {"prepin",
       [&] {
         pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
         options.flags = PINRAIL_PREPIN_HUGE_PAGES;  // counting them opens a file
         EXPECT_EQ(pinrail_mpool_prepin(pool.get(), &range, 1, 1, &options, nullptr), PINRAIL_SUCCESS);
         pinrail_pinned_t pinned{};
         EXPECT_EQ(pinrail_mpool_query(pool.get(), memory, 1, 1, &pinned, nullptr, 0, nullptr), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_unpin(pool.get(), &range, 1, 1), PINRAIL_SUCCESS);
       }},
  };
  for (const auto& call : calls) EXPECT_TRUE(comes_back(call.make)) << call.name;
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  alarm(0);
}

// R10: a request registers a queued chunk for the job, and other threads wait for that chunk.
TEST(Cancellation, does_not_end_a_request_for_a_queued_chunk) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  std::atomic<int> calls{0};
  std::atomic<bool> may_go_on{false};
  registrar.in_register = [&] {
    if (calls++ != 0) return;
    while (!may_go_on) usleep(100);
  };
  Pool pool(registrar.table(), {1});
  pinrail_range_t range = {reinterpret_cast<void*>(kBase), 16 * kLength};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.flags = PINRAIL_PREPIN_HUGE_PAGES;
  options.chunk_size = kLength;
  options.threads = 1;
  pinrail_prepin_t* prepin = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool.get(), &range, 1, 1, &options, &prepin), PINRAIL_SUCCESS);
  while (calls == 0) usleep(100);
  on_a_thread([&] {
    pthread_cancel(pthread_self());
    const pinrail_handle_t handle = pool.must(kBase + 8 * kLength, kLength);
    drop(handle);
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
  });
  may_go_on = true;
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool.get(), &range, 1, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  alarm(0);
}

}  // namespace
}  // namespace pinrail::test
