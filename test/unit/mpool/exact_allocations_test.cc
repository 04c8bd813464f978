// SPDX-License-Identifier: BSD-3-Clause
// The table that hits of GPU memory read: what changes between the comparison and the second look at the version.
#include "framework/mpool/exact_allocations.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/core/registration_arena.h"
#include "base/core/thread.h"

namespace pinrail::exact {
namespace {

using allocations::Cell;
using allocations::Word;

// A number at whose comparison something happens.
struct Trap {
  uint64_t value = 0;
  const std::function<void()>* when_read = nullptr;
  operator uint64_t() const {  // NOLINT(google-explicit-constructor): read like any other
    if (when_read != nullptr) (*when_read)();
    return value;
  }
};

// As allocations::Asked; the id is read after the place, and not before.
struct Asked {
  uint32_t pid = 7;
  uint64_t start = 8, segment = 9;
  uint64_t base = 0x10000, length = 4096;
  Trap buffer_id;
  uint64_t slot_word = uint64_t{3} << 17;
  uint64_t place() const { return allocations::place_of(pid, start, segment, base); }
};

class ExactAllocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (thread_->cells == nullptr) GTEST_SKIP() << "no membarrier here";
    table_.reserve(1);
    asked_.buffer_id.value = 11;
    owner_.pid = asked_.pid;
    owner_.start = asked_.start;
    owner_.segment = asked_.segment;
    owner_.words = words_;
    reg_ = make(asked_);
  }
  void TearDown() override {
    for (pinrail_registration_t* reg : all_) arena::free(reg);
  }

  pinrail_registration_t* make(const Asked& asked) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, PINRAIL_COUNTING_THREADS, &reg).ok());
    state::set(reg, state::kPerThread | state::kIndexed);
    reg->length = asked.length;
    table_.insert(reg, &owner_, asked.place(), 11, asked.slot_word, kSlot);
    all_.push_back(reg);
    return reg;
  }
  bool take(const Asked& asked) {
    return allocations::take<Word::asked, Cell::first>(thread_, table_.table(), asked, &handle_);
  }
  // When the ids are compared.
  bool take_while(const std::function<void()>& what) {
    Asked asked = asked_;
    asked.buffer_id.when_read = &what;
    return take(asked);
  }
  bool is_held() const { return references::has_count(thread_, reg_); }

  static constexpr uint32_t kSlot = 300;
  pinrail_thread_t* const thread_ = thread::current();
  uint64_t hits_[16 * 64] = {};
  uint64_t words_[kSlot + 1] = {};
  Allocations table_{hits_, 63};
  pinrail_owner_t owner_{};
  Asked asked_;
  pinrail_registration_t* reg_ = nullptr;
  std::vector<pinrail_registration_t*> all_;
  pinrail_handle_t handle_{};
};

TEST_F(ExactAllocations, a_hit_is_held_and_counted) {
  words_[kSlot] = asked_.slot_word + 5;  // importers
  ASSERT_TRUE(take(asked_));
  EXPECT_EQ(handle_.reg, reg_);
  EXPECT_EQ(handle_.generation, generation_of(reg_));
  EXPECT_TRUE(is_held());
  const void* noted = nullptr;
  EXPECT_EQ(references::drop_noted(thread_, handle_, &noted), references::Noted::done);
  EXPECT_NE(allocations::entry_of(noted), nullptr);
  EXPECT_FALSE(is_held());
}

TEST_F(ExactAllocations, what_leaves_after_it_was_compared_is_not_taken) {
  words_[kSlot] = asked_.slot_word;
  const uint64_t undone = *thread_->undone;
  EXPECT_FALSE(take_while([&] { table_.remove(reg_, asked_.place()); }));
  EXPECT_FALSE(is_held());
  EXPECT_EQ(*thread_->undone, undone + 1) << "who summed it meanwhile asks again";
}

TEST_F(ExactAllocations, what_makes_room_for_another_after_it_was_compared_is_not_taken) {
  words_[kSlot] = asked_.slot_word;
  EXPECT_FALSE(take_while([&] {
    table_.remove(reg_, asked_.place());
    Asked other = asked_;
    other.length = 1;
    make(other);
  }));
  EXPECT_FALSE(is_held());
}

TEST_F(ExactAllocations, a_slot_that_dies_after_it_was_compared_is_seen) {
  words_[kSlot] = asked_.slot_word;
  EXPECT_FALSE(take_while([&] { words_[kSlot] |= uint64_t{1} << 16; }));
  EXPECT_FALSE(is_held());
}

TEST_F(ExactAllocations, all_are_found_when_it_has_grown_and_none_when_they_left) {
  constexpr size_t kMany = 20000;
  words_[kSlot] = asked_.slot_word;
  std::vector<Asked> asked(kMany, asked_);
  std::vector<pinrail_registration_t*> regs(kMany);
  for (size_t i = 0; i < kMany; ++i) {
    asked[i].base = 0x100000 + 4096 * i;
    table_.reserve(i + 1);
    regs[i] = make(asked[i]);
  }
  size_t found = 0;
  for (size_t i = 0; i < kMany; ++i) {
    if (!take(asked[i])) continue;
    EXPECT_EQ(handle_.reg, regs[i]);
    EXPECT_TRUE(references::drop_own(thread_, regs[i]));
    ++found;
  }
  EXPECT_GE(found, kMany - kMany / 1000) << "hardly any is left out";
  for (size_t i = 0; i < kMany; ++i) table_.remove(regs[i], asked[i].place());
  for (size_t i = 0; i < kMany; ++i) EXPECT_FALSE(take(asked[i]));
}

}  // namespace
}  // namespace pinrail::exact
