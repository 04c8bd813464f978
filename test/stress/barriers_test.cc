// SPDX-License-Identifier: BSD-3-Clause
// A barrier of all threads (membarrier) interrupts each processor that runs a thread of the process. So one barrier
// must serve many dead registrations, on whichever thread they are deregistered. The tests replace the system call by
// one that runs code of theirs first, so that other threads go on meanwhile.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdarg>
#include <functional>
#include <thread>
#include <utility>

#include "test/support/library.h"
#include "test/support/tasks.h"

namespace {

std::atomic<uint64_t> barriers{0};
std::atomic<const std::function<void()>*> in_barrier{nullptr};

}  // namespace

// Takes the place of the C library's function.
extern "C" __attribute__((visibility("default"))) long syscall(long number, ...) {
  static const auto original = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  long arguments[6];
  for (long& argument : arguments) argument = va_arg(list, long);
  va_end(list);
  if (number == SYS_membarrier) {
    ++barriers;
    if (const std::function<void()>* const does = in_barrier) (*does)();
  }
  return original(number, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4], arguments[5]);
}

namespace pinrail::test {
namespace {

using std::chrono::milliseconds;

constexpr uintptr_t kBase = 0x10000000;
constexpr uint64_t kBatch = 128;

class Barriers : public ::testing::Test {
 protected:
  void SetUp() override {
    die(1);
    ASSERT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
    if (barriers == 0) GTEST_SKIP() << "no membarrier here: nothing is counted per thread";
    barriers = 0;
  }
  void TearDown() override {
    in_barrier = nullptr;
    EXPECT_TRUE(pool_.invariants_hold());
  }
  // So many misses, each of which leaves a dead registration.
  void die(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      const uintptr_t base = kBase + next_++ * 2 * kPage;
      pool_.use(base, kPage);
      report(base, kPage);
    }
  }
  void die_on_another_thread(uint64_t count) {
    std::thread([&] { die(count); }).join();
  }
  // From now on each barrier does this first.
  void meanwhile(std::function<void()> does) {
    does_ = std::move(does);
    in_barrier = &does_;
  }

  std::function<void()> does_;  // longer than the library's threads
  const Library library_{{{"mpool_grdma_gc_thread", "auto"}}};
  fake::FakeRegistrar device_;
  const Pool pool_{device_};
  std::atomic<uint64_t> next_{0};
};

// The gc thread comes 100 ms after the first one died, and takes a barrier, too.
uint64_t most_of_gc_thread(std::chrono::steady_clock::duration time) {
  return 2 * static_cast<uint64_t>(time / milliseconds(100));
}

TEST_F(Barriers, serve_a_batch_each) {
  const auto began = std::chrono::steady_clock::now();
  die(10 * kBatch);
  EXPECT_LE(barriers, 10 + most_of_gc_thread(std::chrono::steady_clock::now() - began));
}

// What one thread is about to sum is no reason for another one to sum the few that were killed since.
TEST_F(Barriers, are_not_taken_by_two_threads_at_a_time) {
  const auto began = std::chrono::steady_clock::now();
  std::atomic<uint64_t> others{0};
  meanwhile([&] {
    if (in_barrier.exchange(nullptr) == nullptr) return;
    die_on_another_thread(kBatch / 2);
    others = barriers - 1;
  });
  die(kBatch + 1);
  EXPECT_GE(barriers, 1u);
  EXPECT_LE(others, most_of_gc_thread(std::chrono::steady_clock::now() - began));
}

// Two threads that kill side by side leave more than a batch, and what is left over is not worth a barrier.
TEST_F(Barriers, serve_what_is_more_than_a_batch) {
  const auto began = std::chrono::steady_clock::now();
  constexpr uint64_t kMore = kBatch + kBatch / 2;
  for (uint64_t i = 0; i < kMore; ++i) pool_.use(kBase + i * 2 * kPage, kPage);
  report(kBase, kMore * 2 * kPage);
  die(1);
  EXPECT_LE(barriers, 1 + most_of_gc_thread(std::chrono::steady_clock::now() - began));
  EXPECT_LE(device_.live_count(), 1u);
}

// The gc thread takes what there is and leaves alone what dies meanwhile: it is woken again for that.
TEST_F(Barriers, are_not_taken_again_and_again_by_the_gc_thread) {
  constexpr uint64_t kMost = 20;
  const auto began = std::chrono::steady_clock::now();
  meanwhile([&] {
    if (barriers <= kMost) die_on_another_thread(1);
  });
  die(1);
  EXPECT_TRUE(comes_true([&] { return barriers != 0; }));
  std::this_thread::sleep_for(milliseconds(50));
  const uint64_t taken = barriers;
  EXPECT_LE(taken, most_of_gc_thread(std::chrono::steady_clock::now() - began));
  EXPECT_TRUE(comes_true([&] { return device_.live_count() == 0; }));
}

}  // namespace
}  // namespace pinrail::test
