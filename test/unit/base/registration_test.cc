// SPDX-License-Identifier: BSD-3-Clause
// registration_test.cc - the state word of a registration: each way to change it, from each state in which it may be.
// And where registrations come from, and the hints that lead to them.
#include "base/registration/registration.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <future>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "base/hit/hints.h"
#include "base/hit/recent.h"
#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "test/support/cases.h"

namespace {

std::function<void()> before_mapping;  // called by the next mmap() of this program's own
}

extern "C" __attribute__((visibility("default"))) void* mmap(void* at, size_t length, int protection, int flags, int fd,
                                                             off_t offset) noexcept {
  if (before_mapping) std::exchange(before_mapping, nullptr)();
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, length, protection, flags, fd, offset));
}

namespace pinrail {
namespace {

using state::kDead;
using state::kIndexed;
using state::kLast;
using state::kNotify;
using state::kOrphan;
using state::kQuick;
using state::kTransient;

class StateWord : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(arena::allocate(0, 0, &reg_).ok()); }
  ~StateWord() override { arena::free(reg_); }  // it starts the next generation, whatever the word is

  // Published with these flags, and so many references.
  void publish(uint64_t flags, uint64_t references = 1) {
    const uint64_t generation = generation_of(reg_);
    state::publish(reg_, flags);
    uint64_t word = state::load(reg_);
    ASSERT_EQ(word, generation | flags | state::kOne) << "it has its maker's reference";
    ASSERT_TRUE(state::exchange(reg_, &word, generation | flags | references * state::kOne));
  }
  uint64_t flags() const { return state::load(reg_) & state::kFlags; }
  pinrail_handle_t stale_handle() const { return {reg_, state::next_generation(generation_of(reg_))}; }

  pinrail_registration_t* reg_ = nullptr;
};

enum class Do : uint8_t { take, take_quick, drop, drop_quick, retire, kill, seize, disown };

// The function's answer in a word.
const char* done_by(Do what, pinrail_registration_t* reg) {
  const pinrail_handle_t handle = {reg, generation_of(reg)};
  const auto yes_or_no = [](bool is) { return is ? "yes" : "no"; };
  const auto name_of = [](Killed killed) {
    return killed == Killed::no ? "no" : killed == Killed::owned ? "owned" : "held";
  };
  switch (what) {
    case Do::take: return yes_or_no(take(reg, state::load(reg)));
    case Do::take_quick: return yes_or_no(take_quick(reg, generation_of(reg)));
    case Do::drop_quick: return yes_or_no(drop_quick(handle));
    case Do::retire: return yes_or_no(retire(reg, state::load(reg)));
    case Do::kill: return name_of(kill(reg));
    case Do::seize: return yes_or_no(seize(reg));
    case Do::disown: return yes_or_no(disown(reg));
    case Do::drop: break;
  }
  const Drop result = drop(handle);
  return result == Drop::done ? "done" : result == Drop::idle ? "idle" : result == Drop::last ? "last" : "stale";
}

// registration/S1, registration/S2, R10.
TEST_F(StateWord, changes_as_this_table_says) {
  constexpr uint64_t kMost = state::kMaxReferences;
  const struct {
    Do what;
    uint64_t flags, references;
    const char* answer;
    uint64_t flags_after, references_after;
  } rows[] = {
      // A reference is taken of what is indexed and of nothing else, up to the most.
      {Do::take, 0, 1, "no", 0, 1},
      {Do::take, kDead, 1, "no", kDead, 1},
      {Do::take, kDead | kLast, 1, "no", kDead | kLast, 1},
      {Do::take, kDead | kOrphan, 1, "no", kDead | kOrphan, 1},
      {Do::take, kTransient, 1, "no", kTransient, 1},
      {Do::take, kQuick, 1, "no", kQuick, 1},
      {Do::take, kIndexed, 1, "yes", kIndexed, 2},
      {Do::take, kIndexed | kQuick, kMost - 1, "yes", kIndexed | kQuick, kMost},
      {Do::take, kIndexed | kQuick, kMost, "no", kIndexed | kQuick, kMost},
      {Do::take_quick, kIndexed | kQuick, kMost, "no", kIndexed | kQuick, kMost},
      {Do::take_quick, kIndexed, 1, "no", kIndexed, 1},
      {Do::take_quick, kQuick, 1, "no", kQuick, 1},
      {Do::take_quick, kQuick | kDead, 1, "no", kQuick | kDead, 1},
      {Do::take_quick, kIndexed | kQuick | kNotify, 1, "yes", kIndexed | kQuick | kNotify, 2},
      // A drop that is not the last one is only counted.
      {Do::drop, kIndexed, 2, "done", kIndexed, 1},
      {Do::drop, kDead, 2, "done", kDead, 1},
      {Do::drop, kIndexed | kTransient, 2, "done", kIndexed | kTransient, 1},
      {Do::drop, kIndexed | kNotify, 2, "done", kIndexed | kNotify, 1},
      {Do::drop, kDead | kOrphan, 2, "done", kDead | kOrphan, 1},
      // The last one leaves what is kept, tells a pool that has asked, and owns what is dead or transient.
      {Do::drop, kIndexed, 1, "done", kIndexed, 0},
      {Do::drop, kIndexed | kNotify, 1, "idle", kIndexed | kNotify, 0},
      {Do::drop, kDead, 1, "last", kDead | kLast, 0},
      {Do::drop, kIndexed | kTransient, 1, "last", kDead | kLast | kTransient, 0},
      {Do::drop, kIndexed | kTransient | kNotify, 1, "last", kDead | kLast | kTransient | kNotify, 0},
      {Do::drop, kDead | kNotify, 1, "last", kDead | kLast | kNotify, 0},
      {Do::drop, kDead | kOrphan, 1, "last", kDead | kLast | kOrphan, 0},
      {Do::drop, kIndexed, 0, "stale", kIndexed, 0},
      // A quick drop does what needs no pool.
      {Do::drop_quick, kIndexed | kQuick, 1, "yes", kIndexed | kQuick, 0},
      {Do::drop_quick, kIndexed | kQuick, 0, "no", kIndexed | kQuick, 0},
      {Do::drop_quick, kDead | kQuick, 2, "yes", kDead | kQuick, 1},
      {Do::drop_quick, kDead | kQuick, 1, "no", kDead | kQuick, 1},
      {Do::drop_quick, kIndexed | kTransient | kQuick, 1, "no", kIndexed | kTransient | kQuick, 1},
      {Do::drop_quick, kIndexed | kNotify | kQuick, 1, "no", kIndexed | kNotify | kQuick, 1},
      {Do::drop_quick, kIndexed, 2, "no", kIndexed, 2},
      // What is idle and indexed is retired.
      {Do::retire, kIndexed | kQuick | kNotify, 0, "yes", kDead | kLast | kQuick | kNotify, 0},
      {Do::retire, kIndexed, 1, "no", kIndexed, 1},
      {Do::retire, kDead, 0, "no", kDead, 0},
      // An event owns what is idle, and leaves what is held to its last drop.
      {Do::kill, kIndexed | kQuick, 0, "owned", kDead | kLast | kQuick, 0},
      {Do::kill, kDead | kLast, 0, "no", kDead | kLast, 0},
      {Do::kill, kIndexed, 2, "held", kDead, 2},
      {Do::kill, kDead, 2, "no", kDead, 2},
      {Do::kill, 0, 0, "no", 0, 0},
      // A destroyed pool owns what is idle and what is held, whose drops count down meanwhile.
      {Do::seize, kIndexed | kQuick, 2, "yes", kDead | kLast, 2},
      {Do::seize, kIndexed | kTransient, 2, "yes", kDead | kLast | kTransient, 2},
      {Do::seize, kDead, 2, "yes", kDead | kLast, 2},
      {Do::seize, kIndexed | kQuick, 0, "yes", kDead | kLast, 0},
      {Do::seize, kDead | kLast, 0, "no", kDead | kLast, 0},
      {Do::drop, kDead | kLast, 2, "done", kDead | kLast, 1},
      {Do::drop, kDead | kLast | kNotify, 1, "done", kDead | kLast | kNotify, 0},
      {Do::drop, kDead | kLast, 0, "stale", kDead | kLast, 0},
      // It makes orphans of what is held still.
      {Do::disown, kDead | kLast | kTransient, 2, "no", kDead | kOrphan | kTransient, 2},
      {Do::disown, kDead | kLast, 0, "yes", kDead | kLast, 0},
  };
  for (const auto& row : rows) {
    const auto number = &row - rows;
    publish(row.flags, row.references);
    EXPECT_STREQ(done_by(row.what, reg_), row.answer) << number;
    EXPECT_EQ(flags(), row.flags_after) << number;
    EXPECT_EQ(references_of(reg_), row.references_after) << number;
  }
}

TEST_F(StateWord, the_next_generation_has_no_flags_no_references_and_another_number) {
  publish(kIndexed | kQuick, 3);
  const uint64_t before = generation_of(reg_);
  state::renew(reg_);
  EXPECT_EQ(state::load(reg_), state::next_generation(before));
  EXPECT_NE(generation_of(reg_), before);
  EXPECT_EQ(state::next_generation(state::kGenerationMask), 0u) << "it wraps within its bits";
}

TEST_F(StateWord, a_reference_is_taken_with_an_old_word_of_the_same_generation_alone) {
  publish(kIndexed, 0);
  uint64_t early = state::load(reg_);
  publish(kIndexed | kNotify, 5);
  EXPECT_TRUE(take(reg_, early));
  EXPECT_EQ(state::load(reg_), generation_of(reg_) | kIndexed | kNotify | 6 * state::kOne);
  publish(kIndexed | kQuick);
  early = state::load(reg_);
  state::renew(reg_);
  publish(kIndexed | kQuick, 2);
  EXPECT_FALSE(take(reg_, early));
  EXPECT_FALSE(take_quick(reg_, state::generation(early)));
  EXPECT_EQ(drop(stale_handle()), Drop::stale);
  EXPECT_FALSE(drop_quick(stale_handle()));
  EXPECT_EQ(references_of(reg_), 2u);
}

TEST_F(StateWord, what_was_hit_in_between_is_not_retired) {
  publish(kIndexed, 0);
  const uint64_t early = state::load(reg_);
  ASSERT_TRUE(take(reg_, early));
  EXPECT_FALSE(retire(reg_, early));
  EXPECT_EQ(state::load(reg_), early + state::kOne);
}

TEST_F(StateWord, a_use_gives_so_many_chances_and_no_more) {
  EXPECT_FALSE(take_chance(reg_, 2));
  for (const uint32_t chances : {2, 3}) {
    mark_used(reg_);
    for (uint32_t i = 0; i < chances; ++i) EXPECT_TRUE(take_chance(reg_, chances)) << i;
    EXPECT_FALSE(take_chance(reg_, chances));
  }
}

// Which free registrations a thread keeps for itself, and which ones other threads get.

constexpr size_t kKept = 256;                        // kMostSpares
constexpr size_t kTail = 7 * arena::kTailAlignment;  // a size that no other test of this program uses

std::vector<pinrail_registration_t*> allocate(size_t count) {
  std::vector<pinrail_registration_t*> regs(count);
  for (pinrail_registration_t*& reg : regs) {
    EXPECT_TRUE(arena::allocate(kTail, 0, &reg).ok());
  }
  return regs;
}

void free_all(const std::vector<pinrail_registration_t*>& regs) {
  for (pinrail_registration_t* reg : regs) arena::free(reg);
}

std::set<pinrail_registration_t*> as_set(const std::vector<pinrail_registration_t*>& regs) {
  return {regs.begin(), regs.end()};
}

TEST(RegistrationArena, a_thread_keeps_some_free_ones_and_others_get_the_rest) {
  constexpr size_t kFreed = kKept + 50;
  std::promise<std::vector<pinrail_registration_t*>> freed;
  std::promise<void> end;
  std::thread keeper([&] {
    ASSERT_NE(thread::current(), nullptr);
    free_all(allocate(kFreed));  // once more, so that it keeps as many after it has used what it kept
    const std::vector<pinrail_registration_t*> regs = allocate(kFreed);
    free_all(regs);
    freed.set_value(regs);
    end.get_future().wait();
  });
  const std::vector<pinrail_registration_t*> regs = freed.get_future().get();
  const std::vector<pinrail_registration_t*> kept(regs.begin(), regs.begin() + kKept);
  const std::vector<pinrail_registration_t*> others(regs.begin() + kKept, regs.end());

  const std::vector<pinrail_registration_t*> taken = allocate(kFreed - kKept);
  EXPECT_EQ(as_set(taken), as_set(others));
  const std::vector<pinrail_registration_t*> fresh = allocate(kKept);
  for (pinrail_registration_t* reg : fresh) EXPECT_EQ(as_set(regs).count(reg), 0U) << "the keeper has it";

  end.set_value();
  keeper.join();
  const std::vector<pinrail_registration_t*> returned = allocate(kKept);
  EXPECT_EQ(as_set(returned), as_set(kept)) << "an ending thread gives them to the others";
  free_all(taken);
  free_all(fresh);
  free_all(returned);
}

TEST(RegistrationArena, what_a_thread_keeps_is_of_one_size) {
  std::thread([&] {
    ASSERT_NE(thread::current(), nullptr);
    const std::vector<pinrail_registration_t*> regs = allocate(2);
    pinrail_registration_t* larger = nullptr;
    ASSERT_TRUE(arena::allocate(kTail + arena::kTailAlignment, 0, &larger).ok());
    arena::free(regs[0]);
    arena::free(larger);
    arena::free(regs[1]);
    EXPECT_EQ(as_set(allocate(2)), as_set(regs));
    free_all(regs);
  }).join();
}

// What pinrail/component_rcache.h promises: of each of a chunk's registrations, whatever their tails.
TEST(RegistrationArena, an_area_has_all_its_bytes_and_they_are_no_other_ones) {
  for (const size_t bytes : {PINRAIL_AREA_SMALL, PINRAIL_AREA_LARGE}) {
    for (size_t lines : {0, 1, 2, 5, 30}) {
      SCOPED_TRACE(lines);
      std::vector<pinrail_registration_t*> regs(1100);  // more than a chunk has
      for (pinrail_registration_t*& reg : regs) {
        ASSERT_TRUE(arena::allocate(lines * arena::kTailAlignment, bytes, &reg).ok());
        std::memset(arena::area_of(reg), 0xa5, bytes);
      }
      for (const pinrail_registration_t* reg : regs) {
        ASSERT_EQ(state::load(reg) & state::kFlags, 0u);
        ASSERT_EQ(arena::numbered(arena::chunks(), arena::number_of(reg)), reg);
        const std::string area(static_cast<const char*>(arena::area_of(reg)), bytes);
        ASSERT_EQ(area, std::string(bytes, '\xa5'));
      }
      free_all(regs);
    }
  }
}

// registration_arena/A1 and registration_arena/A2.
TEST(RegistrationArena, memory_that_comes_back_is_of_a_later_generation_without_flags_and_zeroed) {
  pinrail_registration_t* const reg = allocate(1)[0];
  const uint64_t generation = generation_of(reg);
  set_range(reg, Span::of(0x10000, 0x1000), reinterpret_cast<pinrail_mpool_t*>(reg), 1);
  mark_used(reg);
  state::publish(reg, state::kIndexed | state::kQuick);
  EXPECT_EQ(kill(reg), Killed::held);
  EXPECT_EQ(drop({reg, generation}), Drop::last);
  arena::free(reg);
  EXPECT_EQ(drop({reg, generation}), Drop::stale);
  EXPECT_EQ(allocate(1)[0], reg);
  EXPECT_EQ(state::load(reg), state::next_generation(generation));
  EXPECT_EQ(reg->base, nullptr);
  EXPECT_EQ(reg->length, 0u);
  EXPECT_EQ(reg->pool, nullptr);
  EXPECT_EQ(reg->traits, 0u);
  EXPECT_FALSE(take_chance(reg, 1));
  free_all({reg});
}

// A process that starts a thread for each task has as many records as threads at a time.
TEST(ThreadRecords, what_a_thread_had_serves_the_next_one_after_its_end) {
  const auto record_of_new_thread = [] { return std::async(std::launch::async, thread::current).get(); };
  std::set<pinrail_thread_t*> records;
  for (int i = 0; i < 100; ++i) records.insert(record_of_new_thread());
  EXPECT_EQ(records.count(nullptr), 0U);
  EXPECT_EQ(records.size(), 1U);
}

// Its end is not seen, or there was no memory: what its requests would be stored in is all such threads'.
TEST(ThreadRecords, without_memory_of_its_own_a_thread_remembers_no_request) {
  pinrail_registration_t* reg = nullptr;
  ASSERT_TRUE(arena::allocate(0, 0, &reg).ok());
  constexpr uintptr_t kAddr = 0x10000;
  set_range(reg, Span::of(kAddr, 4096), nullptr, 0);
  pinrail_thread_t thread = thread::null_thread;
  thread.size = sizeof(thread);
  recent::remember(&thread, nullptr, kAddr, 1, {reg, generation_of(reg)});
  EXPECT_EQ(recent::entry_for(&thread, nullptr, kAddr)->reg, nullptr);
  arena::free(reg);
}

// Hints lead to indexed registrations only, may be lost, and are overwritten where they lead nowhere.

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

TEST_F(HintsTest, what_was_remembered_is_found_by_its_hash_alone_as_long_as_it_is_indexed) {
  pinrail_registration_t* const reg = make();
  remember(reg, hash_of(1));
  EXPECT_EQ(find(hash_of(1)), reg);
  EXPECT_EQ(find(hash_of(2)), nullptr);
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

class HintsGrow : public HintsTest {
 protected:
  void SetUp() override {
    for (uint64_t i = 0; i < 1000; ++i) regs_.push_back(make());
  }
  // Remembers them all, and returns whether most are found afterwards.
  bool grows() {
    for (int round = 0; round < 8; ++round) {
      for (uint64_t i = 0; i < regs_.size(); ++i) {
        if (find(hash_of(i)) != regs_[i]) remember(regs_[i], hash_of(i));
      }
    }
    size_t found = 0;
    for (uint64_t i = 0; i < regs_.size(); ++i) found += find(hash_of(i)) == regs_[i] ? 1 : 0;
    return found > regs_.size() * 9 / 10;
  }

 private:
  std::vector<pinrail_registration_t*> regs_;
};

TEST_F(HintsGrow, a_table_that_loses_what_is_indexed_grows) { EXPECT_TRUE(grows()); }

TEST_F(HintsGrow, a_table_grows_in_a_child_that_was_forked_while_it_grew) {
  int status = -1;
  before_mapping = [&] {
    status = test::exit_status_of([&] {
      hints_.fork_reinit();
      return grows() ? 0 : 1;
    });
  };
  EXPECT_TRUE(grows());
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace pinrail
