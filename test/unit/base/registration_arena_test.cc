// SPDX-License-Identifier: BSD-3-Clause
// Which free registrations a thread keeps for itself, and which ones other threads get.
#include "base/registration/registration_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <set>
#include <thread>
#include <vector>

#include "base/registration/registration.h"
#include "base/registration/thread.h"

namespace pinrail {
namespace {

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

}  // namespace
}  // namespace pinrail
