// SPDX-License-Identifier: BSD-3-Clause
// The explorer by itself: of small programs whose outcomes on x86 are known, it finds all and no others.
#include <gtest/gtest.h>
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "base/sync/lock.h"
#include "test/model/check.h"

namespace pinrail::model {
namespace {

using Body = std::function<void()>;

class Litmus : public ::testing::Test {
 protected:
  using Atomic = std::atomic<uint64_t>;
  static void put(Atomic& atomic) { atomic.store(1, std::memory_order_release); }
  static uint64_t get(const Atomic& atomic) { return atomic.load(std::memory_order_acquire); }
  static void membarrier() { syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0); }

  // Which of the four values of (r_[0], r_[1]) there are: bit 2 * r_[0] + r_[1].
  unsigned outcomes(const std::vector<Body>& threads) {
    unsigned found = 0;
    for (unsigned outcome = 0; outcome < 4; ++outcome) {
      const Outcome explored = explore({threads, [&] { require(2 * r_[0] + r_[1] != outcome, "found"); }});
      EXPECT_TRUE(explored.complete || explored.violation == "found") << explored.violation;
      if (explored.violation == "found") found |= 1u << outcome;
    }
    return found;
  }
  static constexpr unsigned k00 = 1, k01 = 2, k10 = 4, k11 = 8;

  Atomic x_{0}, y_{0}, z_{0};
  uint64_t r_[4] = {};
};

TEST_F(Litmus, stores_are_late) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        r_[0] = get(y_);
                      },
                      [&] {
                        put(y_);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

TEST_F(Litmus, a_full_fence_on_both_sides) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        z_.fetch_add(1);
                        r_[0] = get(y_);
                      },
                      [&] {
                        put(y_);
                        z_.fetch_add(1);
                        r_[1] = get(x_);
                      }}),
            k01 | k10 | k11);
}

TEST_F(Litmus, a_full_fence_on_one_side_is_not_enough) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        r_[0] = get(y_);
                      },
                      [&] {
                        y_.store(1);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

TEST_F(Litmus, a_membarrier_on_one_side_is_enough) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        r_[0] = get(y_);
                      },
                      [&] {
                        put(y_);
                        membarrier();
                        r_[1] = get(x_);
                      }}),
            k01 | k10 | k11);
}

// The store of x may be made after the membarrier, and be late.
TEST_F(Litmus, a_membarrier_is_no_promise_of_later_stores) {
  EXPECT_EQ(outcomes({[&] {
                        r_[0] = get(y_);
                        put(x_);
                      },
                      [&] {
                        put(y_);
                        membarrier();
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

TEST_F(Litmus, stores_keep_their_order) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        put(y_);
                      },
                      [&] {
                        r_[0] = get(y_);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k11);
}

TEST_F(Litmus, loads_are_never_late) {
  EXPECT_EQ(outcomes({[&] {
                        r_[0] = get(x_);
                        put(y_);
                      },
                      [&] {
                        r_[1] = get(y_);
                        put(x_);
                      }}),
            k00 | k01 | k10);
}

TEST_F(Litmus, one_s_own_stores_are_seen_at_once) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        require(get(x_) == 1, "a thread did not see its own store");
                        r_[0] = get(y_);
                      },
                      [&] {
                        put(y_);
                        require(get(y_) == 1, "a thread did not see its own store");
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

// Causes come before their effects on a third thread.
TEST_F(Litmus, what_one_has_seen_all_others_see) {
  EXPECT_EQ(outcomes({[&] { put(x_); },
                      [&] {
                        if (get(x_) == 1) put(y_);
                      },
                      [&] {
                        r_[0] = get(y_);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k11);
}

TEST_F(Litmus, an_add_is_one_step) {
  const auto add = [&] { x_.fetch_add(1, std::memory_order_relaxed); };
  expect_right({{add, add, add}, [&] { require(x_ == 3, "an add was lost"); }});
}

TEST_F(Litmus, a_load_and_a_store_are_two) {
  const auto add = [&] { x_.store(get(x_) + 1, std::memory_order_release); };
  const Outcome outcome = explore({{add, add}, [&] { require(x_ == 2, "an add was lost"); }});
  EXPECT_EQ(outcome.violation, "an add was lost");
}

TEST_F(Litmus, a_lock_excludes) {
  Mutex mutex{LockRank::cache};
  const auto add = [&] {
    Guard guard(mutex);
    x_.store(get(x_) + 1, std::memory_order_release);
  };
  expect_right({{add, add, add}, [&] { require(x_ == 3, "an add was lost"); }});
}

TEST_F(Litmus, a_deadlock_is_found) {
  std::mutex first, second;
  const Outcome outcome = explore({{[&] {
                                      std::lock_guard<std::mutex> a(first);
                                      std::lock_guard<std::mutex> b(second);
                                    },
                                    [&] {
                                      std::lock_guard<std::mutex> b(second);
                                      std::lock_guard<std::mutex> a(first);
                                    }},
                                   {}});
  EXPECT_EQ(outcome.violation, "a deadlock");
}

}  // namespace
}  // namespace pinrail::model
