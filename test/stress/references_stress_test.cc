// SPDX-License-Identifier: BSD-3-Clause
// R1: the count of references by itself: a sum of 0 under a claim means that no thread holds the registration, whatever
// the processor reorders, on whichever thread references are dropped, and however threads come and go.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "base/hit/hit_counts.h"
#include "base/hit/note.h"
#include "base/registration/references.h"
#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"

namespace pinrail {
namespace {

pinrail_registration_t* make_indexed() {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, PINRAIL_COUNTING_THREADS, &reg).ok());
  state::set(reg, state::kPerThread | state::kIndexed);
  return reg;
}

bool claim(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  return state::exchange(reg, &word, word | state::kEvictClaim);
}
void revoke_claim(pinrail_registration_t* reg) { state::set(reg, state::kPerThread | state::kIndexed); }

int64_t sum_of(pinrail_registration_t* reg) {
  int64_t sum;
  references::sum(&reg, 1, PINRAIL_SUM_NOW, &sum);
  return sum;
}

// Holders take and drop with plain stores; the evictor claims, sums, and where the sum is 0 looks whether that was
// true.
TEST(ReferencesStress, a_sum_of_zero_under_a_claim_is_true) {
  pinrail_registration_t* reg = make_indexed();
  std::atomic<bool> claimed{false}, stop{false};
  std::atomic<uint64_t> wrong{0}, held{0};
  auto hold = [&] {
    pinrail_thread_t* thread = thread::current();
    // Stores to cold lines fill the store buffer, so that the reference slot's store is late: without the barrier of
    // the sum the evictor would often not see it.
    std::vector<char> cold(size_t{64} << 20);
    size_t at = 0;
    while (!stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < 24; ++i) cold[at = (at + 4096 * 7 + 64) % cold.size()] = 1;
      if (!references::take(thread, reg, state::load(reg))) continue;
      // relaxed: a holder must never see it claimed.
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
    // ClaimRevoked for a while; now and then until the holder got in, which under a sanitizer it is too slow for.
    const int patience = rounds++ % 8 == 0 ? 1000000 : 300;
    const uint64_t before = held.load(std::memory_order_relaxed);
    for (int n = 0; n < patience && (n < 300 || held.load(std::memory_order_relaxed) == before); ++n) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    if (!claim(reg)) continue;
    if (sum_of(reg) == 0) {
      claimed.store(true);
      ++idle;
      for (int n = 0; n < 2000; ++n) std::atomic_signal_fence(std::memory_order_seq_cst);
      claimed.store(false);
    }
    revoke_claim(reg);
  }
  stop = true;
  holder.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GE(idle, kLeast);
  EXPECT_GE(held, kLeast);
  EXPECT_EQ(sum_of(reg), 0);
}

TEST(References, a_taking_that_was_overtaken_by_a_claim_is_refused_and_leaves_no_count) {
  pinrail_registration_t* reg = make_indexed();
  pinrail_thread_t* thread = thread::current();
  const uint64_t word = state::load(reg);
  ASSERT_TRUE(claim(reg));
  EXPECT_FALSE(references::take(thread, reg, word));
  EXPECT_EQ(sum_of(reg), 0);
  revoke_claim(reg);
  EXPECT_TRUE(references::take(thread, reg, word));
  EXPECT_EQ(sum_of(reg), 1);
  references::drop_counted(thread, reg);
  EXPECT_EQ(sum_of(reg), 0);
}

TEST(References, more_than_a_slot_holds_is_folded) {
  pinrail_registration_t* reg = make_indexed();
  pinrail_thread_t* thread = thread::current();
  const int many = 3 * references::kMaxCount;
  for (int i = 0; i < many; ++i) ASSERT_TRUE(references::take(thread, reg, state::load(reg)));
  EXPECT_EQ(sum_of(reg), many);
  for (int i = 0; i < many; ++i) references::drop_counted(thread, reg);
  EXPECT_EQ(sum_of(reg), 0);
}

// A thread that lives as long as the test and runs given functions.
class Worker {
 public:
  Worker() : thread_([this] { run(); }) {}
  ~Worker() {
    tell([this](pinrail_thread_t*) { over_ = true; });
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  // Returns when it is done.
  void tell(std::function<void(pinrail_thread_t*)> work) {
    std::unique_lock<std::mutex> lock(mutex_);
    work_ = std::move(work);
    changed_.notify_all();
    changed_.wait(lock, [this] { return work_ == nullptr; });
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!over_) {
      changed_.wait(lock, [this] { return work_ != nullptr; });
      work_(thread::current());
      work_ = nullptr;
      changed_.notify_all();
    }
  }
  bool over_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void(pinrail_thread_t*)> work_;
  std::thread thread_;
};

constexpr int kPart = 65000;     // more than two reference slots count
constexpr size_t kWorkers = 10;  // together more than twenty bits count

void take_often(pinrail_thread_t* thread, pinrail_registration_t* reg, int times) {
  for (int i = 0; i < times; ++i) ASSERT_TRUE(references::take(thread, reg, state::load(reg)));
}
void drop_often(pinrail_thread_t* thread, pinrail_registration_t* reg, int times) {
  for (int i = 0; i < times; ++i) references::drop_counted(thread, reg);
}

// R9: ten take, one drops all that, and one more reference is held all the time.
TEST(References, taken_on_many_threads_and_dropped_on_one_no_count_wraps) {
  pinrail_registration_t* reg = make_indexed();
  take_often(thread::current(), reg, 1);
  Worker takers[kWorkers], dropper;
  for (Worker& taker : takers) {
    taker.tell([&](pinrail_thread_t* thread) { take_often(thread, reg, kPart); });
    dropper.tell([&](pinrail_thread_t* thread) { drop_often(thread, reg, kPart); });
    ASSERT_EQ(sum_of(reg), 1);
  }
}

TEST(References, taken_on_threads_that_end_and_dropped_on_many_no_count_wraps) {
  pinrail_registration_t* reg = make_indexed();
  take_often(thread::current(), reg, 1);
  Worker droppers[kWorkers];
  for (Worker& dropper : droppers) {
    std::thread([&] { take_often(thread::current(), reg, kPart); }).join();
    dropper.tell([&](pinrail_thread_t* thread) { drop_often(thread, reg, kPart); });
    ASSERT_EQ(sum_of(reg), 1);
  }
}

// Far more than a device could be told of, and none of them in a reference slot.
TEST(References, more_references_than_twenty_bits_count_are_held) {
  pinrail_registration_t* reg = make_indexed();
  constexpr int kMany = (1 << 20) + 5;
  std::thread([&] { take_often(thread::current(), reg, kMany); }).join();
  EXPECT_EQ(sum_of(reg), kMany);
  std::thread([&] { drop_often(thread::current(), reg, kMany - 1); }).join();
  EXPECT_EQ(sum_of(reg), 1);
}

// A thread whose reference slots count others counts in the registration itself.
TEST(References, what_no_slot_counts_is_summed_and_breaks_a_claim) {
  pinrail_registration_t* reg = make_indexed();
  pinrail_thread_t* thread = thread::current();
  *references::near_ref_slot(thread, reg) = *references::far_ref_slot(thread, reg) = references::kUnusableRefSlot;
  take_often(thread, reg, 3);
  EXPECT_EQ(sum_of(reg), 3);
  ASSERT_TRUE(claim(reg));
  EXPECT_FALSE(references::take(thread, reg, state::load(reg)));
  EXPECT_TRUE(references::take_revoking_claim(thread, reg, state::load(reg)));
  EXPECT_EQ(state::load(reg) & state::kEvictClaim, 0u);
  EXPECT_EQ(sum_of(reg), 4);
  drop_often(thread, reg, 4);
  EXPECT_EQ(sum_of(reg), 0);
  *references::near_ref_slot(thread, reg) = *references::far_ref_slot(thread, reg) = 0;
}

// C5.
class Summed : public ::testing::Test {
 protected:
  void die_held(int64_t references) {
    uint64_t before;
    ASSERT_TRUE(kill(reg_, &before));
    ASSERT_EQ(sum_of(reg_), references);
    ASSERT_EQ(references::settle_dead(handle_, PINRAIL_DEAD_HELD), 0);
  }
  int drop() { return references::settle_dead(handle_, PINRAIL_DEAD_DROP); }
  int dropped() { return references::settle_dead(handle_, PINRAIL_DEAD_DROPPED); }

  pinrail_registration_t* reg_ = make_indexed();
  pinrail_handle_t handle_ = {reg_, generation_of(reg_)};
};

TEST_F(Summed, its_last_drop_is_known_and_one_more_is_refused) {
  Worker other;
  other.tell([&](pinrail_thread_t* thread) { take_often(thread, reg_, 2); });
  take_often(thread::current(), reg_, 1);
  EXPECT_EQ(drop(), -1) << "it was not summed yet";
  die_held(3);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(drop(), 0);
  EXPECT_EQ(drop(), 1);
  EXPECT_EQ(drop(), -1);
  arena::free(reg_);
  EXPECT_EQ(drop(), -1) << "a handle of a past life";
  EXPECT_EQ(make_indexed(), reg_);
  EXPECT_EQ(sum_of(reg_), 0);
}

TEST_F(Summed, a_drop_that_did_not_see_it_in_time_adds_up_again) {
  Worker other;
  other.tell([&](pinrail_thread_t* thread) { take_often(thread, reg_, 2); });
  die_held(2);
  other.tell([&](pinrail_thread_t* thread) { EXPECT_TRUE(references::drop_own(thread, reg_)); });
  EXPECT_EQ(dropped(), 0);
  other.tell([&](pinrail_thread_t* thread) { EXPECT_TRUE(references::drop_own(thread, reg_)); });
  EXPECT_EQ(dropped(), 1);
  EXPECT_EQ(dropped(), 0) << "it is given back once";
}

TEST_F(Summed, a_count_that_was_rolled_back_during_the_sum_is_found_later) {
  take_often(thread::current(), reg_, 1);
  Worker late;
  late.tell([&](pinrail_thread_t* thread) { EXPECT_TRUE(references::count(thread, reg_, 1)); });
  die_held(2);
  EXPECT_EQ(drop(), 0);
  late.tell([&](pinrail_thread_t* thread) {
    const uint64_t rollbacks = *thread->rollbacks;
    references::roll_back(thread, reg_);
    EXPECT_GT(*thread->rollbacks, rollbacks);
  });
  EXPECT_EQ(dropped(), 1);
}

TEST_F(Summed, cells_of_threads_that_end_or_are_full_stay_in_the_sum) {
  Worker taker;
  taker.tell([&](pinrail_thread_t* thread) { take_often(thread, reg_, 7); });
  std::thread([&] {
    drop_often(thread::current(), reg_, 2);
    die_held(5);
  }).join();  // its reference slots counted -2
  taker.tell([&](pinrail_thread_t* thread) { thread->fold(thread, reg_); });
  for (int i = 0; i < 4; ++i) EXPECT_EQ(drop(), 0);
  EXPECT_EQ(drop(), 1);
  EXPECT_EQ(sum_of(reg_), 0);
}

// Two drops on one thread did not see the mark, and the pool is destroyed before the other thread adds up again.
TEST_F(Summed, what_a_destroy_frees_is_left_alone_by_a_thread_that_ends_meanwhile) {
  pinrail_registration_services_t services{};
  services.settle_dead = [](const pinrail_host_t*, pinrail_handle_t handle, pinrail_dead_t what) {
    return references::settle_dead(handle, what);
  };
  pinrail_host_t host{};
  host.registrations = &services;
  Worker taker;
  taker.tell([&](pinrail_thread_t* thread) { take_often(thread, reg_, 2); });
  die_held(2);
  constexpr int64_t kOfTheNext = 77;
  {
    Worker dropper;
    dropper.tell([&](pinrail_thread_t* thread) {
      for (int i = 0; i < 2; ++i) ASSERT_TRUE(references::count(thread, reg_, -1));
    });
    ASSERT_EQ(sum_of(reg_), 0);
    EXPECT_FALSE(references::is_held_at_destroy(&host, reg_, 0));
    references::kept_part(reg_) = kOfTheNext;
  }
  EXPECT_EQ(references::kept_part(reg_), kOfTheNext);
  EXPECT_EQ(sum_of(reg_), 0);
  arena::free(reg_);
  EXPECT_EQ(make_indexed(), reg_);
  EXPECT_EQ(sum_of(reg_), 0);
}

TEST(Threads, threads_that_came_before_a_thousand_others_count_their_own_hits) {
  const auto crowd = [](size_t count) {
    std::mutex mutex;
    std::condition_variable all_there;
    size_t ready = 0, shared = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&] {
        const uint32_t index = thread::current()->index;
        std::unique_lock<std::mutex> lock(mutex);
        if (index >= HitCounts::kAlone) ++shared;
        if (++ready == count) all_there.notify_all();
        all_there.wait(lock, [&] { return ready == count; });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return shared;
  };
  crowd(1100);
  EXPECT_EQ(crowd(1000), 0u);
}

// What is counted in its far reference slot must not be noted behind the near one, which counts another
// registration.
TEST(References, nothing_is_noted_where_another_registration_is_counted) {
  pinrail_thread_t* thread = thread::current();
  pinrail_registration_t* reg = make_indexed();
  pinrail_registration_t* other = make_indexed();
  while (references::near_of(other) != references::near_of(reg)) other = make_indexed();
  const char pools[2] = {};
  start_bucket::Bucket bucket{};
  for (pinrail_registration_t* each : {reg, other}) {
    ASSERT_TRUE(references::take(thread, each, state::load(each)));
    const int which = each == reg ? 0 : 1;
    note::write_if_near(thread, each, {&bucket.dates[which], 0, generation_of(each), &pools[which]});
  }
  const void* pool = nullptr;
  EXPECT_EQ(note::release(thread, {other, generation_of(other)}, &pool), note::Release::no_note);
  EXPECT_EQ(references::near_ref_slot(thread, reg)[1], reinterpret_cast<uintptr_t>(&bucket.dates[0]));
  EXPECT_EQ(references::near_ref_slot(thread, reg)[3], reinterpret_cast<uintptr_t>(&pools[0]));
  EXPECT_EQ(note::release(thread, {reg, generation_of(reg)}, &pool), note::Release::dropped);
  EXPECT_EQ(bucket.dates[0], epoch::short_date(epoch::load(thread->epoch)));
  EXPECT_EQ(bucket.dates[1], 0u);
  EXPECT_TRUE(references::drop_own(thread, other));
  EXPECT_EQ(sum_of(reg), 0);
  EXPECT_EQ(sum_of(other), 0);
}

TEST(ReferencesStress, references_dropped_on_other_threads_and_by_ending_ones_add_up) {
  std::vector<pinrail_registration_t*> regs;
  for (int i = 0; i < 3000; ++i) regs.push_back(make_indexed());  // more than a thread has reference slots
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
