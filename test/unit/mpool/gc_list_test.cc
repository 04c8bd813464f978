// SPDX-License-Identifier: BSD-3-Clause
// What events ended while it was idle: it is taken once, by one thread, and the list says when too much waits.
#include "framework/mpool/gc_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "base/sync/lock.h"

namespace pinrail::mpool {
namespace {

constexpr size_t kBytes = 4096;
using Regs = std::vector<pinrail_registration_t*>;

pinrail_registration_t* make() {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(0x10000, kBytes), nullptr, 0);
  return reg;
}

GcList::Growth push_one(GcList* list, pinrail_registration_t* reg) { return list->push(reg, reg, reg->length); }

Mutex cache_mutex{LockRank::cache};

Regs take(GcList* list, size_t most) {
  Guard guard(cache_mutex);
  Regs regs(most);
  regs.resize(list->take_locked(regs.data(), most));
  return regs;
}

TEST(GcList, what_was_pushed_is_taken_once) {
  GcList list(1 << 20);
  EXPECT_TRUE(list.is_empty());
  EXPECT_EQ(take(&list, 8), Regs{});
  const Regs regs = {make(), make(), make()};
  for (pinrail_registration_t* reg : regs) push_one(&list, reg);
  EXPECT_FALSE(list.is_empty());
  EXPECT_EQ(list.bytes(), 3 * kBytes);
  Regs taken = take(&list, 8);
  EXPECT_TRUE(std::is_permutation(taken.begin(), taken.end(), regs.begin(), regs.end()));
  EXPECT_TRUE(list.is_empty());
  EXPECT_EQ(list.bytes(), 0u);
  EXPECT_EQ(take(&list, 8), Regs{});
}

TEST(GcList, a_chain_is_pushed_as_a_whole) {
  GcList list(1 << 20);
  pinrail_registration_t* const first = make();
  pinrail_registration_t* const last = make();
  area_of(first).gc_next = last;
  push_one(&list, make());
  list.push(first, last, 2 * kBytes);
  EXPECT_EQ(take(&list, 8).size(), 3u);
}

TEST(GcList, what_a_caller_leaves_is_there_for_the_next_one) {
  GcList list(1 << 20);
  Regs regs;
  for (int i = 0; i < 10; ++i) {
    regs.push_back(make());
    push_one(&list, regs.back());
  }
  Regs taken = take(&list, 4);
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_FALSE(list.is_empty());
  EXPECT_EQ(list.bytes(), 6 * kBytes);
  regs.push_back(make());
  push_one(&list, regs.back());
  while (!list.is_empty()) {
    const Regs more = take(&list, 3);
    taken.insert(taken.end(), more.begin(), more.end());
  }
  EXPECT_TRUE(std::is_permutation(taken.begin(), taken.end(), regs.begin(), regs.end()));
}

TEST(GcList, a_push_says_whether_it_is_the_first_and_whether_too_much_waits) {
  GcList list(2 * kBytes);
  EXPECT_TRUE(push_one(&list, make()).was_empty);
  const GcList::Growth second = push_one(&list, make());
  EXPECT_FALSE(second.was_empty);
  EXPECT_FALSE(second.exceeds_limit);
  EXPECT_FALSE(list.is_due());
  EXPECT_TRUE(push_one(&list, make()).exceeds_limit);
  EXPECT_TRUE(list.is_due());
  EXPECT_FALSE(push_one(&list, make()).exceeds_limit) << "it was said";
}

TEST(GcList, is_due_until_no_more_waits_than_may) {
  GcList list(2 * kBytes);
  for (int i = 0; i < 4; ++i) push_one(&list, make());
  take(&list, 1);
  EXPECT_TRUE(list.is_due());
  take(&list, 1);
  EXPECT_FALSE(list.is_due());
  EXPECT_TRUE(push_one(&list, make()).exceeds_limit) << "once more";
  EXPECT_TRUE(list.is_due());
}

// gc_list/D1
TEST(GcList, pushes_and_takes_of_many_threads_lose_nothing_and_give_nothing_twice) {
  constexpr size_t kThreads = 3, kOfEach = 3000;
  GcList list(16 * kBytes);
  std::vector<Regs> regs(kThreads);
  for (Regs& of_thread : regs) {
    for (size_t i = 0; i < kOfEach; ++i) of_thread.push_back(make());
  }
  std::mutex all_mutex;
  std::atomic<size_t> taken{0};
  std::vector<std::thread> threads;
  for (Regs& of_thread : regs) {
    threads.emplace_back([&] {
      for (pinrail_registration_t* reg : of_thread) push_one(&list, reg);
    });
  }
  Regs all;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (taken != kThreads * kOfEach) {
        const std::lock_guard<std::mutex> guard(all_mutex);
        const Regs some = take(&list, 7);
        taken += some.size();
        all.insert(all.end(), some.begin(), some.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::sort(all.begin(), all.end());
  EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
  EXPECT_EQ(all.size(), kThreads * kOfEach);
  EXPECT_TRUE(list.is_empty());
  EXPECT_FALSE(list.is_due());
  EXPECT_EQ(list.bytes(), 0u);
}

}  // namespace
}  // namespace pinrail::mpool
