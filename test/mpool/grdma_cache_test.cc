// SPDX-License-Identifier: BSD-3-Clause
// mpool/grdma: pools that share a cache name, drops by other threads, refused requests, which change nothing, and
// requests with unusual flags.
#include <gtest/gtest.h>
#include <pinrail/pin.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/support/host_table.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

fake::FakeOptions caller_mode() {
  fake::FakeOptions options;
  options.thread_mode = PINRAIL_THREAD_CALLER;
  options.needs_pool_scope = true;
  return options;
}

PoolOptions room_for_one() { return {1, PINRAIL_UNSET, 1, 0, "shared"}; }

TEST(GrdmaCache, what_is_dead_in_several_pools_of_the_cache_is_given_back_by_one_call) {
  Library library;
  fake::FakeRegistrar fake;
  const PoolOptions room_for_two = {1, PINRAIL_UNSET, 2, 0, "shared"};
  Pool pool(fake, room_for_two), first(fake, room_for_two), second(fake, room_for_two);
  first.use(kBase, kPage);
  second.use(kBase, kPage);
  report(kBase, kPage);
  pool.use(2 * kBase, kPage);
  EXPECT_EQ(fake.deregistered(PINRAIL_REASON_INVALIDATED), 2u);
}

// R7: however many pools share it.
TEST(GrdmaCache, what_is_dead_in_the_last_of_many_pools_makes_room) {
  Library library;
  fake::FakeRegistrar fake;
  std::vector<std::unique_ptr<Pool>> pools;
  for (int i = 0; i < 100; ++i) pools.push_back(std::make_unique<Pool>(fake, room_for_one()));
  for (const auto& pool : {pools.front().get(), pools.back().get()}) {
    pools.back()->use(kBase, kPage);
    report(kBase, kPage);
    pool->use(2 * kBase, kPage);
    EXPECT_EQ(fake.deregistered(PINRAIL_REASON_INVALIDATED), pool == pools.front().get() ? 1u : 2u);
    pools.back()->use(3 * kBase, kPage);
  }
}

// C6: the victim leaves the index before the registrar is called. The rights are the registrar's to write.
TEST(GrdmaVictim, leaves_the_index_though_the_registrar_has_cleared_what_it_had_written) {
  Library library;
  fake::FakeRegistrar fake;
  const Pool pool(fake, room_for_one());
  fake.on_deregister([](pinrail_registration_t* reg, pinrail_reason_t) { reg->rights = reg->lkey = reg->rkey = 0; });
  for (uintptr_t i = 3; i > 0; --i) {
    pool.use(i * kBase, kPage);
    ASSERT_EQ(pool.stats().indexed, 1u);
    ASSERT_TRUE(pool.invariants_hold());
  }
  EXPECT_FALSE(pool.has(3 * kBase, kPage));
  fake.on_register([](const pinrail_register_request_t&, pinrail_registration_t*) { throw 1; });
  EXPECT_EQ(pool.answer_to(2 * kBase, kPage), PINRAIL_ERR_ERROR) << "the victim of a request that fails";
  EXPECT_EQ(pool.stats().indexed, 0u);
  EXPECT_TRUE(pool.invariants_hold());
}

// R8. Nothing is mapped at these addresses, so the limit may be as large as this machine's memory.
TEST(GrdmaDefaultLimit, what_is_in_use_may_exceed_it_and_what_is_idle_leaves_first) {
  Library library(Settings{{"mpool_default_limits", "yes"}});
  const fake::FakeRegistrar fake;
  Pool pool(fake);
  const uint64_t limit = pool.stats().size_limit;
  if (limit == UINT64_MAX) GTEST_SKIP() << "nothing bounds what this machine may register";
  const size_t half = limit / 2 / kPage * kPage;
  constexpr uintptr_t kFar = uintptr_t{1} << 40;
  pool.use(kFar, half);
  const pinrail_handle_t first = pool.must(2 * kFar, half);
  EXPECT_EQ(pool.stats().evictions, 0u);
  const pinrail_handle_t second = pool.must(3 * kFar, half);
  EXPECT_EQ(pool.stats().evictions, 1u);
  const pinrail_handle_t third = pool.must(4 * kFar, half);
  const pinrail_handle_t whole = pool.must(5 * kFar, 4 * half);
  EXPECT_EQ(pool.stats().registered_bytes, 7 * half);
  EXPECT_TRUE(pool.invariants_hold());
  for (const pinrail_handle_t handle : {first, second, third, whole}) drop(handle);
  pool.use(kFar, kPage);
  EXPECT_LE(pool.stats().registered_bytes, limit);
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

// R8: nor does it refuse what is pinned ahead of its use.
TEST(GrdmaDefaultLimit, more_than_it_can_be_pinned) {
  Library library(Settings{{"mpool_default_limits", "yes"}});
  const fake::FakeRegistrar fake;
  Pool pool(fake);
  const uint64_t limit = pool.stats().size_limit;
  if (limit == UINT64_MAX) GTEST_SKIP() << "nothing bounds what this machine may register";
  const size_t more = limit / kPage * kPage + kPage;
  pinrail_range_t range = {reinterpret_cast<void*>(uintptr_t{1} << 40), more};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = more / 4 / kPage * kPage;
  EXPECT_EQ(pool.stats().evicts_idle_only, 1u);
  ASSERT_EQ(pinrail_mpool_prepin(pool.get(), &range, 1, 1, &options, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_bytes, more);
  EXPECT_EQ(pinrail_mpool_unpin(pool.get(), &range, 1, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(fake.live_count(), 0u);
}

TEST(GrdmaDefaultLimit, one_that_was_set_refuses) {
  Library library(Settings{{"mpool_default_limits", "yes"}, {"mpool_grdma_size_limit", "16K"}});
  const fake::FakeRegistrar fake;
  const Pool pool(fake);
  const Held held = pool.hold(kBase, 4 * kPage);
  EXPECT_EQ(pool.answer_to(2 * kBase, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.answer_to(2 * kBase, 5 * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
}

// R7: nothing is idle when the pool looks, because another thread gave back the last one after the device had refused.
TEST(GrdmaCache, what_was_given_back_after_the_device_refused_has_made_room) {
  Library library;
  fake::FakeRegistrar fake;
  const Pool pool(fake);
  fake.set_capacity(SIZE_MAX, 1);
  const Held held = pool.hold(kBase, kPage);
  pinrail_handle_t handle{};
  EXPECT_EQ(pool.reg(2 * kBase, kPage, &handle), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  const uint64_t asked = fake.register_calls();
  fake.set_capacity(SIZE_MAX, 2);
  fake.fail_register(1, PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.reg(2 * kBase, kPage, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(fake.register_calls(), asked + 2);
  drop(handle);
}

// R5: a call waits for the one that covers it, and not for the others that are under way.
TEST(GrdmaPending, a_call_that_waits_for_another_goes_on_when_that_has_returned) {
  Library library;
  fake::FakeRegistrar fake;
  Pool pool(fake);
  std::atomic<int> inside{0};
  std::atomic<bool> first_may_go{false}, other_may_go{false}, is_through{false};
  fake.on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    ++inside;
    const std::atomic<bool>& may_go = reinterpret_cast<uintptr_t>(request.addr) == kBase ? first_may_go : other_may_go;
    while (!may_go) std::this_thread::yield();
  });
  std::thread other([&] { pool.use(2 * kBase, kPage); });
  std::thread first([&] { pool.use(kBase, kPage); });
  while (inside != 2) std::this_thread::yield();
  std::thread waiter([&] {
    pool.use(kBase, kPage);
    is_through = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first_may_go = true;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_through && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(is_through);
  other_may_go = true;
  for (std::thread* each : {&other, &first, &waiter}) each->join();
  EXPECT_EQ(fake.register_calls(), 2u);
}

// C2: a CALLER registrar is called inside calls into its own pool only, also for what is dead.
TEST(GrdmaCache, what_is_dead_in_a_pool_with_a_caller_registrar_waits_for_a_call_into_that_pool) {
  Library library;
  fake::FakeRegistrar fake, caller_fake(caller_mode());
  Pool pool(fake, room_for_one()), caller(caller_fake, room_for_one());
  {
    const fake::PoolScope scope;
    caller.use(kBase, kPage);
  }
  report(kBase, kPage);
  pinrail_handle_t handle{};
  const pinrail_status_t refused = pool.reg(2 * kBase, kPage, &handle);
  EXPECT_TRUE(refused == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || refused == PINRAIL_ERR_OUT_OF_RESOURCE) << refused;
  EXPECT_EQ(caller_fake.live_count(), 1u);
  EXPECT_EQ(caller_fake.violations(), std::vector<std::string>{});
  {
    const fake::PoolScope scope;
    caller.use(2 * kBase, kPage);  // makes room by what is dead in its own pool
    report(2 * kBase, kPage);
    EXPECT_EQ(pinrail_mpool_progress(caller.get()), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(caller_fake.live_count(), 0u);
  pool.use(2 * kBase, kPage);
  const fake::PoolScope scope;
  EXPECT_EQ(caller.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(caller_fake.violations(), std::vector<std::string>{});
}

// The last drop of a dead registration gives it back, without another call.
class LastDrop : public ::testing::TestWithParam<bool> {
 protected:
  ~LastDrop() override {
    EXPECT_EQ(fake_.live_count(), 0u);
    EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
    EXPECT_EQ(fake_.violations(), std::vector<std::string>{});
  }
  // The event; and, if the parameter says so, it is found held once.
  void kill() {
    report(kBase, kPage);
    if (GetParam()) {
      EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
    }
    EXPECT_EQ(fake_.live_count(), 1u);
  }
  Library library_;
  fake::FakeRegistrar fake_;
  Pool pool_{fake_};
};

TEST_P(LastDrop, by_the_thread_that_took_it) {
  const pinrail_handle_t handle = pool_.must(kBase, kPage);
  kill();
  drop(handle);
}

TEST_P(LastDrop, by_a_thread_that_never_took_one) {
  const pinrail_handle_t handle = pool_.must(kBase, kPage);
  kill();
  std::thread([&] { drop(handle); }).join();
}

INSTANTIATE_TEST_SUITE_P(Found, LastDrop, ::testing::Bool());

// Refused requests change nothing; requests with unusual flags.

constexpr uintptr_t kLow = 0x100000;

class GrdmaRefusal : public ::testing::Test {
 protected:
  const Library library_;
  fake::FakeRegistrar fake_;
};

// R7: what is held leaves no room for it, whatever is evicted.
TEST_F(GrdmaRefusal, what_cannot_fit_beside_what_is_held_evicts_nothing) {
  Pool pool(fake_, {1, 100 * kPage});
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 0; i < 70; ++i) held.push_back(pool.must(kLow + 2 * i * kPage, kPage));
  for (uintptr_t i = 70; i < 100; ++i) pool.use(kLow + 2 * i * kPage, kPage);
  EXPECT_EQ(pool.answer_to(0x10000000, 31 * kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().evictions, 0u);
  EXPECT_EQ(pool.stats().registered_count, 100u);
  pool.use(0x10000000, 30 * kPage);
  EXPECT_EQ(pool.stats().evictions, 30u);
  for (const pinrail_handle_t& each : held) drop(each);
}

// R7: one that an earlier search found idle, and that was taken since.
TEST_F(GrdmaRefusal, what_was_idle_and_is_taken_again_leaves_no_room_for_another) {
  constexpr uintptr_t kCount = 16;
  Pool pool(fake_, {1, kCount * kPage});
  for (uintptr_t i = 0; i < kCount; ++i) pool.use(kLow + 2 * i * kPage, kPage);
  const Held fresh = pool.hold(0x10000000, kPage);  // the search for its victim found more than one idle
  EXPECT_EQ(pool.stats().evictions, 1u);
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 1; i + 1 < kCount; ++i) held.push_back(pool.must(kLow + 2 * i * kPage, kPage));
  EXPECT_EQ(pool.answer_to(0x20000000, 2 * kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().evictions, 1u);
  for (const pinrail_handle_t& each : held) drop(each);
}

// R2: refused for its arguments.
TEST_F(GrdmaRefusal, a_range_in_the_first_page_evicts_nothing_and_is_no_miss) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 1});
  pool.use(kLow, kPage);
  EXPECT_EQ(pool.answer_to(1, 10), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.stats().evictions, 0u);
  EXPECT_EQ(pool.stats().misses, 1u);
  EXPECT_TRUE(pool.has(kLow, kPage));
}

TEST_F(GrdmaRefusal, a_call_that_races_four_times_is_one_miss) {
  fake_.on_register([](const pinrail_register_request_t& request, pinrail_registration_t*) {
    pinrail_monitor_report(request.addr, request.length);
  });
  Pool pool(fake_);
  EXPECT_EQ(pool.answer_to(kLow, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().races, 4u);
  EXPECT_EQ(pool.stats().misses, 1u);
  EXPECT_EQ(fake_.register_calls(), 4u) << "R13: three times again";
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_EQ(pool.stats().registered_bytes + pool.stats().registered_count, 0u);
}

TEST_F(GrdmaRefusal, what_never_fits_is_said_once_whatever_its_size_is) {
  Pool pool(fake_, {1, 10 * kPage});
  testing::internal::CaptureStderr();
  for (size_t pages = 11; pages < 20; ++pages) {
    EXPECT_EQ(pool.answer_to(kLow, pages * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  const size_t first = said.find("never fits");
  ASSERT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("never fits", first + 1), std::string::npos) << said;
}

// R4: no request fails because of rights that were not requested.
TEST(GrdmaAllRights, that_the_device_has_no_room_for_evicts_nothing_and_what_was_asked_is_registered) {
  const Library library;
  pinrail_registrar_t table = host_table(nullptr);
  table.register_mem = [](void*, const pinrail_register_request_t* request, pinrail_registration_t*) {
    return (request->rights & PINRAIL_ACCESS_REMOTE_WRITE) != 0 ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS;
  };
  Pool pool(table);
  pool.use(kLow, kPage, PINRAIL_ACCESS_LOCAL_WRITE);
  pool.use(2 * kLow, kPage, PINRAIL_ACCESS_LOCAL_WRITE);
  const Held other = pool.hold(kLow, kPage, PINRAIL_ACCESS_REMOTE_READ);
  EXPECT_EQ(other.reg->rights, uint32_t{PINRAIL_ACCESS_REMOTE_READ});
  EXPECT_EQ(pool.stats().evictions, 0u);
  EXPECT_TRUE(pool.has(kLow, kPage) && pool.has(2 * kLow, kPage));
}

TEST_F(GrdmaRefusal, persistent_asked_for_what_is_cached_is_a_pin_of_the_callers_own) {
  Pool pool(fake_);
  pool.use(kLow, kPage);
  const pinrail_handle_t own = pool.must(kLow, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(fake_.register_calls(), 2u);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 1u) << "it displaces the equal one that is cached";
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_TRUE(pool.has(kLow, kPage)) << "later calls hit it";
  drop(own);
  EXPECT_EQ(fake_.live_count(), 0u) << "its last deregister gives it back";
}

TEST_F(GrdmaRefusal, persistent_asked_for_twice_is_one_pin) {
  Pool pool(fake_);
  const pinrail_handle_t first = pool.must(kLow, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  const pinrail_handle_t second = pool.must(kLow, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(first.reg, second.reg);
  drop(first);
  EXPECT_EQ(fake_.live_count(), 1u);
  drop(second);
  EXPECT_EQ(fake_.live_count(), 0u);
}

// R12: the address may belong to other memory by now.
TEST_F(GrdmaRefusal, what_bypassed_the_cache_is_given_back_as_invalidated_if_an_event_came) {
  Pool pool(fake_);
  const pinrail_handle_t gone = pool.must(kLow, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  const pinrail_handle_t there = pool.must(2 * kLow, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  report(kLow, kPage);
  drop(gone);
  drop(there);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_RELEASED), 1u);
  report(kLow, kPage);
  EXPECT_TRUE(pool.invariants_hold());
}

// R12, for what left the index because a larger registration took its place.
TEST_F(GrdmaRefusal, what_was_displaced_and_is_held_is_given_back_as_invalidated_if_an_event_came) {
  for (const bool are_summed_before : {false, true}) {
    SCOPED_TRACE(are_summed_before);
    Pool pool(fake_);
    const uint64_t invalidated = fake_.deregistered(PINRAIL_REASON_INVALIDATED);
    const uint64_t released = fake_.deregistered(PINRAIL_REASON_RELEASED);
    const pinrail_handle_t gone = pool.must(kLow, kPage);
    const pinrail_handle_t gone_too = pool.must(kLow + kPage, kPage);
    const pinrail_handle_t there = pool.must(kLow + 4 * kPage, kPage);
    const pinrail_handle_t large = pool.must(kLow, 8 * kPage);
    if (are_summed_before) {
      EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    }
    report(kLow, 2 * kPage);
    for (const pinrail_handle_t handle : {gone, gone_too, there, large}) drop(handle);
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED) - invalidated, 3u);
    EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_RELEASED) - released, 1u);
    EXPECT_EQ(fake_.live_count(), 0u);
    EXPECT_TRUE(pool.invariants_hold());
  }
}

// pool_registrations/M1 and pool_registrations/M2: the array grows while some are parked, and they leave it in any
// order.
TEST_F(GrdmaRefusal, what_is_dead_and_held_is_given_back_although_many_more_were_registered_since) {
  constexpr uintptr_t kHeld = 20, kOthers = 0x10000000;
  Pool pool(fake_);
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 0; i < kHeld; ++i) held.push_back(pool.must(kLow + i * kPage, kPage));
  pool.use(kLow, kHeld * kPage);  // displaces them
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  for (uintptr_t i = 0; i < 500; ++i) pool.use(kOthers + 2 * i * kPage, kPage);
  EXPECT_TRUE(pool.invariants_hold());
  report(kLow, kPage);
  for (uintptr_t i = 0; i < kHeld; ++i) {
    drop(held[i * 7 % kHeld]);
    EXPECT_TRUE(pool.invariants_hold());
  }
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 2u) << "one of them, and what displaced it";
  EXPECT_EQ(fake_.live_count(), 500u);
  for (uintptr_t i = 0; i < 500; ++i) report(kOthers + 2 * (i * 7 % 500) * kPage, kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_TRUE(pool.invariants_hold());
}

TEST_F(GrdmaRefusal, a_displaced_one_that_its_word_counts_is_given_back_as_invalidated_if_an_event_came) {
  Pool pool(fake_, {0});
  const pinrail_handle_t gone = pool.must(kLow, kPage);
  const pinrail_handle_t large = pool.must(kLow, 8 * kPage);
  report(kLow, kPage);
  drop(gone);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  drop(large);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 2u);
}

// R12: the event comes while another one is given back.
TEST_F(GrdmaRefusal, what_an_event_touches_while_the_pool_is_destroyed_is_given_back_as_invalidated) {
  {
    Pool pool(fake_);
    pool.use(kLow, kPage);
    pool.use(2 * kLow, kPage);
    bool is_first = true;
    fake_.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
      if (is_first) report(reg->base == reinterpret_cast<void*>(kLow) ? 2 * kLow : kLow, kPage);
      is_first = false;
    });
  }
  fake_.on_deregister(nullptr);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_FINALIZED), 1u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
}

// Of another registrar than there is, and of another index.
TEST(GrdmaNames, one_that_cannot_be_had_is_an_error_and_a_registrar_is_named) {
  const pinrail_setting_t settings[] = {{"monitor", "external"}, {"mpool_grdma_rcache_name", "no_such_index"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 2;
  ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS);
  fake::FakeRegistrar fake;
  pinrail_registrar_choice_t choice{};
  choice.table = fake.table();
  pinrail_mpool_t* pool = nullptr;
  EXPECT_NE(pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool), PINRAIL_SUCCESS);
  choice.table = nullptr;
  choice.name = "verbs";
  testing::internal::CaptureStderr();
  const pinrail_status_t status = pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(status, PINRAIL_SUCCESS);
  if (status == PINRAIL_ERR_NOT_AVAILABLE) {
    EXPECT_NE(said.find("verbs"), std::string::npos) << said;
  }
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
