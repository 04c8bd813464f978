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

#include "test/support/files.h"
#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

using namespace std::chrono_literals;

constexpr uintptr_t kBase = 0x10000000;

constexpr uintptr_t kLow = 0x100000;

using GrdmaRequest = OnePool<Pool>;

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
class GrdmaDefaultLimit : public OnePool<Pool> {
 protected:
  void SetUp() override {
    make({{"mpool_default_limits", "yes"}});
    limit_ = pool_->stats().size_limit;
    if (limit_ == UINT64_MAX) GTEST_SKIP() << "nothing bounds what this machine may register";
  }
  uint64_t limit_ = 0;
};

TEST_F(GrdmaDefaultLimit, what_is_in_use_may_exceed_it_and_what_is_idle_leaves_first) {
  const size_t half = limit_ / 2 / kPage * kPage;
  constexpr uintptr_t kFar = uintptr_t{1} << 40;
  pool_->use(kFar, half);
  const pinrail_handle_t first = pool_->must(2 * kFar, half);
  EXPECT_EQ(pool_->stats().evictions, 0u);
  const pinrail_handle_t second = pool_->must(3 * kFar, half);
  EXPECT_EQ(pool_->stats().evictions, 1u);
  const pinrail_handle_t third = pool_->must(4 * kFar, half);
  const pinrail_handle_t whole = pool_->must(5 * kFar, 4 * half);
  EXPECT_EQ(pool_->stats().registered_bytes, 7 * half);
  EXPECT_TRUE(pool_->invariants_hold());
  for (const pinrail_handle_t handle : {first, second, third, whole}) drop(handle);
  pool_->use(kFar, kPage);
  EXPECT_LE(pool_->stats().registered_bytes, limit_);
}

// R8: nor where something has to leave for the limit of registrations.
TEST_F(GrdmaDefaultLimit, what_exceeds_it_keeps_nothing_out_that_the_count_has_room_for) {
  make({{"mpool_default_limits", "yes"}, {"mpool_grdma_count_limit", "2"}});
  const Held held = pool_->hold(uintptr_t{1} << 40, limit_ / kPage * kPage + kPage);
  for (uintptr_t i = 1; i < 4; ++i) pool_->use(i * kBase, kPage);
  EXPECT_EQ(pool_->stats().evictions, 2u);
}

// R8: nor does it refuse what is pinned ahead of its use.
TEST_F(GrdmaDefaultLimit, more_than_it_can_be_pinned) {
  const size_t more = limit_ / kPage * kPage + kPage;
  pinrail_range_t range = {reinterpret_cast<void*>(uintptr_t{1} << 40), more};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = more / 4 / kPage * kPage;
  EXPECT_EQ(pool_->stats().evicts_idle_only, 1u);
  ASSERT_EQ(pinrail_mpool_prepin(pool_->get(), &range, 1, 1, &options, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->stats().registered_bytes, more);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &range, 1, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// R11: nor is it one that was set, which is never exceeded, though the numbers agree.
TEST_F(GrdmaDefaultLimit, the_same_number_that_was_set_is_another_limit) {
  const Pool other(*device_, at_most_bytes(static_cast<int64_t>(pool_->stats().size_limit)));
  EXPECT_EQ(other.status, PINRAIL_ERR_BAD_PARAM);
}

TEST_F(GrdmaDefaultLimit, one_that_was_set_refuses) {
  make({{"mpool_default_limits", "yes"}, {"mpool_grdma_size_limit", "16K"}});
  const Held held = pool_->hold(kBase, 4 * kPage);
  EXPECT_EQ(pool_->answer_to(2 * kBase, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->answer_to(2 * kBase, 5 * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
}

// R7: nothing is idle when the pool looks, because another thread gave back the last one after the device had refused.
TEST_F(GrdmaRequest, what_was_given_back_after_the_device_refused_has_made_room) {
  device_->set_capacity(SIZE_MAX, 1);
  const Held held = pool_->hold(kBase, kPage);
  pinrail_handle_t handle{};
  EXPECT_EQ(pool_->reg(2 * kBase, kPage, &handle), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  const uint64_t asked = device_->register_calls();
  device_->set_capacity(SIZE_MAX, 2);
  device_->fail_register(1, PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->reg(2 * kBase, kPage, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->register_calls(), asked + 2);
  drop(handle);
}

// R7: a request gives up when others have taken the room again and again.
class Overtaken : public GrdmaRequest {
 protected:
  // Beside threads that register and deregister one page each, of which one gives its page back at any time. BUSY:
  // there is no answer.
  pinrail_status_t ask_beside_others(uint32_t flags_of_others, std::chrono::milliseconds of_a_release) {
    std::atomic<bool> is_over{false};
    std::atomic<pinrail_status_t> answer{PINRAIL_ERR_BUSY};
    device_->on_deregister(
        [=](pinrail_registration_t*, pinrail_reason_t) { std::this_thread::sleep_for(of_a_release); });
    const auto call = [&](uintptr_t base, size_t length, uint32_t flags) {
      pinrail_handle_t handle;
      const pinrail_status_t status = pool_->reg(base, length, &handle, {}, flags);
      if (status == PINRAIL_SUCCESS) drop(handle);
      return status;
    };
    std::vector<std::thread> threads;
    for (uintptr_t thread = 1; thread <= 16; ++thread) {
      threads.emplace_back([&, thread] {
        for (uintptr_t i = 0; !is_over; ++i) call(thread * 0x20000000 + i % 256 * 2 * kPage, kPage, flags_of_others);
      });
    }
    threads.emplace_back([&] { answer = call(kBase, 50 * kPage, 0); });
    (void)comes_true([&] { return answer != PINRAIL_ERR_BUSY; });
    const pinrail_status_t answered = answer;
    is_over = true;
    for (std::thread& each : threads) each.join();
    EXPECT_TRUE(pool_->invariants_hold());
    return answered;
  }
};

TEST_F(Overtaken, by_those_who_register_and_deregister_what_is_not_kept) {
  make_pool({}, at_most_bytes(100 * kPage));
  const Held held = pool_->hold(kLow, 60 * kPage);
  EXPECT_EQ(ask_beside_others(PINRAIL_FLAG_CACHE_BYPASS, 5ms), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

TEST_F(Overtaken, by_those_who_miss_the_room_that_it_makes) {
  make_pool({}, at_most_bytes(100 * kPage));
  EXPECT_NE(ask_beside_others(0, 1ms), PINRAIL_ERR_BUSY);
}

TEST_F(Overtaken, where_the_device_is_full) {
  make_pool({}, {});
  device_->set_capacity(100 * kPage, SIZE_MAX);
  const Held held = pool_->hold(kLow, 60 * kPage);
  EXPECT_EQ(ask_beside_others(PINRAIL_FLAG_CACHE_BYPASS, 5ms), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

// R5: a call waits for the one that covers it, and not for the others that are under way.
TEST_F(GrdmaRequest, a_call_that_waits_for_another_goes_on_when_that_has_returned) {
  std::atomic<int> inside{0};
  std::atomic<bool> first_may_go{false}, other_may_go{false}, is_through{false};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    ++inside;
    const std::atomic<bool>& may_go = reinterpret_cast<uintptr_t>(request.addr) == kBase ? first_may_go : other_may_go;
    while (!may_go) std::this_thread::yield();
  });
  std::thread other([&] { pool_->use(2 * kBase, kPage); });
  std::thread first([&] { pool_->use(kBase, kPage); });
  while (inside != 2) std::this_thread::yield();
  std::thread waiter([&] {
    pool_->use(kBase, kPage);
    is_through = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  first_may_go = true;
  EXPECT_TRUE(comes_true([&] { return is_through.load(); }));
  other_may_go = true;
  for (std::thread* each : {&other, &first, &waiter}) each->join();
  EXPECT_EQ(device_->register_calls(), 2u);
}

// R7: one that an earlier search found idle, and that was taken since.
TEST_F(GrdmaRequest, what_was_idle_and_is_taken_again_leaves_no_room_for_another) {
  constexpr uintptr_t kCount = 16;
  make_pool({}, at_most_bytes(kCount * kPage));
  for (uintptr_t i = 0; i < kCount; ++i) pool_->use(kLow + 2 * i * kPage, kPage);
  const Held fresh = pool_->hold(0x10000000, kPage);  // the search for its victim found more than one idle
  EXPECT_EQ(pool_->stats().evictions, 1u);
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 1; i + 1 < kCount; ++i) held.push_back(pool_->must(kLow + 2 * i * kPage, kPage));
  EXPECT_EQ(pool_->answer_to(0x20000000, 2 * kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->stats().evictions, 1u);
  for (const pinrail_handle_t& each : held) drop(each);
}

// R2: refused for its arguments.
// R7: the message comes when the pool is closed to others, and before the first of what it has is given back.
TEST_F(GrdmaRequest, what_a_pool_has_that_is_being_destroyed_will_make_room) {
  make({{"mpool_grdma_print_stats", "yes"}});
  Pool first(*device_, room_for_one()), other(*device_, room_for_one());
  first.use(kBase, kPage);
  struct Asked {
    const Pool* pool;
    pinrail_status_t answer;
  } asked{&other, PINRAIL_SUCCESS};
  const auto ask = [](void* arg, int, const char*, const char*) {
    auto* const own = static_cast<Asked*>(arg);
    std::thread([own] { own->answer = own->pool->answer_to(2 * kBase, kPage); }).join();
  };
  pinrail_set_message_function(ask, &asked);
  EXPECT_EQ(first.close(), PINRAIL_SUCCESS);
  pinrail_set_message_function(nullptr, nullptr);
  EXPECT_EQ(asked.answer, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  other.use(2 * kBase, kPage);
}

TEST_F(GrdmaRequest, a_range_in_the_first_page_evicts_nothing_and_is_no_miss) {
  make_pool({}, at_most(1));
  pool_->use(kLow, kPage);
  EXPECT_EQ(pool_->answer_to(1, 10), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool_->stats().evictions, 0u);
  EXPECT_EQ(pool_->stats().misses, 1u);
  EXPECT_TRUE(pool_->has(kLow, kPage));
}

// registrar.h: what pages on demand has a maximum of its own, and all memory has none.
TEST_F(GrdmaRequest, on_demand_may_be_as_long_as_its_own_maximum_and_what_is_longer_evicts_nothing) {
  constexpr uint32_t kOnDemand = 1 | PINRAIL_TRAIT_ON_DEMAND;
  fake::FakeOptions fake = fake::options_with(&fake::FakeOptions::on_demand, PINRAIL_ON_DEMAND_IMPLICIT);
  fake.on_demand_max_length = 2 * kPage;
  for (const size_t most : {kPage, 4 * kPage}) {
    fake.max_length = most;
    make_pool(fake, at_most(1));
    pool_->use(kBase, 2 * kPage, kOnDemand);
    EXPECT_EQ(pool_->answer_to(kBase, 3 * kPage, kOnDemand), PINRAIL_ERR_NOT_SUPPORTED);
    EXPECT_EQ(pool_->stats().evictions, 0u);
    pool_->use(kPage, UINTPTR_MAX - 2 * kPage + 1, kOnDemand);
  }
}

// All memory on demand takes nothing of the limit, dead or not; nor does it hide what else is dead.
TEST_F(GrdmaRequest, an_event_of_everything_leaves_nothing_beside_all_memory_on_demand) {
  make_pool(fake::options_with(&fake::FakeOptions::on_demand, PINRAIL_ON_DEMAND_IMPLICIT));
  pool_->use(kPage, UINTPTR_MAX - 2 * kPage + 1, 1 | PINRAIL_TRAIT_ON_DEMAND);
  for (uintptr_t i = 1; i < 10; ++i) pool_->use(i * kBase, kPage);
  EXPECT_EQ(pool_->stats().pinned_bytes, 9 * kPage);
  report(0, SIZE_MAX);
  EXPECT_EQ(pool_->stats().dead_count, 10u);
  EXPECT_EQ(pool_->stats().dead_bytes, 9 * kPage);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(GrdmaRequest, a_call_that_races_four_times_is_one_miss) {
  device_->on_register([](const pinrail_register_request_t& request, pinrail_registration_t*) {
    pinrail_monitor_report(request.addr, request.length);
  });
  EXPECT_EQ(pool_->answer_to(kLow, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->stats().races, 4u);
  EXPECT_EQ(pool_->stats().misses, 1u);
  EXPECT_EQ(device_->register_calls(), 4u) << "R13: three times again";
  EXPECT_EQ(device_->live_count(), 0u);
  EXPECT_EQ(pool_->stats().registered_bytes + pool_->stats().registered_count, 0u);
}

TEST_F(GrdmaRequest, what_never_fits_is_said_once_whatever_its_size_is) {
  make_pool({}, at_most_bytes(10 * kPage));
  const std::string said = said_by([this] {
    for (size_t pages = 11; pages < 20; ++pages) {
      EXPECT_EQ(pool_->answer_to(kLow, pages * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
    }
  });
  EXPECT_EQ(times(said, "never fits"), 1u) << said;
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
TEST_F(GrdmaRequest, what_an_event_touches_while_the_pool_is_destroyed_is_given_back_as_invalidated) {
  pool_->use(kLow, kPage);
  pool_->use(2 * kLow, kPage);
  bool is_first = true;
  device_->on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
    if (is_first) report(reg->base == reinterpret_cast<void*>(kLow) ? 2 * kLow : kLow, kPage);
    is_first = false;
  });
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  device_->on_deregister(nullptr);
  EXPECT_EQ(device_->deregistered(PINRAIL_REASON_FINALIZED), 1u);
  EXPECT_EQ(device_->deregistered(PINRAIL_REASON_INVALIDATED), 1u);
}

}  // namespace
}  // namespace pinrail::test
