// SPDX-License-Identifier: BSD-3-Clause
// One buffer, taken on some threads and released on others that come and go, while one handle is held throughout: it is
// never evicted (R9), and in the end the counts are 0: it is evicted, and the pool destroyed.
//   hot_buffer_stress [OPERATIONS [PAIRS]]
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kAtOnce = 50;          // handles that are passed on together
constexpr size_t kMaxWaiting = 64;      // such batches
constexpr uint64_t kTakenByOne = 5000;  // then the thread ends, and the next one comes
constexpr uint64_t kDroppedByOne = 80000;

uint64_t operations = 2000000;
size_t pairs = 24;

using Batch = std::vector<pinrail_handle_t>;

// From those that take to those that drop.
class Belt {
 public:
  void put(Batch batch) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return batches_.size() < kMaxWaiting; });
    batches_.push_back(std::move(batch));
    changed_.notify_all();
  }
  // Empty: there will be no more.
  Batch get() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !batches_.empty() || over_; });
    if (batches_.empty()) return {};
    Batch batch = std::move(batches_.front());
    batches_.pop_front();
    changed_.notify_all();
    return batch;
  }
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch> batches_;
  bool over_ = false;
};

struct Traffic {
  const Pool& pool;
  Belt belt;
  std::atomic<int64_t> left{0};
  std::atomic<uint64_t> refused{0}, another{0};
};

void take_some(Traffic* traffic, const pinrail_registration_t* hot) {
  for (uint64_t taken = 0; taken < kTakenByOne && traffic->left.fetch_sub(kAtOnce) > 0; taken += kAtOnce) {
    Batch batch;
    for (size_t i = 0; i < kAtOnce; ++i) {
      pinrail_handle_t handle{};
      if (traffic->pool.reg(kBase, kPage, &handle) != PINRAIL_SUCCESS) ++traffic->refused;
      if (handle.reg != hot) ++traffic->another;
      if (handle.reg != nullptr) batch.push_back(handle);
    }
    traffic->belt.put(std::move(batch));
  }
}

// False: nothing is left.
bool drop_some(Traffic* traffic) {
  for (uint64_t dropped = 0; dropped < kDroppedByOne; dropped += kAtOnce) {
    const Batch batch = traffic->belt.get();
    if (batch.empty()) return false;
    for (const pinrail_handle_t handle : batch) {
      if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++traffic->refused;
    }
  }
  return true;
}

TEST(HotBuffer, taken_and_dropped_on_threads_that_come_and_go_it_stays_as_long_as_it_is_held) {
  const Library library;
  const fake::FakeRegistrar registrar;
  Pool pool(registrar);
  const pinrail_handle_t held = pool.must(kBase, kPage);
  Traffic traffic{pool, {}, {static_cast<int64_t>(operations)}, {}, {}};
  std::vector<std::thread> takers, droppers;
  for (size_t i = 0; i < pairs; ++i) {
    takers.emplace_back([&] {
      while (traffic.left.load() > 0) std::thread([&] { take_some(&traffic, held.reg); }).join();
    });
    droppers.emplace_back([&] {
      for (bool more = true; more;) std::thread([&] { more = drop_some(&traffic); }).join();
    });
  }
  uint64_t evicted = 0, broken = 0;
  std::atomic<bool> over{false};
  std::thread evictor([&] {
    while (!over.load()) {
      if (pinrail_mpool_evict(pool.get()) != PINRAIL_ERR_NOT_FOUND) ++evicted;
      if (!pool.invariants_hold()) ++broken;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  for (std::thread& thread : takers) thread.join();
  traffic.belt.end();
  for (std::thread& thread : droppers) thread.join();
  over = true;
  evictor.join();
  EXPECT_EQ(evicted, 0u);
  EXPECT_EQ(broken, 0u);
  EXPECT_EQ(traffic.refused, 0u);
  EXPECT_EQ(traffic.another, 0u);
  EXPECT_EQ(pool.stats().hits, operations);
  EXPECT_EQ(registrar.register_calls(), 1u);
  EXPECT_EQ(registrar.deregister_calls(), 0u);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.live_count(), 0u);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc > 1) pinrail::test::operations = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) pinrail::test::pairs = std::strtoull(argv[2], nullptr, 10);
  return RUN_ALL_TESTS();
}
