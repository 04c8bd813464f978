// SPDX-License-Identifier: BSD-3-Clause
// mpool/odp: registrations on demand, in tiles or of all memory. They pin nothing and outlive memory events.
#include <pinrail/pin.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/registration/registration.h"
#include "test/mpool/mrall_and_odp.h"
#include "test/support/registrars.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

TEST_F(Odp, one_tile_serves_all_requests_within_it_without_a_monitor) {
  EXPECT_EQ(pinrail_monitor_works(), 0);
  const pinrail_handle_t handle = pool_->must(kBase + 5 * kPage + 100, 200);
  EXPECT_EQ(handle.reg->base, reinterpret_cast<void*>(kBase));
  EXPECT_EQ(handle.reg->length, kTile);
  EXPECT_EQ(handle.reg->traits, uint32_t{PINRAIL_TRAIT_ON_DEMAND});
  pool_->use(kBase, kTile);
  pool_->use(kBase + kTile - 1, 1);
  EXPECT_EQ(device_->register_calls(), 1u);
  pool_->use(kBase + kTile, 1);
  EXPECT_EQ(device_->register_calls(), 2u);
  drop(handle);
  const pinrail_mpool_stats_t stats = pool_->stats();
  EXPECT_EQ(stats.hits, 2u);
  EXPECT_EQ(stats.misses, 2u);
  EXPECT_EQ(stats.registered_bytes, 2 * kTile);
  EXPECT_EQ(stats.pinned_bytes, 0u);
  EXPECT_EQ(stats.leave_pinned, 1) << "what is idle stays, whatever the settings";
}

TEST_F(Odp, a_request_may_be_of_all_memory) {
  start(paging(PINRAIL_ON_DEMAND_IMPLICIT));
  pool_->use(kPage, UINTPTR_MAX - 2 * kPage + 1);
  EXPECT_EQ(device_->live_count(), 1u);
}

TEST_F(Odp, events_end_no_registration) {
  pool_->use(kBase, kPage);
  pinrail_monitor_report(reinterpret_cast<void*>(kBase), kTile);
  pinrail_monitor_report(nullptr, SIZE_MAX);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool_->get(), reinterpret_cast<void*>(kBase), kTile), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool_->has(kBase, kPage));
  EXPECT_EQ(device_->register_calls(), 1u);
}

TEST_F(Odp, a_request_across_tiles_gets_them_all_and_displaces_what_it_contains) {
  const pinrail_handle_t first = pool_->must(kBase, kPage);
  const pinrail_handle_t both = pool_->must(kBase + kTile - 10, 20);
  EXPECT_EQ(both.reg->length, 2 * kTile);
  EXPECT_EQ(device_->live_count(), 2u) << "the first one is still referenced";
  drop(first);
  EXPECT_EQ(device_->live_count(), 1u);
  drop(both);
  pool_->use(kBase, kPage);
  EXPECT_EQ(device_->register_calls(), 2u);
}

TEST_F(Odp, a_tile_has_the_rights_of_the_request_and_other_rights_are_registered_beside) {
  for (int i = 0; i < 2; ++i) {
    pool_->use(kBase, kPage, kRead);
    const pinrail_handle_t handle = pool_->must(kBase, kPage, kWrite);
    EXPECT_EQ(handle.reg->rights, kWrite);
    drop(handle);
  }
  EXPECT_EQ(device_->register_calls(), 2u);
  EXPECT_EQ(device_->live_count(), 2u);
}

TEST_F(Odp, what_the_device_refuses_as_a_tile_is_registered_alone) {
  device_->fail_register(1, PINRAIL_ERR_BAD_PARAM);
  const pinrail_handle_t handle = pool_->must(kBase + kPage, 2 * kPage);
  EXPECT_EQ(handle.reg->length, 2 * kPage);
  drop(handle);
  EXPECT_EQ(device_->live_count(), 0u) << "it is not kept";
}

TEST_F(Odp, ranges_longer_than_the_device_takes_are_refused_and_tiles_never_exceed_it) {
  fake::FakeOptions fake = paging();
  fake.on_demand_max_length = 3 * kPage;
  fake.max_length = kPage;
  start(fake);
  pinrail_handle_t handle;
  EXPECT_EQ(pool_->reg(kBase, 4 * kPage, &handle), PINRAIL_ERR_NOT_SUPPORTED);
  handle = pool_->must(kBase + kPage, 3 * kPage);
  EXPECT_EQ(handle.reg->length, 3 * kPage) << "tiles of two pages, of which it would need two";
  drop(handle);
}

TEST_F(Odp, pieces_are_as_long_as_the_device_takes_on_demand_and_not_as_what_it_pins) {
  fake::FakeOptions fake = paging();
  fake.on_demand_max_length = 64 * kPage;
  fake.max_length = kPage;
  start(fake);
  pinrail_chunks_t chunks{};
  void* piece = nullptr;
  size_t length = 0;
  ASSERT_EQ(pinrail_chunks_begin(pool_->get(), pointer(kBase), 256 * kPage, &chunks), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_chunks_next(&chunks, &piece, &length), PINRAIL_SUCCESS);
  EXPECT_EQ(length, 64 * kPage);
}

TEST_F(Odp, the_ends_of_the_address_space_have_tiles_too) {
  pool_->use(kPage, kPage);
  pool_->use(UINTPTR_MAX - 3 * kPage, kPage);
  EXPECT_EQ(pool_->answer_to(1, 10), PINRAIL_ERR_BAD_PARAM) << "page 0";
}

TEST_F(Odp, implicit_is_one_registration_of_all_memory_and_takes_nothing_of_the_limits) {
  start(paging(PINRAIL_ON_DEMAND_IMPLICIT), at_most_bytes(kPage));
  pool_->use(kBase, kTile);
  const Held held = pool_->hold(kPage, kPage);
  pool_->use(uintptr_t{1} << 46, size_t{1} << 45);
  EXPECT_EQ(device_->register_calls(), 1u);
  EXPECT_EQ(pool_->stats().registered_bytes, 0u);
  EXPECT_EQ(pool_->stats().held_bytes, 0u);
  EXPECT_EQ(pool_->get()->counts.sum().registered_bytes, 0u) << "for other processes";
  EXPECT_EQ(pool_->stats().registered_count, 1u);
}

// A miss that evicts looks at few registrations, however many there are.
TEST_F(Odp, a_miss_beside_a_hundred_thousand_tiles_costs_about_what_it_costs_beside_ten) {
  for (const size_t tiles : {size_t{10}, size_t{100000}}) {
    constexpr size_t kMisses = 1000;
    fake::FakeOptions fake = paging();
    fake.zero_cost = true;
    start(fake, at_most(static_cast<int64_t>(tiles)), {{"mpool_odp_tile_size", "4K"}});
    uintptr_t next = kBase;
    for (size_t i = 0; i < tiles; ++i, next += 2 * kPage) pool_->use(next, kPage);
    const auto before = own_cpu_time();
    for (size_t i = 0; i < kMisses; ++i, next += 2 * kPage) pool_->use(next, kPage);
    const auto each = (own_cpu_time() - before) / kMisses;
    std::printf("%zu tiles: %.1f us a miss\n", tiles, static_cast<double>(each.count()) / 1000);
    EXPECT_LT(each, std::chrono::microseconds(200)) << tiles << " tiles";
    EXPECT_EQ(pool_->stats().evictions, kMisses);
    expect_nothing_is_left();
  }
}

TEST_F(Odp, tiles_longer_than_the_limit_are_not_tried) {
  start(paging(), at_most_bytes(kTile / 4));
  testing::internal::CaptureStderr();
  const pinrail_handle_t handle = pool_->must(kBase + 3 * kPage, 2 * kPage);
  EXPECT_EQ(handle.reg->length, 2 * kPage);
  drop(handle);
  pool_->use(kBase + 3 * kPage, kPage);
  EXPECT_EQ(device_->register_calls(), 1u) << "it was kept";
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "the request fits the limit";
}

// R7.
TEST_F(Odp, a_device_without_room_gets_idle_ones_back) {
  pool_->use(kBase, kPage);
  pool_->use(kBase + kTile, kPage);
  device_->set_capacity(SIZE_MAX, 2);
  pool_->use(kBase + 2 * kTile, kPage);
  EXPECT_EQ(device_->live_count(), 2u);
  EXPECT_EQ(pool_->stats().retries, 1u);
  EXPECT_EQ(device_->deregistered(PINRAIL_REASON_EVICTED), 1u);
}

// R2: and the next request does not wait for the one that failed.
TEST_F(Odp, what_the_device_refuses_whole_leaves_nothing_behind) {
  device_->fail_every_register(PINRAIL_ERR_ERROR);
  EXPECT_EQ(pool_->answer_to(kBase, kTile), PINRAIL_ERR_ERROR);
  EXPECT_EQ(pool_->stats().registered_count, 0u);
  EXPECT_EQ(device_->live_count(), 0u);
  device_->fail_every_register(PINRAIL_SUCCESS);
  pool_->use(kBase, kTile);
  EXPECT_EQ(pool_->stats().registered_bytes, kTile);
}

TEST_F(Odp, its_limits_count_nothing_of_other_pools) {
  PoolOptions options;
  options.size_limit = kTile;
  start(paging(), options);
  options.leave_pinned = 0;
  const Pool grdma(*device_, options);
  const Held pinned = grdma.hold(kBase, kTile);
  const Held paged = pool_->hold(kBase, kTile);
  EXPECT_EQ(grdma.stats().registered_bytes, kTile);
  EXPECT_EQ(pool_->stats().registered_bytes, kTile);
}

TEST_F(Odp, advice_reaches_the_device_with_the_range) {
  ASSERT_EQ(pinrail_mpool_advise(pool_->get(), reinterpret_cast<void*>(kBase + 100), 5000, kRead,
                                 PINRAIL_ADVICE_PREFETCH_WRITE),
            PINRAIL_SUCCESS);
  const auto advices = device_->advices();
  ASSERT_EQ(advices.size(), 1u);
  EXPECT_EQ(advices[0].base, kBase + 100);
  EXPECT_EQ(advices[0].length, 5000u);
  EXPECT_EQ(advices[0].advice, PINRAIL_ADVICE_PREFETCH_WRITE);
  EXPECT_EQ(pool_->stats().registered_count, 1u) << "it is cached, and not referenced";
}

TEST_F(Odp, advice_needs_a_device_that_pages) {
  const fake::FakeRegistrar pins;
  const Pool grdma(pins, not_kept());
  EXPECT_EQ(pinrail_mpool_advise(grdma.get(), reinterpret_cast<void*>(kBase), kPage, kRead, PINRAIL_ADVICE_PREFETCH),
            PINRAIL_ERR_NOT_SUPPORTED);
}

// How many of the functions below run at a time, at most.
std::atomic<int> inside{0}, most_inside{0};
pinrail_status_t stay_a_moment() {
  const int now = ++inside;
  if (now > most_inside) most_inside = now;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  --inside;
  return PINRAIL_SUCCESS;
}

TEST_F(Odp, a_serialized_registrar_has_one_call_at_a_time_advice_and_transfers_included) {
  pinrail_registrar_t table = *device_->table();
  table.thread_mode = PINRAIL_THREAD_SERIALIZED;
  table.advise = [](void*, const pinrail_registration_t*, size_t, size_t, pinrail_advice_t) { return stay_a_moment(); };
  table.device_read = [](void*, const pinrail_registration_t*, size_t, void*, size_t) { return stay_a_moment(); };
  table.device_write = [](void*, const pinrail_registration_t*, size_t, const void*, size_t) {
    return stay_a_moment();
  };
  OdpPool pool(table);
  const pinrail_handle_t handle = pool.must(kBase, kPage);
  char byte = 0;
  const std::vector<std::function<pinrail_status_t()>> calls = {
      [&] {
        return pinrail_mpool_advise(pool.get(), reinterpret_cast<void*>(kBase), kPage, kRead, PINRAIL_ADVICE_PREFETCH);
      },
      [&] { return pinrail_mpool_device_read(handle, 0, &byte, 1); },
      [&] { return pinrail_mpool_device_write(handle, 0, &byte, 1); }};
  for (const auto& call : calls) {
    most_inside = 0;
    std::thread other([&] { EXPECT_EQ(call(), PINRAIL_SUCCESS); });
    EXPECT_EQ(call(), PINRAIL_SUCCESS);
    other.join();
    EXPECT_EQ(most_inside, 1);
  }
  drop(handle);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

TEST_F(Odp, bypass_and_calls_inside_the_registrar_get_one_of_their_own) {
  const pinrail_handle_t own = pool_->must(kBase, kPage, kRead, PINRAIL_FLAG_CACHE_BYPASS);
  EXPECT_EQ(own.reg->length, kPage);
  EXPECT_FALSE(pool_->has(kBase, kPage));
  drop(own);
  EXPECT_EQ(device_->live_count(), 0u);
  std::atomic<int> depth{0};
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (depth.fetch_add(1) == 0) pool_->use(kBase, kPage);
  });
  pool_->use(kBase, kPage);
  device_->on_register(nullptr);
  EXPECT_EQ(device_->register_calls(), 3u);
  EXPECT_EQ(device_->live_count(), 1u);
}

TEST_F(Odp, equal_requests_wait_for_one_registration) {
  std::atomic<bool> is_inside{false}, may_end{false};
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    is_inside = true;
    while (!may_end) std::this_thread::yield();
  });
  std::thread first([&] { pool_->use(kBase, kPage); });
  while (!is_inside) std::this_thread::yield();
  std::thread second([&] { pool_->use(kBase + 7 * kPage, kPage); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // so that it has asked; if not, it hits later
  may_end = true;
  first.join();
  second.join();
  device_->on_register(nullptr);
  EXPECT_EQ(device_->register_calls(), 1u);
}

TEST_F(Odp, a_checkpoint_leaves_nothing_idle_at_the_device) {
  pool_->use(kBase, kPage);
  pool_->use(kBase + kTile, kPage);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_ERR_NOT_SUPPORTED);
}

TEST_F(Odp, what_it_cannot_do_is_refused) {
  const fake::FakeRegistrar pins;
  EXPECT_EQ(OdpPool(pins).status, PINRAIL_ERR_NOT_SUPPORTED);
  fake::FakeOptions caller = paging();
  caller.thread_mode = PINRAIL_THREAD_CALLER;
  const fake::FakeRegistrar callers(caller);
  EXPECT_EQ(OdpPool(callers).status, PINRAIL_ERR_NOT_SUPPORTED);
  PoolOptions exact;
  exact.flags = PINRAIL_POOL_EXACT;
  EXPECT_EQ(OdpPool(*device_, exact).status, PINRAIL_ERR_NOT_SUPPORTED);
}

TEST_F(Odp, threads_use_and_evict_tiles_at_random) {
  start(paging(), at_most(5));
  std::atomic<int> wrong{0};
  on_threads(4u, [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 3000; ++i) {
      const uintptr_t at = kBase + random() % 8 * kTile + kPage;
      const size_t length = random() % 3 == 0 ? kTile : kPage;
      const uint32_t flags = random() % 4 == 0 ? uint32_t{PINRAIL_FLAG_PERSISTENT} : 0;
      pinrail_handle_t handle;
      const pinrail_status_t status = pool_->reg(at, length, &handle, random() % 2 == 0 ? kRead : kWrite, flags);
      if (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) continue;
      if (status != PINRAIL_SUCCESS || !device_->is_live(handle.reg)) ++wrong;
      if (status == PINRAIL_SUCCESS && pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++wrong;
    }
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_LE(pool_->stats().registered_count, 5u);
  EXPECT_GT(pool_->stats().evictions, 0u);
}

// What mpool/odp keeps for its holder: persistent registrations, and the pins of pinrail/pin.h.

const pinrail_range_t kRange = {reinterpret_cast<void*>(kBase), kPage};  // NOLINT(performance-no-int-to-ptr)

class OdpPins : public Odp {
 protected:
  pinrail_status_t pin() { return pinrail_mpool_prepin(pool_->get(), &kRange, 1, kRead, nullptr, nullptr); }
  pinrail_status_t unpin() { return pinrail_mpool_unpin(pool_->get(), &kRange, 1, kRead); }
};

TEST_F(OdpPins, a_pinned_tile_serves_requests_though_wider_rights_and_longer_ranges_came_and_were_evicted) {
  start(paging(), at_most(2));
  ASSERT_EQ(pin(), PINRAIL_SUCCESS);
  pool_->use(kBase, kPage, kWrite);
  pool_->use(kBase, 2 * kTile);
  pool_->use(kBase + 8 * kTile, kPage);
  EXPECT_TRUE(pool_->has(kBase, kPage));
  EXPECT_EQ(unpin(), PINRAIL_SUCCESS);
}

TEST_F(OdpPins, the_last_release_of_a_persistent_one_ends_it) {
  const pinrail_handle_t own = pool_->must(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(own.reg->length, kTile);
  const pinrail_handle_t hit = pool_->must(kBase + kPage, kPage);
  EXPECT_EQ(hit.reg, own.reg);
  drop(own);
  EXPECT_TRUE(pool_->has(kBase, kPage)) << "it is still in use";
  drop(hit);
  EXPECT_FALSE(pool_->has(kBase, kPage));
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(OdpPins, a_persistent_request_hits_no_tile_that_may_be_evicted) {
  pool_->use(kBase, kPage);
  const Held own = pool_->hold(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(device_->register_calls(), 2u);
  const Held again = pool_->hold(kBase, kPage, kRead, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(again.reg, own.reg);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 1u) << "the other one was displaced";
}

TEST_F(OdpPins, all_memory_at_once_can_be_pinned_whatever_the_limit_of_bytes) {
  start(paging(PINRAIL_ON_DEMAND_IMPLICIT), at_most_bytes(kPage));
  const pinrail_range_t large = {kRange.addr, kTile};
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), &large, 1, kRead, nullptr, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &large, 1, kRead), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
