// SPDX-License-Identifier: BSD-3-Clause
// The explorer by itself: of small programs whose outcomes are known, on x86 and on the weak machine, it finds all and
// no others.
#include <gtest/gtest.h>

#include <atomic>

#include "base/sync/lock.h"
#include "test/model/explorer.h"

namespace pinrail::model {
namespace {

using Body = std::function<void()>;

class Litmus : public ::testing::Test {
 protected:
  using Atomic = std::atomic<uint64_t>;
  static void put(Atomic& atomic) { atomic.store(1, std::memory_order_release); }
  static uint64_t get(const Atomic& atomic) { return atomic.load(std::memory_order_acquire); }

  // Which of the four values of (r_[0], r_[1]) there are: bit 2 * r_[0] + r_[1].
  unsigned outcomes(const std::vector<Body>& threads) {
    unsigned found = 0;
    for (unsigned outcome = 0; outcome < 4; ++outcome) {
      const Scenario scenario{threads, [&] { require(2 * r_[0] + r_[1] != outcome, "found"); }};
      const Outcome explored = explore(scenario, bounds_);
      EXPECT_TRUE(explored.complete || explored.violation == "found") << explored.violation;
      if (explored.violation == "found") found |= 1u << outcome;
    }
    return found;
  }
  static constexpr unsigned k00 = 1, k01 = 2, k10 = 4, k11 = 8;

  Bounds bounds_;
  Atomic x_{0}, y_{0}, z_{0}, w_{0};
  uint64_t r_[4] = {};
};

class WeakLitmus : public Litmus {
 protected:
  WeakLitmus() { bounds_.machine = Machine::weak; }
  static void put_relaxed(Atomic& atomic) { atomic.store(1, std::memory_order_relaxed); }
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

// ---- The weak machine.

TEST_F(WeakLitmus, a_release_keeps_what_was_stored_before) {
  EXPECT_EQ(outcomes({[&] {
                        put_relaxed(x_);
                        put(y_);
                      },
                      [&] {
                        r_[0] = get(y_);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k11);
}

TEST_F(WeakLitmus, relaxed_stores_keep_no_order) {
  EXPECT_EQ(outcomes({[&] {
                        put_relaxed(x_);
                        put_relaxed(y_);
                      },
                      [&] {
                        r_[0] = get(y_);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

TEST_F(WeakLitmus, stores_to_one_word_keep_theirs) {
  EXPECT_EQ(outcomes({[&] {
                        put_relaxed(x_);
                        x_.store(2, std::memory_order_relaxed);
                      },
                      [&] {
                        r_[0] = get(x_) == 2 ? 1 : 0;
                        r_[1] = get(x_) == 1 ? 1 : 0;
                      }}) &
                k11,
            0u);
}

TEST_F(WeakLitmus, seq_cst_on_both_sides) {
  EXPECT_EQ(outcomes({[&] {
                        x_.store(1);
                        r_[0] = y_.load();
                      },
                      [&] {
                        y_.store(1);
                        r_[1] = x_.load();
                      }}),
            k01 | k10 | k11);
}

// x86 turns these stores into full fences.
TEST_F(WeakLitmus, a_seq_cst_store_does_not_hold_an_acquire_load) {
  EXPECT_EQ(outcomes({[&] {
                        x_.store(1);
                        r_[0] = get(y_);
                      },
                      [&] {
                        y_.store(1);
                        r_[1] = get(x_);
                      }}),
            k00 | k01 | k10 | k11);
}

// Of one word; two threads that modify the same one after the other are ordered by that.
TEST_F(WeakLitmus, an_exchange_is_no_fence) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        z_.fetch_add(1, std::memory_order_acq_rel);
                        r_[0] = get(y_);
                      },
                      [&] {
                        put(y_);
                        w_.fetch_add(1, std::memory_order_acq_rel);
                        r_[1] = get(x_);
                      }}) &
                k00,
            k00);
}

TEST_F(WeakLitmus, a_seq_cst_exchange_and_a_seq_cst_load_are_one) {
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        z_.fetch_add(1);
                        r_[0] = y_.load();
                      },
                      [&] {
                        put(y_);
                        z_.fetch_add(1);
                        r_[1] = x_.load();
                      }}),
            k01 | k10 | k11);
}

TEST_F(WeakLitmus, a_comparison_that_fails_is_no_fence) {
  z_ = 1;
  const auto compare = [&] {
    uint64_t expected = 0;
    z_.compare_exchange_strong(expected, 0);
  };
  EXPECT_EQ(outcomes({[&] {
                        put(x_);
                        compare();
                        r_[0] = y_.load();
                      },
                      [&] {
                        put(y_);
                        compare();
                        r_[1] = x_.load();
                      }}),
            k00 | k01 | k10 | k11);
}

TEST_F(WeakLitmus, an_add_is_one_step) {
  const auto add = [&] { x_.fetch_add(1, std::memory_order_relaxed); };
  const Outcome outcome = explore({{add, add, add}, [&] { require(x_ == 3, "an add was lost"); }}, bounds_);
  EXPECT_EQ(outcome.violation, "");
  EXPECT_TRUE(outcome.complete);
}

TEST_F(WeakLitmus, a_lock_excludes) {
  Mutex mutex{LockRank::cache};
  const auto add = [&] {
    Guard guard(mutex);
    x_.store(x_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  };
  const Outcome outcome = explore({{add, add, add}, [&] { require(x_ == 3, "an add was lost"); }}, bounds_);
  EXPECT_EQ(outcome.violation, "");
  EXPECT_TRUE(outcome.complete);
}

}  // namespace
}  // namespace pinrail::model
