// SPDX-License-Identifier: BSD-3-Clause
// The table that hits of GPU memory read: what changes between the comparison and the second look at the version.
#include "components/common/gpu_pool/allocation_index.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"

namespace pinrail::gpu_pool {
namespace {

using allocation_table::SlotChoice;

// A number at whose second reading something happens: that is when it is compared with the owner's.
struct Trap {
  uint64_t value = 0;
  const std::function<void()>* when_compared = nullptr;
  mutable int readings = 0;
  operator uint64_t() const {  // NOLINT(google-explicit-constructor): read like any other
    if (++readings == 2 && when_compared != nullptr) (*when_compared)();
    return value;
  }
};

// As allocation_table::AllocationKey.
struct AllocationKey {
  uint32_t pid = 7;
  Trap start{8};
  uint64_t segment = 9;
  uint64_t base = 0x10000, length = 4096, buffer_id = 11;
  uint32_t slot = 300;
  uint64_t slot_word = uint64_t{3} << 17;
};

EntryKey entry_key(const AllocationKey& asked, uint64_t owner) {
  const uint64_t key =
      asked.segment != 0 ? allocation_table::key_of_slot(asked.slot, asked.slot_word) : asked.buffer_id;
  return {key ^ allocation_table::owner_salt(asked.pid, asked.start.value, asked.segment), owner,
          allocation_table::checksum_of_range(asked.base, asked.length, asked.buffer_id)};
}

class ExactAllocations : public ::testing::Test {
 protected:
  void SetUp() override {
    if (thread_->ref_slots == nullptr) GTEST_SKIP() << "no membarrier here";
    table_.reserve(1);
    owner_ = {asked_.pid, asked_.start.value, asked_.segment, words_};
    table_.set_owner(owner_, &number_);
    words_[asked_.slot] = asked_.slot_word;
    reg_ = make(asked_);
  }
  void TearDown() override {
    for (pinrail_registration_t* reg : all_) arena::free(reg);
  }

  pinrail_registration_t* make(const AllocationKey& asked) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, PINRAIL_COUNTING_THREADS, &reg).ok());
    state::set(reg, state::kPerThread | state::kIndexed);
    table_.insert(reg, entry_key(asked, number_));
    all_.push_back(reg);
    return reg;
  }
  void remove(const AllocationKey& asked, pinrail_registration_t* reg) {
    table_.remove(reg, entry_key(asked, number_).key);
  }
  bool take(const AllocationKey& asked) {
    return allocation_table::take_block<SlotChoice::first>({thread_, nullptr}, table_.table(), asked, &handle_);
  }
  bool take_while(const std::function<void()>& what) {
    AllocationKey asked = asked_;
    asked.start.when_compared = &what;
    return take(asked);
  }
  bool is_held() const { return references::has_count(thread_, reg_); }

  pinrail_thread_t* const thread_ = thread::current();
  uint64_t hits_[16 * 64] = {};
  uint64_t words_[301] = {};
  Allocations table_{arena::chunks(), hits_, 63};
  pinrail_owner_t owner_{};
  uint64_t number_ = 0;
  AllocationKey asked_;
  pinrail_registration_t* reg_ = nullptr;
  std::vector<pinrail_registration_t*> all_;
  pinrail_handle_t handle_{};
};

TEST_F(ExactAllocations, a_hit_is_held_and_counted) {
  words_[asked_.slot] = asked_.slot_word + 5;  // importers
  ASSERT_TRUE(take(asked_));
  EXPECT_EQ(handle_.reg, reg_);
  EXPECT_EQ(handle_.generation, generation_of(reg_));
  EXPECT_TRUE(is_held());
  const void* noted = nullptr;
  EXPECT_EQ(note::release(thread_, handle_, &noted), note::Release::dropped);
  EXPECT_NE(allocation_table::entry_of(noted), nullptr);
  EXPECT_FALSE(is_held());
}

TEST_F(ExactAllocations, what_leaves_after_it_was_compared_is_not_taken) {
  words_[asked_.slot] = asked_.slot_word;
  const uint64_t rollbacks = *thread_->rollbacks;
  EXPECT_FALSE(take_while([&] { remove(asked_, reg_); }));
  EXPECT_FALSE(is_held());
  EXPECT_EQ(*thread_->rollbacks, rollbacks + 1) << "who summed it meanwhile asks again";
}

TEST_F(ExactAllocations, what_makes_room_for_another_after_it_was_compared_is_not_taken) {
  words_[asked_.slot] = asked_.slot_word;
  EXPECT_FALSE(take_while([&] {
    remove(asked_, reg_);
    AllocationKey other = asked_;
    other.length = 1;
    make(other);
  }));
  EXPECT_FALSE(is_held());
}

TEST_F(ExactAllocations, a_slot_that_dies_after_it_was_compared_is_seen) {
  words_[asked_.slot] = asked_.slot_word;
  EXPECT_FALSE(take_while([&] { words_[asked_.slot] |= uint64_t{1} << 16; }));
  EXPECT_FALSE(is_held());
}

// Each word of the name by itself, and each bit of it.
TEST_F(ExactAllocations, what_differs_in_a_bit_is_another) {
  const auto differs = [&](auto AllocationKey::*word) {
    for (unsigned bit = 0; bit < 8 * sizeof(asked_.*word); ++bit) {
      AllocationKey other = asked_;
      other.*word = asked_.*word ^ static_cast<std::decay_t<decltype(asked_.*word)>>(uint64_t{1} << bit);
      EXPECT_FALSE(take(other)) << "bit " << bit;
    }
  };
  differs(&AllocationKey::pid);
  differs(&AllocationKey::segment);
  differs(&AllocationKey::base);
  differs(&AllocationKey::length);
  differs(&AllocationKey::buffer_id);
  differs(&AllocationKey::slot);
  differs(&AllocationKey::slot_word);
  for (unsigned bit = 0; bit < 64; ++bit) {
    AllocationKey other = asked_;
    other.start.value ^= uint64_t{1} << bit;
    EXPECT_FALSE(take(other)) << "bit " << bit;
  }
  EXPECT_TRUE(take(asked_));
  EXPECT_TRUE(references::drop_own(thread_, reg_));
}

// Where there are no slots all hangs on the id, and owners count theirs alike.
TEST_F(ExactAllocations, without_slots_ids_tell_them_apart) {
  constexpr uint32_t kOwners = 200;
  std::vector<AllocationKey> asked(kOwners, asked_);
  std::vector<pinrail_registration_t*> regs;
  for (uint32_t i = 0; i < kOwners; ++i) {
    asked[i].pid = 1000 + i;
    asked[i].segment = 0;
    asked[i].start.value = 5;
    uint64_t number = 0;
    table_.reserve(i + 2);
    table_.set_owner({asked[i].pid, 5, 0, nullptr}, &number);
    EXPECT_NE(number, allocation_table::kNoOwner);
    number_ = number;
    regs.push_back(make(asked[i]));
  }
  for (uint32_t i = 0; i < kOwners; ++i) {
    ASSERT_TRUE(take(asked[i]));
    EXPECT_EQ(handle_.reg, regs[i]);
    EXPECT_TRUE(references::drop_own(thread_, regs[i]));
    AllocationKey next = asked[i];
    ++next.buffer_id;
    EXPECT_FALSE(take(next));
  }
}

// What is another owner's from now on was his whose number it has before.
TEST_F(ExactAllocations, an_owner_that_changes_is_found_by_its_new_key) {
  remove(asked_, reg_);
  table_.set_owner({asked_.pid + 1, asked_.start.value, asked_.segment, words_}, &number_);
  AllocationKey next = asked_;
  ++next.pid;
  pinrail_registration_t* const reg = make(next);
  EXPECT_FALSE(take(asked_));
  ASSERT_TRUE(take(next));
  EXPECT_EQ(handle_.reg, reg);
  EXPECT_TRUE(references::drop_own(thread_, reg));
}

TEST_F(ExactAllocations, while_it_is_shut_it_knows_nothing) {
  table_.shut_hook();
  EXPECT_TRUE(table_.is_shut());
  EXPECT_FALSE(take(asked_));
  table_.open();
  EXPECT_TRUE(take(asked_));
  EXPECT_TRUE(references::drop_own(thread_, reg_));
}

TEST_F(ExactAllocations, all_are_found_when_it_has_grown_and_none_when_they_left) {
  constexpr size_t kMany = 20000;
  std::vector<AllocationKey> asked(kMany, asked_);
  std::vector<pinrail_registration_t*> regs(kMany);
  for (size_t i = 0; i < kMany; ++i) {
    asked[i].segment = 0;
    asked[i].buffer_id = 100 + i;
    asked[i].base = 0x100000 + 4096 * i;
  }
  table_.set_owner({asked_.pid, asked_.start.value, 0, nullptr}, &number_);
  for (size_t i = 0; i < kMany; ++i) {
    table_.reserve(i + 2);
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
  for (size_t i = 0; i < kMany; ++i) remove(asked[i], regs[i]);
  for (size_t i = 0; i < kMany; ++i) EXPECT_FALSE(take(asked[i]));
}

}  // namespace
}  // namespace pinrail::gpu_pool
