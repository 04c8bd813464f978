// SPDX-License-Identifier: BSD-3-Clause
// The explorer by itself: of small programs whose outcomes are known it finds all and no others.
#include <gtest/gtest.h>

#include <atomic>

#include "base/sync/lock.h"
#include "test/model/explorer.h"

namespace pinrail::model {
namespace {

using Body = std::function<void()>;
using Atomic = std::atomic<uint64_t>;

void put(Atomic& atomic) { atomic.store(1, std::memory_order_release); }
void put_relaxed(Atomic& atomic) { atomic.store(1, std::memory_order_relaxed); }
void put_sequential(Atomic& atomic) { atomic.store(1); }
uint64_t get(const Atomic& atomic) { return atomic.load(std::memory_order_acquire); }
uint64_t get_sequential(const Atomic& atomic) { return atomic.load(); }
void nothing(Atomic&) {}

class Litmus : public ::testing::Test {
 protected:
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

  // Each of two threads stores to a word of its own and loads the other's. Something may come in between, with a word
  // of each thread, or with one of both.
  using Put = void (*)(Atomic&);
  using Get = uint64_t (*)(const Atomic&);
  unsigned crosswise(Put store, Get load, const std::function<void(Atomic&)>& between = nothing, bool shared = true) {
    return outcomes({[=] {
                       store(x_);
                       between(z_);
                       r_[0] = load(y_);
                     },
                     [=] {
                       store(y_);
                       between(shared ? z_ : w_);
                       r_[1] = load(x_);
                     }});
  }
  // One thread stores to x and y, the other one looks at y and then at x.
  unsigned message(Put first, Put second) {
    return outcomes({[=] {
                       first(x_);
                       second(y_);
                     },
                     [&] { look(); }});
  }
  void look() {
    r_[0] = get(y_);
    r_[1] = get(x_);
  }

  Atomic x_{0}, y_{0}, z_{0}, w_{0};
  uint64_t r_[2] = {};
};

TEST_F(Litmus, stores_are_late) { EXPECT_EQ(crosswise(put, get), k00 | k01 | k10 | k11); }

TEST_F(Litmus, seq_cst_on_both_sides) { EXPECT_EQ(crosswise(put_sequential, get_sequential), k01 | k10 | k11); }

// x86 turns these stores into full fences.
TEST_F(Litmus, a_seq_cst_store_does_not_hold_an_acquire_load) {
  EXPECT_EQ(crosswise(put_sequential, get), k00 | k01 | k10 | k11);
}

// Of one word; two threads that modify the same one after the other are ordered by that.
TEST_F(Litmus, an_exchange_is_no_fence) {
  const auto add = [](Atomic& word) { word.fetch_add(1, std::memory_order_acq_rel); };
  EXPECT_EQ(crosswise(put, get, add, false) & k00, k00);
}

TEST_F(Litmus, a_seq_cst_exchange_and_a_seq_cst_load_are_one) {
  EXPECT_EQ(crosswise(put, get_sequential, [](Atomic& word) { word.fetch_add(1); }), k01 | k10 | k11);
}

TEST_F(Litmus, a_comparison_that_fails_is_no_fence) {
  z_ = 1;
  const auto compare = [](Atomic& word) {
    uint64_t expected = 0;
    word.compare_exchange_strong(expected, 0);
  };
  EXPECT_EQ(crosswise(put, get_sequential, compare), k00 | k01 | k10 | k11);
}

TEST_F(Litmus, a_release_keeps_what_was_stored_before) {
  EXPECT_EQ(message(put, put), k00 | k01 | k11);
  EXPECT_EQ(message(put_relaxed, put), k00 | k01 | k11);
}

TEST_F(Litmus, relaxed_stores_keep_no_order) { EXPECT_EQ(message(put_relaxed, put_relaxed), k00 | k01 | k10 | k11); }

TEST_F(Litmus, stores_to_one_word_keep_theirs) {
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
  const Body own = [&] {
    put(x_);
    require(get(x_) == 1, "a thread did not see its own store");
  };
  expect_right({{own, own}, {}});
}

// Causes come before their effects on a third thread.
TEST_F(Litmus, what_one_has_seen_all_others_see) {
  EXPECT_EQ(outcomes({[&] { put(x_); },
                      [&] {
                        if (get(x_) == 1) put(y_);
                      },
                      [&] { look(); }}),
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
    x_.store(x_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  };
  expect_right({{add, add, add}, [&] { require(x_ == 3, "an add was lost"); }});
}

TEST_F(Litmus, a_deadlock_is_found) {
  std::mutex first, second;
  const auto both = [](std::mutex& outer, std::mutex& inner) {
    return [&outer, &inner] {
      std::lock_guard<std::mutex> a(outer);
      std::lock_guard<std::mutex> b(inner);
    };
  };
  EXPECT_EQ(explore({{both(first, second), both(second, first)}, {}}).violation, "a deadlock");
}

}  // namespace
}  // namespace pinrail::model
