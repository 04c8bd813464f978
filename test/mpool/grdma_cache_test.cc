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

PoolOptions room_for_one() { return {1, PINRAIL_UNSET, 1, 0, "shared"}; }

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

// Refused requests change nothing; requests with unusual flags.

constexpr uintptr_t kLow = 0x100000;

class GrdmaRefusal : public ::testing::Test {
 protected:
  const Library library_;
  fake::FakeRegistrar fake_;
};

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

}  // namespace
}  // namespace pinrail::test
