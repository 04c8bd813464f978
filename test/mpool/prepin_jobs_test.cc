// SPDX-License-Identifier: BSD-3-Clause
// Jobs that pin, beside events, other jobs, registrars that call back, and threads that end: what is reported as pinned
// is pinned, and nothing else stays.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "test/mpool/pinning.h"

namespace pinrail::test {
namespace {

const pinrail_range_t kFirst = range(kBase, kChunk), kSecond = range(kBase + 100 * kChunk, kChunk);

class PrepinJobs : public Pinning {
 protected:
  void TearDown() override { alarm(0); }
  bool is_pinned(const pinrail_range_t& what) {
    pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
    EXPECT_EQ(pinrail_mpool_query(pool_->get(), what.addr, what.length, 1, &pinned, nullptr, 0, nullptr),
              PINRAIL_SUCCESS);
    return pinned == PINRAIL_PINNED_WHOLLY;
  }
};

TEST_F(PrepinJobs, a_pin_from_before_an_event_does_not_take_the_place_of_a_newer_one) {
  make_pool();
  std::atomic<int> calls{0};
  std::atomic<bool> may_go{false};
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (++calls != 2) return;
    while (!may_go) std::this_thread::yield();
  });
  pinrail_prepin_t* const slow = start({kFirst, kSecond});
  while (calls < 2) std::this_thread::yield();
  report(kBase, kChunk);
  ASSERT_EQ(pin({kFirst}), PINRAIL_SUCCESS) << "what is mapped there now";
  may_go = true;
  finish(slow);
  EXPECT_TRUE(is_pinned(kFirst));
  EXPECT_EQ(unpin({kFirst}), PINRAIL_SUCCESS);
  EXPECT_EQ(unpin({kFirst, kSecond}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(PrepinJobs, a_dmabuf_may_be_closed_after_the_start) {
  fake::FakeOptions fake;
  fake.kinds = PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF;
  make_pool(fake);
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::atomic<bool> is_closed{false};
  std::atomic<int> bad{0};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    while (!is_closed) std::this_thread::yield();
    if (request.kind != PINRAIL_KIND_DMABUF || fcntl(request.fd, F_GETFD) < 0) ++bad;
  });
  pinrail_register_options_t wanted = PINRAIL_REGISTER_OPTIONS_INIT;
  wanted.dmabuf_fd = fd;
  pinrail_prepin_options_t options = in_chunks(0, 1);
  options.registration = &wanted;
  const pinrail_range_t all = range(kBase, 4 * kChunk);
  pinrail_prepin_t* job = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool_->get(), &all, 1, 1, &options, &job), PINRAIL_SUCCESS);
  close(fd);
  is_closed = true;
  finish(job);
  EXPECT_EQ(bad, 0);
  EXPECT_EQ(open("/dev/null", O_RDONLY | O_CLOEXEC), fd) << "the job's copy is closed, too";
  close(fd);
}

// F1: a child would keep the memory of the dmabuf alive, and could not close what it does not know.
TEST_F(PrepinJobs, a_forked_child_does_not_inherit_the_jobs_copy_of_a_descriptor) {
  fake::FakeOptions fake;
  fake.kinds = PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF;
  make_pool(fake);
  const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::atomic<int> copy{-1};
  std::atomic<bool> may_go{false};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    copy = request.fd;
    while (!may_go) std::this_thread::yield();
  });
  pinrail_register_options_t wanted = PINRAIL_REGISTER_OPTIONS_INIT;
  wanted.dmabuf_fd = fd;
  pinrail_prepin_options_t options = in_chunks(0, 1);
  options.registration = &wanted;
  pinrail_prepin_t* job = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool_->get(), &kFirst, 1, 1, &options, &job), PINRAIL_SUCCESS);
  while (copy < 0) std::this_thread::yield();
  expect_success_in_child([&] {
    alarm(10);
    const int wrong = fcntl(copy, F_GETFD) >= 0 ? 1 : 0;
    return wrong | (fcntl(fd, F_GETFD) >= 0 ? 0 : 2);
  });
  EXPECT_GE(fcntl(copy, F_GETFD), 0) << "the parent's is open";
  may_go = true;
  finish(job);
  EXPECT_LT(fcntl(copy, F_GETFD), 0);
  close(fd);
}

// The helper threads would wait for the registrar call that the function is in.
TEST_F(PrepinJobs, a_registrar_may_pin_and_ask_for_helper_threads) {
  fake::FakeOptions fake;
  fake.thread_mode = PINRAIL_THREAD_SERIALIZED;
  make_pool(fake);
  bool is_first = true;
  pinrail_status_t inner = PINRAIL_ERR_ERROR;
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!std::exchange(is_first, false)) {
      usleep(20000);  // a helper thread would have taken a chunk by then
      return;
    }
    const pinrail_prepin_options_t options = in_chunks(PINRAIL_PREPIN_PARTIAL, 2);
    const pinrail_range_t all = range(kBase + 100 * kChunk, 8 * kChunk);
    inner = pinrail_mpool_prepin(pool_->get(), &all, 1, 1, &options, nullptr);
  });
  alarm(20);
  pool_->use(kBase, kPage);
  EXPECT_EQ(inner, PINRAIL_ERR_NOT_SUPPORTED) << "R5: inside a registrar nothing is cached";
}

TEST_F(PrepinJobs, ranges_that_overlap_are_counted_once_against_a_limit) {
  PoolOptions limits = at_most_bytes(12 * kChunk);
  limits.count_limit = 12;
  make_pool({}, limits);
  EXPECT_EQ(pin({range(kBase, 8 * kChunk), range(kBase + 4 * kChunk, 8 * kChunk)}), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_bytes(), 12 * kChunk);
}

TEST_F(PrepinJobs, statuses_are_written_though_the_ranges_can_never_fit) {
  make_pool({}, at_most_bytes(kChunk));
  constexpr auto kUnwritten = static_cast<pinrail_status_t>(77);
  pinrail_status_t statuses[2] = {kUnwritten, kUnwritten};
  EXPECT_EQ(pin({range(kBase, 8 * kChunk), kSecond}, 0, statuses), PINRAIL_ERR_OUT_OF_RESOURCE);
  for (const pinrail_status_t status : statuses) EXPECT_EQ(status, PINRAIL_ERR_ERROR);
}

// What the allocator keeps free.
TEST_F(PrepinJobs, a_request_with_options_gets_the_room_of_free_slabs) {
  make_pool({}, at_most_bytes(40 << 20));
  void* at = nullptr;
  ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 100, 0, -1, &at), PINRAIL_SUCCESS);
  ASSERT_EQ(pinrail_mpool_free(pool_->get(), at), PINRAIL_SUCCESS);
  pinrail_register_options_t wanted = PINRAIL_REGISTER_OPTIONS_INIT;
  wanted.user_value = 5;
  pinrail_handle_t handle{};
  ASSERT_EQ(pinrail_mpool_register_with(pool_->get(), kFirst.addr, 20 << 20, 1, 0, &wanted, &handle), PINRAIL_SUCCESS);
  drop(handle);
}

class AllocAfter : public PrepinJobs {
 protected:
  void SetUp() override {
    PrepinJobs::SetUp();
    make_pool();
    ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 100, 0, -1, &kept_), PINRAIL_SUCCESS);
  }
  // What is handed out next, of the same region, is registered: a request for it is a hit.
  void expect_registered() {
    void* at = nullptr;
    ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 1000, 0, -1, &at), PINRAIL_SUCCESS);
    EXPECT_TRUE(pool_->has(reinterpret_cast<uintptr_t>(at), 1000));
    const uint64_t calls = device_->register_calls();
    EXPECT_EQ(pinrail_mpool_free(pool_->get(), at), PINRAIL_SUCCESS);
    ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 1000, 0, -1, &at), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->register_calls(), calls) << "registered once";
    EXPECT_EQ(pinrail_mpool_free(pool_->get(), at), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_free(pool_->get(), kept_), PINRAIL_SUCCESS);
  }
  void* kept_ = nullptr;
};

TEST_F(AllocAfter, an_event_on_one_page_the_region_is_registered_anew) {
  report(reinterpret_cast<uintptr_t>(kept_), 100);
  expect_registered();
}

TEST_F(AllocAfter, a_restart_the_region_is_registered_anew) {
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  expect_registered();
}

TEST_F(AllocAfter, a_checkpoint_gives_back_what_is_free) {
  EXPECT_EQ(pinrail_mpool_free(pool_->get(), kept_), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
}

// What is allocated stays mapped, and what is free does not.
TEST_F(AllocAfter, a_forced_destroy_what_is_free_is_unmapped) {
  std::vector<void*> large(8);
  for (void*& at : large) ASSERT_EQ(pinrail_mpool_alloc(pool_->get(), 16 << 20, 0, -1, &at), PINRAIL_SUCCESS);
  for (void* const at : large) ASSERT_EQ(pinrail_mpool_free(pool_->get(), at), PINRAIL_SUCCESS);
  const auto is_mapped = [](void* at) {
    unsigned char resident = 0;
    const uintptr_t page = reinterpret_cast<uintptr_t>(at) / kPage * kPage;
    return mincore(reinterpret_cast<void*>(page), kPage, &resident) == 0;  // NOLINT(performance-no-int-to-ptr)
  };
  ASSERT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_TRUE(is_mapped(kept_));
  EXPECT_FALSE(std::any_of(large.begin(), large.end(), is_mapped));
}

TEST(AllocSingle, allocations_are_whole_granules) {
  constexpr size_t kGranule = 16 * kPage;
  const Library library(Settings{{"mpool_alloc_backing", "single"}});
  fake::FakeOptions fake;
  fake.granularity = kGranule;
  const fake::FakeRegistrar device(fake);
  const Pool pool(device);
  void* at = nullptr;
  ASSERT_EQ(pinrail_mpool_alloc(pool.get(), 100, 0, -1, &at), PINRAIL_SUCCESS);
  auto stats = sized<pinrail_alloc_stats_t>();
  EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool.get(), &stats), PINRAIL_SUCCESS);
  EXPECT_EQ(device.live_bytes(), kGranule);
  EXPECT_EQ(stats.mapped_bytes, kGranule) << "all that is registered is the allocation's own";
  EXPECT_EQ(pinrail_mpool_free(pool.get(), at), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
