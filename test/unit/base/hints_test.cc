// SPDX-License-Identifier: BSD-3-Clause
// hints_test.cc - hints lead to indexed registrations only, may be lost, and are overwritten where they lead nowhere.
#include "base/hit/hints.h"

#include <gtest/gtest.h>

#include <vector>

namespace pinrail {
namespace {

constexpr uint64_t hash_of(uint64_t i) { return (i + 1) * 0x9E3779B97F4A7C15u; }

class HintsTest : public testing::Test {
 protected:
  ~HintsTest() override { hints_.free_tables(); }

  // An idle, indexed registration.
  pinrail_registration_t* make() {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, 0, &reg).ok());
    state::publish(reg, state::kIndexed);
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return reg;
  }
  static void end(pinrail_registration_t* reg) {
    ASSERT_EQ(kill(reg), Killed::owned);
    arena::free(reg);
  }
  void remember(const pinrail_registration_t* reg, uint64_t hash, bool others_have_their_hash = true) {
    hints_.remember(arena::chunks(), reg, hash,
                    [&](const pinrail_registration_t*, uint64_t) { return others_have_their_hash; });
  }
  pinrail_registration_t* find(uint64_t hash) const {
    pinrail_registration_t* found = nullptr;
    hints_.find(arena::chunks(), hash, [&](pinrail_registration_t* reg, uint64_t) {
      found = reg;
      return true;
    });
    return found;
  }

  Hints::Line lines_[1] = {};
  Hints hints_{lines_, 1};
};

TEST_F(HintsTest, what_was_remembered_is_found_by_its_hash_alone) {
  pinrail_registration_t* const reg = make();
  EXPECT_EQ(find(hash_of(1)), nullptr);
  remember(reg, hash_of(1));
  EXPECT_EQ(find(hash_of(1)), reg);
  EXPECT_EQ(find(hash_of(2)), nullptr);
}

TEST_F(HintsTest, what_is_not_indexed_any_more_is_not_passed_on) {
  pinrail_registration_t* const reg = make();
  remember(reg, hash_of(1));
  end(reg);
  EXPECT_EQ(find(hash_of(1)), nullptr);
}

TEST_F(HintsTest, the_word_that_is_passed_on_takes_no_reference_of_a_later_generation) {
  pinrail_registration_t* const reg = make();
  remember(reg, hash_of(1));
  hints_.find(arena::chunks(), hash_of(1), [&](pinrail_registration_t* found, uint64_t word) {
    EXPECT_TRUE(take(found, word));
    EXPECT_EQ(drop({found, state::generation(word)}), Drop::done);
    end(found);
    pinrail_registration_t* const next = make();
    EXPECT_EQ(next, found) << "the memory serves the next one";
    EXPECT_FALSE(take(found, word));
    return true;
  });
}

TEST_F(HintsTest, entries_that_lead_nowhere_are_overwritten_first) {
  std::vector<pinrail_registration_t*> regs;
  for (uint64_t i = 0; i < Hints::kEntries; ++i) {
    regs.push_back(make());
    remember(regs[i], hash_of(i));
  }
  EXPECT_EQ(kill(regs[3]), Killed::owned);
  pinrail_registration_t* const next = make();
  remember(next, hash_of(100));
  EXPECT_EQ(find(hash_of(100)), next);
  for (uint64_t i = 0; i < Hints::kEntries; ++i) EXPECT_EQ(find(hash_of(i)), i == 3 ? nullptr : regs[i]);
}

TEST_F(HintsTest, entries_whose_registrations_have_another_hash_by_now_are_overwritten) {
  for (uint64_t i = 0; i < 4 * Hints::kEntries; ++i) remember(make(), hash_of(i), false);
  size_t found = 0;
  for (uint64_t i = 0; i < 4 * Hints::kEntries; ++i) found += find(hash_of(i)) != nullptr ? 1 : 0;
  EXPECT_EQ(found, Hints::kEntries) << "nothing that counts was lost, so the table has not grown";
}

TEST_F(HintsTest, a_table_that_loses_what_is_indexed_grows) {
  std::vector<pinrail_registration_t*> regs;
  for (uint64_t i = 0; i < 1000; ++i) regs.push_back(make());
  for (int round = 0; round < 8; ++round) {
    for (uint64_t i = 0; i < regs.size(); ++i) {
      if (find(hash_of(i)) != regs[i]) remember(regs[i], hash_of(i));
    }
  }
  size_t found = 0;
  for (uint64_t i = 0; i < regs.size(); ++i) found += find(hash_of(i)) == regs[i] ? 1 : 0;
  EXPECT_GT(found, regs.size() * 9 / 10);
}

}  // namespace
}  // namespace pinrail
