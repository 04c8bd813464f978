// SPDX-License-Identifier: BSD-3-Clause
// mpool/grdma as an embedder sees it: registrations, limits, events, ends. One thread; see test/stress for more.
#include <gtest/gtest.h>

#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

class Grdma : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(fake_.violations(), std::vector<std::string>{}); }
  Library library_;
  fake::FakeRegistrar fake_;
};

TEST_F(Grdma, a_range_whose_whole_pages_leave_the_address_space_is_bad_param) {
  const Pool pool(fake_);
  EXPECT_EQ(pool.answer_to(UINTPTR_MAX - 10, 10), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(fake_.register_calls(), 0u);
}

TEST_F(Grdma, a_second_call_is_a_hit_and_the_device_is_asked_once) {
  Pool pool(fake_);
  const pinrail_handle_t first = pool.must(kBase + 100, 5000);
  EXPECT_EQ(first.reg->base, reinterpret_cast<void*>(kBase));
  EXPECT_EQ(first.reg->length, 2 * kPage);
  EXPECT_EQ(first.reg->pool, pool.get());
  const pinrail_handle_t second = pool.must(kBase, 2 * kPage);
  EXPECT_EQ(first.reg, second.reg);
  EXPECT_EQ(first.reg->lkey, fake_.live()[0].lkey);
  drop(first);
  drop(second);
  pool.use(kBase, 1);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_EQ(fake_.live_count(), 1u);
  EXPECT_EQ(pool.stats().hits, 2u);
  EXPECT_EQ(pool.stats().misses, 1u);
}

TEST_F(Grdma, a_part_of_a_registration_holds_the_whole_until_both_are_released) {
  Pool pool(fake_, {0});  // leave_pinned 0: an unreferenced registration is returned at once
  const pinrail_handle_t whole = pool.must(0x1000, 3 * kPage);
  const pinrail_handle_t part = pool.must(0x2000, kPage);
  EXPECT_EQ(whole.reg, part.reg);
  drop(whole);
  EXPECT_EQ(fake_.live_count(), 1u);
  drop(part);
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_RELEASED), 1u);
  EXPECT_EQ(pool.stats().registered_bytes, 0u);
}

TEST_F(Grdma, what_was_released_is_given_back_only_when_the_device_runs_out) {
  fake_.set_capacity(SIZE_MAX, 2);
  Pool pool(fake_);
  pool.use(0x1000, kPage);
  pool.use(0x3000, kPage);
  EXPECT_EQ(fake_.live_count(), 2u);
  pool.use(0x5000, kPage);
  EXPECT_FALSE(pool.has(0x1000, kPage));
  EXPECT_TRUE(pool.has(0x3000, kPage));
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_EVICTED), 1u);
  EXPECT_EQ(pool.stats().retries, 1u);
}

TEST_F(Grdma, the_evictor_passes_by_what_was_hit) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 3});
  for (uintptr_t i = 1; i <= 3; ++i) pool.use(kBase * i, kPage);
  pool.use(kBase * 4, kPage);  // evicts 1
  EXPECT_FALSE(pool.has(kBase * 1, kPage));
  pool.use(kBase * 2, kPage);  // 3 is the oldest now
  pool.use(kBase * 5, kPage);
  EXPECT_FALSE(pool.has(kBase * 3, kPage));
  pool.use(kBase * 6, kPage);  // 4: 2 was used later
  EXPECT_FALSE(pool.has(kBase * 4, kPage));
  EXPECT_TRUE(pool.has(kBase * 2, kPage));
  EXPECT_EQ(pool.stats().evictions, 3u);
}

// R2, E1: a victim whose place was taken is dead while the device registers what takes its place. A find or an event
// may take it out of the index meanwhile; otherwise the insert does.
TEST_F(Grdma, a_victim_is_gone_before_the_device_registers_what_takes_its_place) {
  enum class By : uint8_t { insert, find, event };
  for (const By by : {By::insert, By::find, By::event}) {
    Pool pool(fake_, {1, PINRAIL_UNSET, 1});
    pool.use(kBase, kPage);
    fake_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
      EXPECT_EQ(fake_.live_count(), 0u);
      if (by == By::event) pinrail_monitor_report(reinterpret_cast<void*>(kBase), kPage);
      if (by == By::find) {
        EXPECT_FALSE(pool.has(kBase, kPage));
      }
      std::thread([&] {
        EXPECT_EQ(pool.answer_to(3 * kBase, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)
            << "no release is left to wait for";
      }).join();
    });
    pool.use(2 * kBase, kPage);
    fake_.on_register({});
    EXPECT_EQ(pool.stats().indexed, 1u);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_TRUE(pool.has(2 * kBase, kPage));
    EXPECT_FALSE(pool.has(kBase, kPage));
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  }
}

TEST_F(Grdma, a_victim_whose_place_is_not_used_after_all_leaves_the_index_too) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 1});
  pool.use(kBase, kPage);
  fake_.fail_register(1, PINRAIL_ERR_ERROR);
  EXPECT_EQ(pool.answer_to(2 * kBase, kPage, PINRAIL_RIGHTS_MASK), PINRAIL_ERR_ERROR);
  EXPECT_EQ(pool.stats().indexed, 0u);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_TRUE(pool.invariants_hold());
  pool.use(kBase, kPage);
  EXPECT_EQ(pool.stats().indexed, 1u);
}

// R7: a checkpoint's search has found it held, and it is idle at the next search.
TEST_F(Grdma, what_a_checkpoint_found_held_is_evicted_once_it_is_idle) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 1});
  const pinrail_handle_t held = pool.must(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  drop(held);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
}

TEST_F(Grdma, what_is_referenced_is_never_evicted_and_idle_again_it_is) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 2});
  const pinrail_handle_t held = pool.must(kBase, kPage);
  for (uintptr_t i = 2; i < 10; ++i) pool.use(kBase * i, kPage);
  EXPECT_TRUE(pool.has(kBase, kPage));
  const Held other = pool.hold(kBase * 20, kPage);
  pinrail_handle_t third{};
  EXPECT_EQ(pool.reg(kBase * 21, kPage, &third), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(third.reg, nullptr);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  drop(held);
  pool.use(kBase * 21, kPage);
  EXPECT_FALSE(pool.has(kBase, kPage)) << "parked while it was held, listed again by its last drop";
}

TEST_F(Grdma, the_byte_limit_holds_at_every_step_and_what_never_fits_is_out_of_resource) {
  Pool pool(fake_, {1, 4 * kPage});
  for (uintptr_t i = 1; i < 50; ++i) {
    pool.use(kBase * i, (1 + i % 4) * kPage);
    EXPECT_LE(fake_.peak_live_bytes(), 4 * kPage);
    EXPECT_EQ(pool.stats().registered_bytes, fake_.live_bytes());
  }
  EXPECT_EQ(pool.answer_to(kBase, 5 * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_TRUE(pool.has(kBase * 49, 2 * kPage)) << "a request that never fits evicts nothing";
  EXPECT_EQ(pool.stats().peak_registered_bytes, fake_.peak_live_bytes());
}

TEST_F(Grdma, a_device_that_never_agrees_gets_everything_idle_back_first) {
  Pool pool(fake_);
  for (uintptr_t i = 1; i <= 5; ++i) pool.use(kBase * i, kPage);
  const pinrail_handle_t held = pool.must(kBase * 6, kPage);
  fake_.fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.answer_to(kBase * 7, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  drop(held);
  EXPECT_EQ(pool.answer_to(kBase * 7, kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(fake_.live_count(), 0u);
}

TEST_F(Grdma, a_persistent_one_serves_others_and_goes_with_its_last_reference) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 2});
  const pinrail_handle_t pin = pool.must(kBase, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  const pinrail_handle_t user = pool.must(kBase, kPage);
  EXPECT_EQ(pin.reg, user.reg);
  drop(user);
  pool.use(kBase, 2 * kPage);  // contains it, but does not displace it
  EXPECT_TRUE(fake_.is_live(pin.reg));
  drop(pin);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_RELEASED), 1u);
}

TEST_F(Grdma, handles_that_are_spent_are_bad_param) {
  Pool pool(fake_);
  const pinrail_handle_t handle = pool.must(kBase, kPage);
  drop(handle);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM) << "no reference is left";
  ASSERT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM) << "it is gone";
  const Held next = pool.hold(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM) << "its memory serves another";
}

TEST_F(Grdma, an_event_hides_at_once_and_the_device_gives_back_on_the_next_miss) {
  Pool pool(fake_);
  pool.use(kBase, 4 * kPage);
  report(kBase + kPage, 1);
  EXPECT_FALSE(pool.has(kBase, kPage));
  EXPECT_EQ(fake_.live_count(), 1u) << "a hook calls no registrar";
  EXPECT_EQ(pool.stats().dead_bytes, 4 * kPage);
  pool.use(kBase, 4 * kPage);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  EXPECT_EQ(fake_.live_count(), 1u);
  EXPECT_EQ(pool.stats().dead_bytes, 0u);
}

TEST_F(Grdma, invalidate_range_of_one_pool_leaves_the_others_alone) {
  Pool pool(fake_), other(fake_);
  pool.use(kBase, kPage);
  other.use(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), reinterpret_cast<void*>(kBase), kPage), PINRAIL_SUCCESS);
  EXPECT_FALSE(pool.has(kBase, kPage));
  EXPECT_TRUE(other.has(kBase, kPage));
}

TEST_F(Grdma, a_call_from_inside_the_device_call_never_waits_for_itself) {
  Pool pool(fake_);
  pinrail_handle_t inner{};
  bool once = true;
  fake_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!once) return;
    once = false;
    inner = pool.must(kBase, kPage);
  });
  const Held outer = pool.hold(kBase, kPage);
  EXPECT_NE(inner.reg, outer.reg);
  drop(inner);
  EXPECT_EQ(fake_.live_count(), 1u);
}

// It would wait for the call that it is made in, or return to a registrar that is closed.
TEST_F(Grdma, a_pool_is_not_destroyed_inside_a_registrar) {
  Pool pool(fake_);
  std::vector<pinrail_status_t> inside;
  const auto destroy = [&] {
    for (const uint32_t flags : {0u, uint32_t{PINRAIL_DESTROY_FORCE}})
      inside.push_back(pinrail_mpool_destroy(pool.get(), flags));
    inside.push_back(pinrail_finalize());
  };
  fake_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) { destroy(); });
  pool.use(kBase, kPage);
  fake_.on_register(nullptr);
  fake_.on_deregister([&](const pinrail_registration_t*, pinrail_reason_t) { destroy(); });
  ASSERT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  fake_.on_deregister(nullptr);
  EXPECT_EQ(inside, std::vector<pinrail_status_t>(6, PINRAIL_ERR_BUSY));
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

TEST_F(Grdma, a_referenced_pool_is_busy_and_force_leaves_one_harmless_deregister) {
  Pool pool(fake_);
  const pinrail_handle_t handle = pool.must(kBase, kPage);
  const pinrail_handle_t again = pool.must(kBase, kPage);
  pool.use(kBase * 2, kPage);
  EXPECT_EQ(pool.close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(fake_.live_count(), 2u) << "nothing changed";
  EXPECT_TRUE(pool.has(kBase * 2, kPage));
  EXPECT_EQ(pool.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_FINALIZED), 2u);
  const uint64_t calls = fake_.deregister_calls();
  drop(handle);
  drop(again);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(fake_.deregister_calls(), calls) << "no callback after the destroy";
}

TEST_F(Grdma, destroy_gives_everything_back_dead_ones_too) {
  Pool pool(fake_);
  for (uintptr_t i = 1; i < 20; ++i) pool.use(kBase * i, kPage);
  report(kBase * 3, kPage);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 0u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_FINALIZED), 18u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
}

TEST_F(Grdma, pools_of_one_cache_share_the_budget_and_the_order_of_eviction_but_no_registrations) {
  fake::FakeRegistrar second_fake;
  Pool first(fake_, {1, PINRAIL_UNSET, 3, 0, "shared"});
  Pool second(second_fake, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "shared"});
  first.use(kBase, kPage);
  EXPECT_FALSE(second.has(kBase, kPage));
  second.use(kBase, kPage);
  first.use(kBase * 2, kPage);
  second.use(kBase * 3, kPage);  // evicts the first pool's oldest
  EXPECT_FALSE(first.has(kBase, kPage));
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_EVICTED), 1u);
  EXPECT_EQ(first.stats().registered_count, 3u);
  EXPECT_EQ(second.stats().registered_count, 3u);
  EXPECT_EQ(second_fake.violations(), std::vector<std::string>{});
}

TEST_F(Grdma, another_limit_for_a_cache_that_exists_is_bad_param) {
  Pool first(fake_, {1, 1 << 20, PINRAIL_UNSET, 0, "limits"});
  Pool other(fake_, {1, 2 << 20, PINRAIL_UNSET, 0, "limits"});
  EXPECT_EQ(other.status, PINRAIL_ERR_BAD_PARAM);
  Pool same(fake_, {1, 1 << 20, PINRAIL_UNSET, 0, "limits"});
  EXPECT_EQ(same.status, PINRAIL_SUCCESS);
}

TEST_F(Grdma, a_caller_registrar_is_not_called_from_another_pool) {
  fake::FakeOptions options;
  options.thread_mode = PINRAIL_THREAD_CALLER;
  options.needs_pool_scope = true;
  fake::FakeRegistrar caller(options);
  Pool mine(caller, {1, PINRAIL_UNSET, 2, 0, "caller"});
  Pool other(fake_, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "caller"});
  {
    fake::PoolScope scope;
    mine.use(kBase, kPage);
    mine.use(kBase * 2, kPage);
  }
  EXPECT_EQ(other.answer_to(kBase * 3, kPage), PINRAIL_ERR_OUT_OF_RESOURCE) << "nothing that it may evict";
  fake::PoolScope scope;
  EXPECT_EQ(mine.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(caller.violations(), std::vector<std::string>{});
}

TEST_F(Grdma, pinned_bytes_counts_shared_pages_once) {
  Pool pool(fake_);
  pool.use(kBase, 4 * kPage);
  pool.use(kBase + 2 * kPage, 4 * kPage);
  EXPECT_EQ(pool.stats().registered_bytes, 8 * kPage);
  EXPECT_EQ(pool.stats().pinned_bytes, 6 * kPage);
}

TEST_F(Grdma, a_range_over_the_devices_maximum_is_not_supported) {
  fake::FakeOptions options;
  options.max_length = 8 * kPage;
  fake::FakeRegistrar small(options);
  Pool pool(small);
  EXPECT_EQ(pool.answer_to(kBase, 9 * kPage), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(small.register_calls(), 0u);
  pool.use(kBase, 8 * kPage);
}

TEST_F(Grdma, tails_convert_both_ways_and_are_made_and_finished_once) {
  fake::FakeOptions options;
  options.tail_size = 200;
  options.tail_hooks = true;
  fake::FakeRegistrar tailed(options);
  Pool pool(tailed);
  const pinrail_handle_t handle = pool.must(kBase, kPage);
  void* tail = pinrail_registration_tail(handle.reg);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(tail) % 64, 0u);
  EXPECT_EQ(pinrail_registration_of_tail(tail), handle.reg);
  EXPECT_EQ(pinrail_registration_handle(handle.reg).generation, handle.generation);
  drop(pinrail_registration_handle(handle.reg));
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(tailed.tails_made(), 1u);
  EXPECT_EQ(tailed.tails_finished(), 1u);
}

TEST_F(Grdma, a_deregistration_that_the_device_refuses_is_forgotten_all_the_same) {
  Pool pool(fake_, {0});
  fake_.fail_deregister(1, PINRAIL_ERR_ERROR);
  pool.use(kBase, kPage);
  EXPECT_EQ(pool.stats().registered_count, 0u);
}

TEST_F(Grdma, the_chunk_iterator_cuts_at_multiples_of_max_reg_size) {
  Pool pool(fake_);
  const uintptr_t start = 0x40000000 - 100;
  pinrail_chunks_t chunks;
  ASSERT_EQ(pinrail_chunks_begin(pool.get(), reinterpret_cast<void*>(start), (4 << 20) + 200, &chunks),
            PINRAIL_SUCCESS);
  std::vector<std::pair<uintptr_t, size_t>> pieces;
  void* addr;
  size_t length;
  while (pinrail_chunks_next(&chunks, &addr, &length) == PINRAIL_SUCCESS) {
    pieces.emplace_back(reinterpret_cast<uintptr_t>(addr), length);
  }
  const std::vector<std::pair<uintptr_t, size_t>> expected = {
      {start, 100}, {0x40000000, 2 << 20}, {0x40200000, 2 << 20}, {0x40400000, 100}};
  EXPECT_EQ(pieces, expected);
}

TEST_F(Grdma, the_listed_figures_name_fields_of_the_struct) {
  size_t count = 0;
  for (; pinrail_stat_at(count) != nullptr; ++count) {
    EXPECT_LE(pinrail_stat_at(count)->offset + sizeof(uint64_t), sizeof(pinrail_mpool_stats_t));
  }
  EXPECT_EQ(count, sizeof(pinrail_mpool_stats_t) / sizeof(uint64_t) - 2)
      << "all but size and the two numbers of 32 bits";
}

}  // namespace
}  // namespace pinrail::test
