// SPDX-License-Identifier: BSD-3-Clause
// Refused requests change nothing; requests with unusual flags.
#include <gtest/gtest.h>

#include <string>

#include "test/support/host_table.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x100000;

class GrdmaRefusal : public ::testing::Test {
 protected:
  const Library library_;
  fake::FakeRegistrar fake_;
};

// R7: what is held leaves no room for it, whatever is evicted.
TEST_F(GrdmaRefusal, what_cannot_fit_beside_what_is_held_evicts_nothing) {
  Pool pool(fake_, {1, 100 * kPage});
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 0; i < 70; ++i) held.push_back(pool.must(kBase + 2 * i * kPage, kPage));
  for (uintptr_t i = 70; i < 100; ++i) pool.use(kBase + 2 * i * kPage, kPage);
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
  for (uintptr_t i = 0; i < kCount; ++i) pool.use(kBase + 2 * i * kPage, kPage);
  const Held fresh = pool.hold(0x10000000, kPage);  // the search for its victim found more than one idle
  EXPECT_EQ(pool.stats().evictions, 1u);
  std::vector<pinrail_handle_t> held;
  for (uintptr_t i = 1; i + 1 < kCount; ++i) held.push_back(pool.must(kBase + 2 * i * kPage, kPage));
  EXPECT_EQ(pool.answer_to(0x20000000, 2 * kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().evictions, 1u);
  for (const pinrail_handle_t& each : held) drop(each);
}

// R2: refused for its arguments.
TEST_F(GrdmaRefusal, a_range_in_the_first_page_evicts_nothing_and_is_no_miss) {
  Pool pool(fake_, {1, PINRAIL_UNSET, 1});
  pool.use(kBase, kPage);
  EXPECT_EQ(pool.answer_to(1, 10), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.stats().evictions, 0u);
  EXPECT_EQ(pool.stats().misses, 1u);
  EXPECT_TRUE(pool.has(kBase, kPage));
}

TEST_F(GrdmaRefusal, a_call_that_races_four_times_is_one_miss) {
  fake_.on_register([](const pinrail_register_request_t& request, pinrail_registration_t*) {
    pinrail_monitor_report(request.addr, request.length);
  });
  Pool pool(fake_);
  EXPECT_EQ(pool.answer_to(kBase, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().races, 4u);
  EXPECT_EQ(pool.stats().misses, 1u);
}

TEST_F(GrdmaRefusal, what_never_fits_is_said_once_whatever_its_size_is) {
  Pool pool(fake_, {1, 10 * kPage});
  testing::internal::CaptureStderr();
  for (size_t pages = 11; pages < 20; ++pages) {
    EXPECT_EQ(pool.answer_to(kBase, pages * kPage), PINRAIL_ERR_OUT_OF_RESOURCE);
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
  pool.use(kBase, kPage, PINRAIL_ACCESS_LOCAL_WRITE);
  pool.use(2 * kBase, kPage, PINRAIL_ACCESS_LOCAL_WRITE);
  const Held other = pool.hold(kBase, kPage, PINRAIL_ACCESS_REMOTE_READ);
  EXPECT_EQ(other.reg->rights, uint32_t{PINRAIL_ACCESS_REMOTE_READ});
  EXPECT_EQ(pool.stats().evictions, 0u);
  EXPECT_TRUE(pool.has(kBase, kPage) && pool.has(2 * kBase, kPage));
}

TEST_F(GrdmaRefusal, persistent_asked_for_what_is_cached_is_a_pin_of_the_callers_own) {
  Pool pool(fake_);
  pool.use(kBase, kPage);
  const pinrail_handle_t own = pool.must(kBase, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(fake_.register_calls(), 2u);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(fake_.live_count(), 1u) << "it displaces the equal one that is cached";
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_TRUE(pool.has(kBase, kPage)) << "later calls hit it";
  drop(own);
  EXPECT_EQ(fake_.live_count(), 0u) << "its last deregister gives it back";
}

TEST_F(GrdmaRefusal, persistent_asked_for_twice_is_one_pin) {
  Pool pool(fake_);
  const pinrail_handle_t first = pool.must(kBase, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  const pinrail_handle_t second = pool.must(kBase, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  EXPECT_EQ(first.reg, second.reg);
  drop(first);
  EXPECT_EQ(fake_.live_count(), 1u);
  drop(second);
  EXPECT_EQ(fake_.live_count(), 0u);
}

// R12: the address may belong to other memory by now.
TEST_F(GrdmaRefusal, what_bypassed_the_cache_is_given_back_as_invalidated_if_an_event_came) {
  Pool pool(fake_);
  const pinrail_handle_t gone = pool.must(kBase, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  const pinrail_handle_t there = pool.must(2 * kBase, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  report(kBase, kPage);
  drop(gone);
  drop(there);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_RELEASED), 1u);
  report(kBase, kPage);
  EXPECT_TRUE(pool.invariants_hold());
}

// R12, for what left the index because a larger registration took its place.
TEST_F(GrdmaRefusal, what_was_displaced_and_is_held_is_given_back_as_invalidated_if_an_event_came) {
  for (const bool are_summed_before : {false, true}) {
    SCOPED_TRACE(are_summed_before);
    Pool pool(fake_);
    const uint64_t invalidated = fake_.deregistered(PINRAIL_REASON_INVALIDATED);
    const uint64_t released = fake_.deregistered(PINRAIL_REASON_RELEASED);
    const pinrail_handle_t gone = pool.must(kBase, kPage);
    const pinrail_handle_t gone_too = pool.must(kBase + kPage, kPage);
    const pinrail_handle_t there = pool.must(kBase + 4 * kPage, kPage);
    const pinrail_handle_t large = pool.must(kBase, 8 * kPage);
    if (are_summed_before) {
      EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    }
    report(kBase, 2 * kPage);
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
  for (uintptr_t i = 0; i < kHeld; ++i) held.push_back(pool.must(kBase + i * kPage, kPage));
  pool.use(kBase, kHeld * kPage);  // displaces them
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  for (uintptr_t i = 0; i < 500; ++i) pool.use(kOthers + 2 * i * kPage, kPage);
  EXPECT_TRUE(pool.invariants_hold());
  report(kBase, kPage);
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
  const pinrail_handle_t gone = pool.must(kBase, kPage);
  const pinrail_handle_t large = pool.must(kBase, 8 * kPage);
  report(kBase, kPage);
  drop(gone);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
  drop(large);
  EXPECT_EQ(fake_.deregistered(PINRAIL_REASON_INVALIDATED), 2u);
}

// R12: the event comes while another one is given back.
TEST_F(GrdmaRefusal, what_an_event_touches_while_the_pool_is_destroyed_is_given_back_as_invalidated) {
  {
    Pool pool(fake_);
    pool.use(kBase, kPage);
    pool.use(2 * kBase, kPage);
    bool is_first = true;
    fake_.on_deregister([&](pinrail_registration_t* reg, pinrail_reason_t) {
      if (is_first) report(reg->base == reinterpret_cast<void*>(kBase) ? 2 * kBase : kBase, kPage);
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
