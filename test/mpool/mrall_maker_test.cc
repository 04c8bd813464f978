// SPDX-License-Identifier: BSD-3-Clause
// The maker of mpool/mrall beside other work of its thread, and on registrars that register more than a page at a time.
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <memory>

#include "test/mpool/mrall_under_test.h"

namespace pinrail::test {
namespace {

constexpr size_t kGranule = 16 * kPage;
constexpr size_t kLong = size_t{64} << 20;

// A hang is a failure.
class MrallMaker : public Mrall {
 protected:
  void SetUp() override {
    Mrall::SetUp();
    alarm(120);
  }
  void TearDown() override {
    if (device_ != nullptr) device_->on_register(nullptr);
    Mrall::TearDown();
    alarm(0);
  }
  // From now on the page is mapped anew whenever it is registered, until is_restless_ is false: each round makes the
  // next one necessary. Returns when there were some.
  void make_restless(void* page) {
    const auto map_anew = [page] {
      EXPECT_EQ(mmap(page, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), page);
    };
    is_restless_ = true;
    device_->on_register([this, page, map_anew](const pinrail_register_request_t& request, pinrail_registration_t*) {
      if (!is_restless_ || !Span::of(request.addr, request.length).contains(Span::of(page, 1))) return;
      ++rounds_;
      map_anew();
    });
    map_anew();
    EXPECT_TRUE(comes_true([this] { return rounds_ > 3; }));
  }

  std::atomic<bool> is_restless_{false};
  std::atomic<int> rounds_{0};
};

// The maker itself runs the function: what waits for a round would wait for its own thread.
TEST_F(MrallMaker, a_registrar_may_make_a_pool_in_which_everything_is_registered) {
  start();
  const fake::FakeRegistrar device;
  std::atomic<bool> is_wanted{false};
  std::unique_ptr<MrallPool> inner;
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!is_wanted.exchange(false)) return;
    inner = std::make_unique<MrallPool>(device);
    EXPECT_EQ(inner->find(&is_wanted, 1), PINRAIL_ERR_BUSY) << "not from here";
  });
  is_wanted = true;
  void* const at = map(kPage);
  EXPECT_EQ(pool_->use(at, kPage), PINRAIL_SUCCESS);
  pool_->catch_up();
  ASSERT_NE(inner, nullptr);
  ASSERT_EQ(inner->status, PINRAIL_SUCCESS);
  EXPECT_EQ(inner->use(at, kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(inner->close(), PINRAIL_SUCCESS);
  munmap(at, kPage);
}

// E4: each round makes the next one necessary.
TEST_F(MrallMaker, a_pool_that_is_never_done_leaves_the_thread_to_others) {
  start({{"mpool_grdma_gc_thread", "auto"}});
  fake::FakeRegistrar other_device;
  Pool other(other_device, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "other"});
  auto* const at = static_cast<char*>(map(2 * kPage));
  make_restless(at);
  other.use(reinterpret_cast<uintptr_t>(at) + kPage, kPage);
  munmap(at + kPage, kPage);
  EXPECT_TRUE(comes_true([&] { return other_device.live_count() == 0; }));
  is_restless_ = false;
  pool_->catch_up();
  munmap(at, kPage);
}

// What no monitor reports is found as long as events go on, too.
TEST_F(MrallMaker, a_pool_that_is_never_done_looks_for_what_no_monitor_reports) {
  start({{"mpool_mrall_rescan", "20"}});
  auto* const at = static_cast<char*>(map(4 * kPage));
  auto* const other = static_cast<char*>(map(4 * kPage));
  ASSERT_TRUE(becomes_registered(other, 4 * kPage, kWrite));
  make_restless(at);
  mprotect(other, 4 * kPage, PROT_READ);
  EXPECT_TRUE(comes_true([&] { return pool_->pinned(other, 4 * kPage, kWrite) == PINRAIL_PINNED_NONE; }));
  is_restless_ = false;
  pool_->catch_up();
  munmap(at, 4 * kPage);
  munmap(other, 4 * kPage);
}

// Without a request for it: the limit is asked again, the device is not.
TEST_F(MrallMaker, what_a_limit_kept_out_is_registered_when_there_is_room) {
  start({{"mpool_mrall_rescan", "20"}});
  const uint64_t others = pool_->stats().registered_bytes;
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  void* const first = map(kLong);
  pool_ = std::make_unique<MrallPool>(*device_, at_most_bytes(static_cast<int64_t>(others + kLong + kLong / 2)));
  ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->pinned(first, kLong), PINRAIL_PINNED_WHOLLY);
  void* const second = map(kLong);
  pool_->catch_up();
  EXPECT_NE(pool_->pinned(second, kLong), PINRAIL_PINNED_WHOLLY);
  munmap(first, kLong);
  EXPECT_TRUE(becomes_registered(second, kLong));
  munmap(second, kLong);
}

class MrallRoom : public MrallMaker {
 protected:
  // Maps so many bytes, of which pieces are registered, and leaves so much room to the limit.
  char* map_with_room(size_t room) {
    start({{"mpool_mrall_largest_piece", "1M"}, {"mpool_mrall_max_reg_size", "4K"}});
    const uint64_t others = pool_->stats().registered_bytes;
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    void* const at = map(kLong);
    pool_ = std::make_unique<MrallPool>(*device_, at_most_bytes(static_cast<int64_t>(others + kLong + room)));
    EXPECT_EQ(pool_->status, PINRAIL_SUCCESS);
    return static_cast<char*>(at);
  }
};

// R8: each request lies across pieces and gets a registration of its own, of which none is held.
TEST_F(MrallRoom, windows_over_a_buffer_do_not_use_up_the_limit) {
  constexpr size_t kWindow = kLong / 4;
  char* const at = map_with_room(kLong);
  for (size_t offset = kPage; offset + kWindow < kLong; offset += kLong / 64 + kPage) {
    ASSERT_EQ(pool_->use(at + offset, kWindow, kWrite), PINRAIL_SUCCESS) << offset;
  }
  EXPECT_TRUE(becomes_registered(at, kLong, kWrite)) << "what made room is registered again";
  munmap(at, kLong);
}

// What is held makes no room.
TEST_F(MrallRoom, what_is_held_stays_although_a_request_lacks_room) {
  char* const at = map_with_room(kLong / 4);
  pinrail_handle_t held[2], refused;
  ASSERT_EQ(pool_->reg(at + kPage, kLong / 5, kWrite, &held[0]), PINRAIL_SUCCESS);
  ASSERT_EQ(pool_->reg(at + kLong / 2 + kPage, kLong / 5, kWrite, &held[1]), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->reg(at, kLong, kWrite, &refused), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_TRUE(becomes_registered(at, kLong, kWrite)) << "what was to make room is registered again";
  for (const pinrail_handle_t& each : held) {
    EXPECT_TRUE(is_indexed(each.reg));
    drop(each);
  }
  EXPECT_EQ(pool_->use(at, kLong, kWrite), PINRAIL_SUCCESS);
  munmap(at, kLong);
}

// R7: a part of it is registered, and that is less than what it lacks.
TEST_F(MrallRoom, a_request_that_cannot_be_met_costs_no_registration) {
  constexpr size_t kMuch = size_t{1} << 30;  // more than all else that is mapped
  start({{"mpool_mrall_largest_piece", "1M"}});
  const uint64_t others = pool_->stats().registered_bytes;
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  void* const at = map(kMuch);
  pool_ = std::make_unique<MrallPool>(*device_, at_most_bytes(static_cast<int64_t>(others + kMuch / 2)));
  ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->pinned(at, kMuch), PINRAIL_PINNED_PARTLY);
  EXPECT_EQ(pool_->use(static_cast<char*>(at) + kMuch / 16 * 7, kMuch / 2), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->stats().evictions, 0u);
  munmap(at, kMuch);
}

// A registrar may add rights to those that it is asked for.
TEST_F(MrallMaker, rights_that_a_device_adds_are_not_those_of_the_mapping) {
  start();
  device_->on_register([](const pinrail_register_request_t&, pinrail_registration_t* reg) { reg->rights |= kWrite; });
  void* const at = map(kPage, PROT_READ);
  EXPECT_EQ(pool_->use(at, kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(at, kPage, kWrite), PINRAIL_ERR_PERM);
  EXPECT_TRUE(comes_true([&] {
    const uint64_t calls = device_->register_calls();
    pool_->catch_up();
    return device_->register_calls() == calls;
  })) << "it registers for ever";
  EXPECT_EQ(pool_->pinned(at, kPage), PINRAIL_PINNED_WHOLLY);
  munmap(at, kPage);
}

// Maps so many whole granules and a page before and behind them, with nothing mapped beside. Returns the first granule.
char* map_beside_granules(size_t granules, size_t granule = kGranule) {
  auto* const room = static_cast<char*>(map((granules + 4) * granule, PROT_NONE));
  const uintptr_t second = (reinterpret_cast<uintptr_t>(room) / granule + 2) * granule;
  char* const first = room + (second - reinterpret_cast<uintptr_t>(room));
  munmap(room, (granules + 4) * granule);
  void* const at = mmap(first - kPage, granules * granule + 2 * kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_EQ(at, first - kPage);
  return first;
}

TEST_F(MrallMaker, whole_granules_are_registered_where_the_registrar_takes_no_less) {
  fake::FakeOptions fake;
  fake.granularity = kGranule;
  start({}, fake);
  char* const first = map_beside_granules(4);
  EXPECT_TRUE(becomes_registered(first, 4 * kGranule, kWrite));
  EXPECT_EQ(pool_->use(first + 100, 3 * kGranule, kWrite), PINRAIL_SUCCESS);
  EXPECT_NE(pool_->use(first - kPage, kPage), PINRAIL_SUCCESS) << "its granule is mapped in part";
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(first - kPage, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_FALSE(pool_->leaves_out(first, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_TRUE(pool_->leaves_out(first + 4 * kGranule, PINRAIL_LEFT_OUT_REFUSED));
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  munmap(first - kPage, 4 * kGranule + 2 * kPage);
}

// Two mappings of different rights share a granule, which is registered when it is asked for.
TEST_F(MrallMaker, a_granule_of_two_mappings_has_what_both_permit) {
  fake::FakeOptions fake;
  fake.granularity = kGranule;
  start({}, fake);
  char* const first = map_beside_granules(4);
  mprotect(first, kGranule + kPage, PROT_READ);
  EXPECT_EQ(pool_->use(first + kGranule, kGranule), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(first + kGranule + kPage, kPage, kWrite), PINRAIL_ERR_PERM);
  EXPECT_EQ(pool_->use(first + 2 * kGranule, kGranule, kWrite), PINRAIL_SUCCESS);
  munmap(first - kPage, 4 * kGranule + 2 * kPage);
}

// Of this process.
size_t mapped_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * kPage;
}

TEST_F(MrallMaker, a_device_without_atomics_is_known_by_whole_granules) {
  fake::FakeOptions fake;
  constexpr size_t kLarge = 128 * kPage;  // what the system maps is seldom aligned so by chance
  fake.granularity = kLarge;
  fake.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  start({}, fake);
  char* const first = map_beside_granules(2, kLarge);
  EXPECT_EQ(pool_->use(first, kLarge, kWrite), PINRAIL_SUCCESS);
  munmap(first - kPage, 2 * kLarge + 2 * kPage);
}

TEST_F(MrallMaker, the_page_on_which_a_device_is_asked_for_atomics_is_unmapped_again) {
  fake::FakeOptions fake;
  fake.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  start({}, fake);
  const auto another_pool = [this] {
    const MrallPool pool(*device_);
    EXPECT_EQ(pool.status, PINRAIL_SUCCESS);
    pool.catch_up();
  };
  another_pool();
  const size_t before = mapped_bytes();
  constexpr size_t kPools = 64;
  for (size_t i = 0; i < kPools; ++i) another_pool();
  EXPECT_LT(mapped_bytes(), before + kPools * kPage);
}

// A device that takes any range gets whole pages all the same, because events are about pages.
TEST_F(MrallMaker, requests_across_pieces_are_registered_in_whole_pages) {
  fake::FakeOptions fake;
  fake.granularity = 1;
  start({{"mpool_mrall_largest_piece", "64K"}, {"mpool_mrall_max_reg_size", "5000"}}, fake);
  auto* const at = static_cast<char*>(map(64 * kPage));
  EXPECT_TRUE(becomes_registered(at, 64 * kPage));
  EXPECT_EQ(pool_->use(at + 10 * kPage, 40 * kPage, kWrite), PINRAIL_SUCCESS);
  for (const fake::FakeRecord& record : device_->live()) EXPECT_EQ((record.base | record.length) % kPage, 0u);
  munmap(at, 64 * kPage);
}

}  // namespace
}  // namespace pinrail::test
