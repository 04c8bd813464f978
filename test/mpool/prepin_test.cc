// SPDX-License-Identifier: BSD-3-Clause
// Memory that is registered ahead of its use, and what is registered: pinrail/pin.h.

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "base/core/span.h"
#include "test/mpool/pinning.h"
#include "test/support/host_table.h"

namespace pinrail::test {
namespace {

class Prepin : public PinningAsked {
 protected:
  Prepin() { chunk_ = 0; }  // as the pool likes it
  struct Answer {
    pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
    std::vector<Span> parts;
  };
  Answer query(uintptr_t base, size_t length, uint32_t access = 1) const {
    Answer answer;
    Ranges parts(64);
    size_t count = 0;
    EXPECT_EQ(pinrail_mpool_query(pool_->get(), reinterpret_cast<void*>(base), length, access, &answer.pinned,
                                  parts.data(), parts.size(), &count),
              PINRAIL_SUCCESS);
    for (size_t i = 0; i < count; ++i) {
      const auto at = reinterpret_cast<uintptr_t>(parts[i].addr);
      answer.parts.push_back({at, at + parts[i].length});
    }
    return answer;
  }
};

// The cache may have the same range already, or a longer one.
TEST_F(Prepin, what_was_used_before_can_be_pinned) {
  pool_->use(kBase, 4 * kPage);
  pool_->use(kBase + 8 * kPage, 8 * kPage);
  ASSERT_EQ(pin({range(kBase, 4 * kPage), range(kBase + 10 * kPage, kPage)}), PINRAIL_SUCCESS);
  for (int i = 0; i < 10; ++i) (void)pinrail_mpool_evict(pool_->get());
  const uint64_t before = calls();
  pool_->use(kBase, 4 * kPage);
  pool_->use(kBase + 10 * kPage, kPage);
  EXPECT_EQ(calls(), before);
  EXPECT_TRUE(pool_->invariants_hold());
  EXPECT_EQ(unpin({range(kBase, 4 * kPage), range(kBase + 10 * kPage, kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// What the cache has registered since may contain what is pinned.
TEST_F(Prepin, what_is_pinned_can_be_pinned_again_inside_a_longer_registration) {
  ASSERT_EQ(pin({range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  pool_->use(kBase, 16 * kPage);
  const uint64_t before = calls();
  EXPECT_EQ(pin({range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), before) << "both pins are of one registration";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(unpin({range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool_->invariants_hold());
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// pin_job/L2: a device of small granularity does not get what its maximum forbids, because pools register whole pages.
TEST_F(Prepin, chunks_of_a_device_with_small_pages_are_whole_pages) {
  fake::FakeOptions device;
  device.granularity = 64;
  device.max_length = 3 * kPage - 64;
  make_pool(device);
  EXPECT_EQ(pin({range(kBase, 16 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 8u);
  EXPECT_EQ(unpin({range(kBase, 16 * kPage)}), PINRAIL_SUCCESS);
  pinrail_chunks_t chunks;
  void* at = nullptr;
  size_t length = 0;
  EXPECT_EQ(pinrail_chunks_begin(pool_->get(), reinterpret_cast<void*>(kBase), 16 * kPage, &chunks), PINRAIL_SUCCESS);
  while (pinrail_chunks_next(&chunks, &at, &length) == PINRAIL_SUCCESS) EXPECT_EQ(length, 2 * kPage);
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
}

// R8: what is registered already takes no room.
TEST_F(Prepin, ranges_inside_a_registration_do_not_meet_the_limits) {
  PoolOptions options;
  options.size_limit = 16 * kPage;
  options.count_limit = 1;
  make_pool({}, options);
  const pinrail_handle_t held = pool_->must(kBase, 16 * kPage, 1, PINRAIL_FLAG_PERSISTENT);
  const Ranges ranges = {range(kBase, kPage), range(kBase + 4 * kPage, kPage)};
  EXPECT_EQ(pin(ranges), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 1u);
  EXPECT_EQ(pin({range(kBase, kPage), range(kBase + 32 * kPage, kPage), range(kBase + 64 * kPage, kPage)}),
            PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(calls(), 1u) << "two more can never fit, so the device is not asked";
  EXPECT_EQ(unpin(ranges), PINRAIL_SUCCESS);
  drop(held);
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
}

TEST_F(Prepin, all_memory_on_demand_takes_nothing_of_the_limit) {
  make_pool(fake::options_with(&fake::FakeOptions::on_demand, PINRAIL_ON_DEMAND_IMPLICIT), at_most_bytes(kPage));
  constexpr uint32_t kOnDemand = 1 | PINRAIL_TRAIT_ON_DEMAND;
  const pinrail_range_t all = range(kPage, UINTPTR_MAX - 2 * kPage + 1);
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), &all, 1, kOnDemand, nullptr, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &all, 1, kOnDemand), PINRAIL_SUCCESS);
}

TEST_F(Prepin, ranges_that_overlap_are_counted_once_against_a_limit) {
  PoolOptions limits = at_most_bytes(12 * kChunk);
  limits.count_limit = 12;
  make_pool({}, limits);
  chunk_ = kChunk;
  EXPECT_EQ(pin({range(kBase, 8 * kChunk), range(kBase + 4 * kChunk, 8 * kChunk)}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_bytes(), 12 * kChunk);
  pinrail_status_t statuses[2] = {PINRAIL_SUCCESS, PINRAIL_SUCCESS};
  EXPECT_EQ(pin({range(kBase, 16 * kChunk), range(kBase + 100 * kChunk, kPage)}, 0, statuses),
            PINRAIL_ERR_OUT_OF_RESOURCE);
  for (const pinrail_status_t status : statuses) EXPECT_EQ(status, PINRAIL_ERR_ERROR) << "written all the same";
}

TEST_F(Prepin, neither_a_limit_nor_a_longer_registration_takes_what_is_pinned) {
  make_pool({}, at_most(4));
  ASSERT_EQ(pin({range(kBase, kPage)}), PINRAIL_SUCCESS);
  pool_->use(kBase, 16 * kPage);  // contains it
  for (uintptr_t i = 0; i < 100; ++i) pool_->use(kBase + (100 + i) * kPage, kPage);
  const uint64_t before = calls();
  pool_->use(kBase, kPage);
  EXPECT_EQ(calls(), before);
  EXPECT_EQ(unpin({range(kBase, kPage)}), PINRAIL_SUCCESS);
}

TEST_F(Prepin, pins_are_counted_and_one_unpin_too_many_changes_nothing) {
  for (int i = 0; i < 3; ++i) ASSERT_EQ(pin({range(kBase, kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(unpin({range(kBase, kPage), range(kBase + kPage, kPage)}), PINRAIL_ERR_NOT_FOUND);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(pool_->has(kBase, kPage)) << i;
    EXPECT_EQ(unpin({range(kBase, kPage)}), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(unpin({range(kBase, kPage)}), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(Prepin, the_tensors_of_one_allocation_cost_one_call) {
  Ranges tensors;
  uintptr_t at = kBase + 100;
  std::mt19937 random(1);
  for (int i = 0; i < 1265; ++i) {
    const size_t length = 1 + random() % 20000;
    tensors.push_back(range(at, length));
    at += length + random() % 64;
  }
  std::shuffle(tensors.begin(), tensors.end(), random);
  ASSERT_EQ(pin(tensors), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 1u);
  for (const pinrail_range_t& tensor : tensors) {
    pool_->use(reinterpret_cast<uintptr_t>(tensor.addr), tensor.length);
  }
  EXPECT_EQ(calls(), 1u);
  tensors.pop_back();
  EXPECT_EQ(unpin(tensors), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 1u) << "one of them is pinned still";
}

TEST_F(Prepin, what_the_device_refuses_as_a_whole_is_pinned_range_by_range) {
  make_pool(fake::options_with(&fake::FakeOptions::max_length, 2 * kPage));
  ASSERT_EQ(pin({range(kBase, 2 * kPage), range(kBase + 2 * kPage, 2 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(query(kBase, 4 * kPage).pinned, PINRAIL_PINNED_WHOLLY);
  EXPECT_EQ(device_->live_count(), 2u);
}

// For every n: the n-th registrar call fails, and nothing is left behind.
// R8: what touches is no hit there, so it is not registered as a whole beside.
TEST_F(Prepin, in_an_exact_pool_each_range_takes_room_once) {
  PoolOptions options;
  options.flags = PINRAIL_POOL_EXACT;
  options.size_limit = 4 * kPage;
  make_pool({}, options);
  const Ranges ranges = {range(kBase, 2 * kPage), range(kBase + 2 * kPage, 2 * kPage)};
  ASSERT_EQ(pin(ranges), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 2u);
  EXPECT_TRUE(pool_->has(kBase, 2 * kPage));
  EXPECT_EQ(unpin(ranges), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// What can be evicted keeps nothing pinned.
TEST_F(Prepin, in_an_exact_pool_what_is_cached_can_be_pinned) {
  PoolOptions options;
  options.flags = PINRAIL_POOL_EXACT;
  make_pool({}, options);
  pool_->use(kBase, 2 * kPage);
  ASSERT_EQ(pin({range(kBase, 2 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool_->has(kBase, 2 * kPage));
  EXPECT_TRUE(pool_->invariants_hold());
  EXPECT_EQ(unpin({range(kBase, 2 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(Prepin, with_partial_the_answer_is_the_error_of_the_callers_first_range_that_failed) {
  pinrail_registrar_t table = host_table(nullptr);
  table.register_mem = [](void*, const pinrail_register_request_t* request, pinrail_registration_t*) {
    return Span::of(request->addr, 1).base == kBase ? PINRAIL_ERR_PERM : PINRAIL_ERR_NOT_SUPPORTED;
  };
  pool_ = std::make_unique<Pool>(table);
  ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  const pinrail_range_t low = range(kBase, kPage), high = range(kBase + 2 * kPage, kPage);
  EXPECT_EQ(pin({low, high}, PINRAIL_PREPIN_PARTIAL), PINRAIL_ERR_PERM);
  EXPECT_EQ(pin({high, low}, PINRAIL_PREPIN_PARTIAL), PINRAIL_ERR_NOT_SUPPORTED);
}

TEST_F(Prepin, pinned_memory_that_goes_away_is_found_no_more_and_can_be_pinned_again) {
  ASSERT_EQ(pin({range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  report(kBase, kPage);
  EXPECT_EQ(query(kBase, 4 * kPage).pinned, PINRAIL_PINNED_NONE);
  ASSERT_EQ(pin({range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 2u);
  EXPECT_TRUE(pool_->has(kBase, 4 * kPage));
  EXPECT_EQ(unpin({range(kBase, 4 * kPage), range(kBase, 4 * kPage)}), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// In whole granules of the device the range is longer than its maximum.
TEST_F(Prepin, a_range_is_cut_as_the_device_extends_it) {
  constexpr size_t kGranule = 16 * kPage;
  fake::FakeOptions fake;
  fake.granularity = kGranule;
  fake.max_length = 2 * kGranule;
  make_pool(fake);
  const pinrail_range_t wide = range(kBase + kGranule - kPage, kGranule + 2 * kPage);
  EXPECT_EQ(pin({wide}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 2u);
  EXPECT_EQ(unpin({wide}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  pinrail_chunks_t chunks;
  void* at = nullptr;
  size_t length = 0;
  ASSERT_EQ(pinrail_chunks_begin(pool_->get(), reinterpret_cast<void*>(kBase), 8 * kGranule, &chunks), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_chunks_next(&chunks, &at, &length), PINRAIL_SUCCESS);
  EXPECT_EQ(length, fake.max_length) << "the device takes each piece of the iterator";
}

TEST_F(Prepin, a_forced_destroy_drops_the_references_of_pins) {
  std::set<const pinrail_registration_t*> used;
  for (int i = 0; i < 100; ++i) {
    make_pool();
    EXPECT_EQ(pin({range(kBase, kPage)}), PINRAIL_SUCCESS);
    const pinrail_handle_t handle = pool_->must(kBase, kPage);
    used.insert(handle.reg);
    drop(handle);
    EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  }
  EXPECT_LT(used.size(), 50u) << "their memory is used again";
}

// A page-by-page oracle under random pins and unpins. A pin inside another one shares its registration, which stays
// while one of them does: so the device's registrations decide, and each pinned page is part of it.
TEST_F(Prepin, query_agrees_with_a_map_of_pages) {
  constexpr size_t kPages = 64;
  std::mt19937 random(7);
  std::map<std::pair<uintptr_t, size_t>, int> pins;
  for (int step = 0; step < 2000; ++step) {
    const uintptr_t first = random() % kPages;
    const size_t pages = 1 + random() % std::min<size_t>(8, kPages - first);
    const pinrail_range_t one = range(kBase + first * kPage, pages * kPage);
    if (random() % 2 == 0 && pins.size() < 12) {
      ASSERT_EQ(pin({one}), PINRAIL_SUCCESS);
      ++pins[{first, pages}];
    } else if (!pins.empty()) {
      const auto at = std::next(pins.begin(), static_cast<long>(random() % pins.size()));
      ASSERT_EQ(unpin({range(kBase + at->first.first * kPage, at->first.second * kPage)}), PINRAIL_SUCCESS);
      if (--at->second == 0) pins.erase(at);
    }
    bool is_pinned[kPages] = {};
    for (const auto& [pin, count] : pins) std::fill_n(is_pinned + pin.first, pin.second, true);
    const Answer answer = query(kBase, kPages * kPage);
    bool is_found[kPages] = {};
    for (const Span& part : answer.parts)
      std::fill_n(is_found + (part.base - kBase) / kPage, part.length() / kPage, true);
    bool is_known[kPages] = {};
    for (const fake::FakeRecord& record : device_->live())
      std::fill_n(is_known + (record.base - kBase) / kPage, record.length / kPage, true);
    for (size_t i = 0; i < kPages; ++i) {
      ASSERT_EQ(is_found[i], is_known[i]) << "page " << i << ", step " << step;
      ASSERT_TRUE(is_found[i] || !is_pinned[i]) << "page " << i << ", step " << step;
    }
  }
}

// Not a use: what was queried is evicted as if it had not been. The eviction in another cache changes nothing.
TEST_F(Prepin, query_lists_parts_by_their_addresses_whatever_their_rights_are) {
  const uintptr_t high = kBase + 8 * kPage, middle = kBase + kPage;
  drop(pool_->must(high, kPage, 1));
  drop(pool_->must(middle, kPage, 1));
  drop(pool_->must(kBase, kPage, 3));
  const Answer answer = query(kBase, 16 * kPage);
  EXPECT_EQ(answer.pinned, PINRAIL_PINNED_PARTLY);
  ASSERT_EQ(answer.parts.size(), 2u);
  EXPECT_EQ(answer.parts[0].base, kBase);
  EXPECT_EQ(answer.parts[0].end, middle + kPage);
  EXPECT_EQ(answer.parts[1].base, high);
}

TEST_F(Prepin, query_leaves_the_order_of_eviction_alone) {
  fake::FakeRegistrar other_fake;
  Pool other(other_fake, {1, PINRAIL_UNSET, 1, 0, "other"});
  pool_->use(kBase, kPage);
  pool_->use(kBase + 2 * kPage, kPage);
  for (uintptr_t i = 1; i <= 2; ++i) other.use(kBase * i, kPage);
  for (int i = 0; i < 10; ++i) query(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_FALSE(pool_->has(kBase, kPage));
  EXPECT_TRUE(pool_->has(kBase + 2 * kPage, kPage));
  EXPECT_EQ(query(kBase + 2 * kPage, kPage, PINRAIL_TRAIT_RELAXED_ORDERING).pinned, PINRAIL_PINNED_NONE);
}

}  // namespace
}  // namespace pinrail::test
