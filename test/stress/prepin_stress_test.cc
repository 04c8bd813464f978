// SPDX-License-Identifier: BSD-3-Clause
// Threads pin, cancel, wait and unpin in the background, stream, register and deregister on the same ranges, while
// events end what is registered. Nothing is left, and the pool's invariants hold.
#include <gtest/gtest.h>
#include <pinrail/pin.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kPages = 512;
constexpr size_t kChunk = 8 * kPage;

class Load {
 public:
  Load(const Pool& pool, unsigned seed) : pool_(pool), random_(seed) {}

  void step() {
    switch (random_() % 6) {
      case 0: pin_in_background(); break;
      case 1: pin_and_unpin(); break;
      case 2: stream(); break;
      case 3: report(kBase + random_() % kPages * kPage, (1 + random_() % 16) * kPage); break;
      default:
        for (int i = 0; i < 50; ++i) use();
    }
  }

 private:
  pinrail_range_t range(size_t most_pages) {
    const size_t first = random_() % (kPages - most_pages);
    return {reinterpret_cast<void*>(kBase + first * kPage), (1 + random_() % most_pages) * kPage};
  }
  void pin_in_background() {
    pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
    options.chunk_size = kChunk;
    options.threads = 1 + random_() % 3;
    options.flags = random_() % 2 != 0 ? PINRAIL_PREPIN_PARTIAL : 0;
    const pinrail_range_t ranges[] = {range(200), range(30)};
    pinrail_prepin_t* prepin = nullptr;
    ASSERT_EQ(pinrail_mpool_prepin_start(pool_.get(), ranges, 2, 1, &options, &prepin), PINRAIL_SUCCESS);
    if (random_() % 2 != 0) (void)pinrail_prepin_wait_range(prepin, ranges[0].addr, ranges[0].length / 2);
    if (random_() % 3 == 0) {
      EXPECT_EQ(pinrail_prepin_cancel(prepin), PINRAIL_SUCCESS);
    }
    pinrail_status_t statuses[2];
    const pinrail_status_t status = pinrail_prepin_wait(prepin, statuses);
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    if (status == PINRAIL_ERR_NOT_FOUND) return;  // cancelled
    const bool is_partial = (options.flags & PINRAIL_PREPIN_PARTIAL) != 0;
    for (int i = 0; i < 2; ++i) {
      if (status != PINRAIL_SUCCESS && (!is_partial || statuses[i] != PINRAIL_SUCCESS)) continue;
      EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), &ranges[i], 1, 1), PINRAIL_SUCCESS);
    }
  }
  void pin_and_unpin() {
    const pinrail_range_t ranges[] = {range(20), range(20), range(20)};
    if (pinrail_mpool_prepin(pool_.get(), ranges, 3, 1, nullptr, nullptr) != PINRAIL_SUCCESS) return;
    use();
    EXPECT_EQ(pinrail_mpool_unpin(pool_.get(), ranges, 3, 1), PINRAIL_SUCCESS);
  }
  void stream() {
    pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
    options.chunk_size = kChunk;
    options.ahead = random_() % 4;
    const pinrail_range_t all = range(100);
    pinrail_chunk_stream_t* chunks = nullptr;
    ASSERT_EQ(pinrail_chunk_stream_open(pool_.get(), all.addr, all.length, 1, &options, &chunks), PINRAIL_SUCCESS);
    pinrail_handle_t handle;
    for (size_t left = random_() % 20; left != 0; --left) {
      if (pinrail_chunk_stream_next(chunks, &handle, nullptr, nullptr) != PINRAIL_SUCCESS) break;
      drop(handle);
    }
    EXPECT_EQ(pinrail_chunk_stream_close(chunks), PINRAIL_SUCCESS);
  }
  void use() {
    const pinrail_range_t one = range(8);
    pinrail_handle_t handle;
    const pinrail_status_t status = pinrail_mpool_register(pool_.get(), one.addr, one.length, 1, 0, &handle);
    if (status != PINRAIL_SUCCESS) return;  // raced too often, or the script
    const auto base = reinterpret_cast<uintptr_t>(handle.reg->base);
    EXPECT_LE(base, reinterpret_cast<uintptr_t>(one.addr));
    EXPECT_GE(base + handle.reg->length, reinterpret_cast<uintptr_t>(one.addr) + one.length);
    drop(handle);
  }

  const Pool& pool_;
  std::mt19937 random_;
};

TEST(PrepinStress, threads_that_pin_stream_use_and_unmap_leave_nothing) {
  const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(short_or_long(1500, 10000));
  for (unsigned round = 0; std::chrono::steady_clock::now() < end; ++round) {
    fake::FakeRegistrar registrar;
    Pool pool(registrar);
    if (round % 2 != 0) registrar.fail_register(20 + round % 50, PINRAIL_ERR_PERM);
    on_threads(4u, [&](unsigned i) {
      Load load(pool, round * 4 + i);
      for (int step = 0; step < 20; ++step) load.step();
    });
    ASSERT_TRUE(pool.invariants_hold()) << round;
    pool.evict_all();
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar.violations(), std::vector<std::string>{});
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS) << round << ": nothing is referenced";
    EXPECT_EQ(registrar.live_count(), 0u) << round;
  }
}

TEST(GcThreadStress, a_pool_is_destroyed_while_it_works_and_no_device_is_called_afterwards) {
  for (int round = 0; round < 300; ++round) {
    const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_gc_limit", "8K"}});  // ends as well
    fake::FakeRegistrar device;
    Pool pool(device);
    std::atomic<bool> is_over{false};
    std::atomic<int> late{0};
    device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_over) ++late;
    });
    for (uintptr_t i = 0; i < 20; ++i) pool.use(kBase + 2 * i * kPage, kPage);
    report(kBase, 64 * kPage);
    if (round % 2 == 0) sched_yield();
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
    is_over = true;
    ASSERT_EQ(device.live_count(), 0u);
    ASSERT_EQ(late.load(), 0);
    ASSERT_EQ(device.violations(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace pinrail::test
