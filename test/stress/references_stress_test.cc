// SPDX-License-Identifier: BSD-3-Clause
// The count of references by itself: a sum of 0 under a seal means that nobody holds the registration, whatever the
// processor reorders, on whichever thread references are dropped, and however threads come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "base/core/references.h"
#include "base/core/registration_arena.h"
#include "base/core/thread.h"

namespace pinrail {
namespace {

pinrail_registration_t* make_indexed() {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, PINRAIL_COUNTING_THREADS, &reg).ok());
  state::set(reg, state::kPerThread | state::kIndexed);
  return reg;
}

bool seal(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  return state::exchange(reg, &word, word | state::kSealed);
}
void unseal(pinrail_registration_t* reg) { state::set(reg, state::kPerThread | state::kIndexed); }

int64_t sum_of(pinrail_registration_t* reg) {
  int64_t sum;
  references::sum(&reg, 1, &sum);
  return sum;
}

// Holders take and drop with plain stores; the evictor seals, sums, and where the sum is 0 looks whether that was true.
TEST(ReferencesStress, a_sum_of_zero_under_a_seal_is_true) {
  pinrail_registration_t* reg = make_indexed();
  std::atomic<bool> claimed{false}, stop{false};
  std::atomic<uint64_t> wrong{0}, held{0};
  auto hold = [&] {
    pinrail_thread_t* thread = thread::current();
    // Stores to cold lines fill the store buffer, so that the cell's store is late: without the barrier of the sum the
    // evictor would often not see it.
    std::vector<char> cold(size_t{64} << 20);
    size_t at = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 24; ++i) cold[at = (at + 4096 * 7 + 64) % cold.size()] = 1;
      if (!references::take(thread, reg, state::load(reg))) continue;
      // relaxed: whoever holds it must never see it claimed.
      for (int i = 0; i < 60; ++i) wrong += claimed.load(std::memory_order_relaxed) ? 1 : 0;
      references::drop_counted(thread, reg);
      held.fetch_add(1, std::memory_order_relaxed);
    }
  };
  std::thread holder(hold);
  constexpr uint64_t kLeast = 100;  // however little of the time is ours
  uint64_t idle = 0, rounds = 0;
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const auto goes_on = [&](Clock::duration time) {
    return time < std::chrono::seconds(2) || ((idle < kLeast || held < kLeast) && time < std::chrono::seconds(60));
  };
  while (goes_on(Clock::now() - begin)) {
    // Unsealed for a while; now and then until the holder got in, which under a sanitizer it is too slow for.
    const int patience = rounds++ % 8 == 0 ? 1000000 : 300;
    const uint64_t before = held.load(std::memory_order_relaxed);
    for (int n = 0; n < patience && (n < 300 || held.load(std::memory_order_relaxed) == before); ++n) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (!seal(reg)) continue;
    if (sum_of(reg) == 0) {
      claimed.store(true);
      ++idle;
      for (int n = 0; n < 2000; ++n) std::atomic_signal_fence(std::memory_order_seq_cst);
      claimed.store(false);
    }
    unseal(reg);
  }
  stop = true;
  holder.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(idle, kLeast);
  EXPECT_GE(held, kLeast);
  EXPECT_EQ(sum_of(reg), 0);
}

TEST(References, a_taking_that_was_overtaken_by_a_seal_is_refused_and_leaves_no_count) {
  pinrail_registration_t* reg = make_indexed();
  pinrail_thread_t* thread = thread::current();
  const uint64_t word = state::load(reg);
  ASSERT_TRUE(seal(reg));
  EXPECT_FALSE(references::take(thread, reg, word));
  EXPECT_EQ(sum_of(reg), 0);
  unseal(reg);
  EXPECT_TRUE(references::take(thread, reg, word));
  EXPECT_EQ(sum_of(reg), 1);
  references::drop_counted(thread, reg);
  EXPECT_EQ(sum_of(reg), 0);
}

TEST(References, more_than_a_cell_holds_is_counted_in_the_word) {
  pinrail_registration_t* reg = make_indexed();
  pinrail_thread_t* thread = thread::current();
  const int many = 3 * references::kMost;
  for (int i = 0; i < many; ++i) ASSERT_TRUE(references::take(thread, reg, state::load(reg)));
  EXPECT_EQ(sum_of(reg), many);
  for (int i = 0; i < many; ++i) references::drop_counted(thread, reg);
  EXPECT_EQ(sum_of(reg), 0);
}

// C4: what is counted in its far cell must not be noted behind the near one, which counts another registration.
TEST(References, nothing_is_noted_where_another_registration_is_counted) {
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make_indexed();
  pinrail_registration_t* other = make_indexed();
  while (references::near_of(other) != references::near_of(reg)) other = make_indexed();
  const char pools[2] = {};
  start_line::Line line{};
  for (pinrail_registration_t* each : {reg, other}) {
    ASSERT_TRUE(references::take(thread, each, state::load(each)));
    const int which = each == reg ? 0 : 1;
    references::note(thread, each, {&line.dates[which], 0, generation_of(each), &pools[which]});
  }
  const void* pool = nullptr;
  EXPECT_EQ(references::drop_noted(thread, {other, generation_of(other)}, &pool), references::Noted::no);
  EXPECT_EQ(references::near_cell(thread, reg)[1], reinterpret_cast<uintptr_t>(&line.dates[0]));
  EXPECT_EQ(references::near_cell(thread, reg)[3], reinterpret_cast<uintptr_t>(&pools[0]));
  EXPECT_EQ(references::drop_noted(thread, {reg, generation_of(reg)}, &pool), references::Noted::done);
  EXPECT_EQ(line.dates[0], epoch::short_date(epoch::load(thread->epoch)));
  EXPECT_EQ(line.dates[1], 0u);
  EXPECT_TRUE(references::drop_own(thread, other));
  EXPECT_EQ(sum_of(reg), 0);
  EXPECT_EQ(sum_of(other), 0);
}

TEST(ReferencesStress, references_dropped_on_other_threads_and_by_ending_ones_add_up) {
  std::vector<pinrail_registration_t*> regs;
  for (int i = 0; i < 3000; ++i) regs.push_back(make_indexed());  // more than a thread has cells
  std::atomic<int64_t> outstanding{0};
  for (int round = 0; round < 20; ++round) {
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, seed = static_cast<unsigned>(round) * 4 + t] {
        std::mt19937 random(seed);
        pinrail_thread_t* thread = thread::current();
        for (int i = 0; i < 4000; ++i) {
          pinrail_registration_t* reg = regs[random() % regs.size()];
          if (seed % 2 == 0) {
            if (references::take(thread, reg, state::load(reg))) ++outstanding;
          } else {
            references::drop_counted(thread, reg);
            --outstanding;
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  int64_t total = 0;
  for (pinrail_registration_t* reg : regs) total += sum_of(reg);
  EXPECT_EQ(total, outstanding);
}

TEST(ReferencesStress, memory_that_comes_back_is_of_a_later_generation_and_starts_at_zero) {
  pinrail_registration_t* reg = make_indexed();
  const uint64_t generation = generation_of(reg);
  std::thread taker([&] { EXPECT_TRUE(references::take(thread::current(), reg, state::load(reg))); });
  taker.join();
  references::drop_counted(thread::current(), reg);  // another thread than took it, which has ended
  EXPECT_EQ(sum_of(reg), 0);
  arena::free(reg);
  pinrail_registration_t* next = make_indexed();
  EXPECT_EQ(next, reg);
  EXPECT_GT(generation_of(next), generation);
  EXPECT_EQ(sum_of(next), 0);
}

}  // namespace
}  // namespace pinrail
