// SPDX-License-Identifier: BSD-3-Clause
// The LRU list beside a list that is sorted anew at each look.
#include "base/lru/lru_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace pinrail {
namespace {

// Where it stands is kept in a field that the list knows nothing of.
struct PlaceOf {
  uint32_t& operator()(pinrail_registration_t* reg) const { return reg->lkey; }
  uint32_t operator()(const pinrail_registration_t* reg) const { return reg->lkey; }
};
using List = LruList<PlaceOf>;

class LruListTest : public ::testing::Test {
 protected:
  static constexpr size_t kMost = 1000;
  LruListTest() : regs_(kMost), epochs_(kMost, 0) { list_.reserve(kMost); }

  void insert(size_t i, uint64_t epoch) {
    list_.insert(&regs_[i], epoch);
    epochs_[i] = epoch;
  }
  void remove(size_t i) {
    list_.remove(&regs_[i]);
    epochs_[i] = 0;
  }
  uint64_t oldest() const {
    uint64_t epoch = UINT64_MAX;
    for (const uint64_t each : epochs_) epoch = each == 0 ? epoch : std::min(epoch, each);
    return epoch;
  }
  void expect_right() {
    const auto listed = kMost - static_cast<size_t>(std::count(epochs_.begin(), epochs_.end(), 0u));
    ASSERT_EQ(list_.size(), listed);
    ASSERT_EQ(list_.empty(), listed == 0);
    ASSERT_TRUE(list_.in_order());
    if (listed == 0) return;
    const auto top = static_cast<size_t>(list_.top().reg - regs_.data());
    ASSERT_EQ(list_.top().epoch, oldest());
    ASSERT_EQ(epochs_[top], oldest());
  }

  std::vector<pinrail_registration_t> regs_;
  std::vector<uint64_t> epochs_;  // 0: not listed
  List list_;
};

TEST_F(LruListTest, what_comes_with_rising_epochs_goes_in_that_order) {
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kMost; ++i) insert(i, 1 + i);
    for (size_t i = 0; i < kMost; ++i) {
      ASSERT_EQ(list_.top().reg, &regs_[i]);
      remove(i);
    }
    expect_right();
  }
}

TEST_F(LruListTest, what_was_used_later_than_the_list_knew_goes_later) {
  for (size_t i = 0; i < 200; ++i) insert(i, 1 + i);
  list_.catch_up(epochs_[0] = 50);   // older than the last one: not at the end
  list_.catch_up(epochs_[1] = 500);  // the newest
  expect_right();
  EXPECT_EQ(list_.top().reg, &regs_[2]);
}

TEST_F(LruListTest, at_any_time_the_top_is_the_oldest) {
  std::mt19937 random(1);
  uint64_t epoch = 1000;
  for (int step = 0; step < 30000; ++step) {
    const size_t i = random() % kMost;
    const bool is_listed = list_.holds(&regs_[i]);
    ASSERT_EQ(is_listed, epochs_[i] != 0);
    if (is_listed) {
      remove(i);
    } else if (random() % 8 == 0) {
      insert(i, epoch - random() % 1000);
    } else {
      insert(i, epoch += random() % 2);
    }
    if (!list_.empty() && random() % 4 == 0) {
      const auto top = static_cast<size_t>(list_.top().reg - regs_.data());
      epochs_[top] = std::max(list_.top().epoch, epoch - random() % 100);
      list_.catch_up(epochs_[top]);
    }
    if (step % 8 == 0) expect_right();
  }
}

}  // namespace
}  // namespace pinrail
