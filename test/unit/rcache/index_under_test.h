// SPDX-License-Identifier: BSD-3-Clause
// index_under_test.h - what the tests of the index share: registrations that no device knows, and what leaves the
// index.
#ifndef PINRAIL_TEST_UNIT_RCACHE_INDEX_UNDER_TEST_H
#define PINRAIL_TEST_UNIT_RCACHE_INDEX_UNDER_TEST_H

#include <gtest/gtest.h>

#include <cstdlib>
#include <vector>

#include "base/registration/registration_arena.h"
#include "base/registration/thread.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

constexpr uintptr_t kPage = 4096;
constexpr pinrail_thread_t
    thread_without_slots{};  // a thread without reference slots: references are counted in the state words

inline pinrail_registration_t* make(uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0,
                                    uint32_t flags = 0, pinrail_counting_t counting = PINRAIL_COUNTING_SHARED) {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, counting, &reg).ok());
  reg->base = reinterpret_cast<void*>(base);
  reg->length = length;
  reg->rights = rights;
  reg->traits = traits;
  reg->flags = flags;
  state::set(reg, state::kIndexed | (counting == PINRAIL_COUNTING_THREADS ? state::kPerThread : 0));
  return reg;
}

// Collects what leaves.
struct Left {
  std::vector<pinrail_registration_t*> regs;
  static void visit(void* arg, pinrail_registration_t* const* regs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      uint64_t before;
      kill(regs[i], &before);
      static_cast<Left*>(arg)->regs.push_back(regs[i]);
    }
  }
};

inline pinrail_announcement_t announcing(uintptr_t base, size_t length, uint32_t access) {
  pinrail_announcement_t announcement{};
  announcement.base = base;
  announcement.length = length;
  announcement.access = access;
  return announcement;
}

// Of an index that is not EXACT, which has one.
inline const pinrail_start_table_t& starts_of(const Index& index) {
  const pinrail_start_table_t* const table = index.start_table();
  if (table == nullptr) std::abort();
  return *table;
}

class IndexTest : public ::testing::Test {
 protected:
  Status put(Index& index, pinrail_registration_t* reg, const pinrail_thread_t* thread = nullptr) {
    EXPECT_TRUE(index.prepare().ok());
    return index.insert(thread, reg, Left::visit, &left_);
  }
  // The found registration, its reference dropped again; NULL if none.
  static pinrail_registration_t* look(const Index& index, uintptr_t base, size_t length, uint32_t rights,
                                      uint32_t traits = 0) {
    // A thread with reference slots takes what is counted per thread by its start; one without goes down the tree.
    pinrail_registration_t* reg = index.find(thread::current(), base, length, rights | traits);
    if (reg == nullptr) return nullptr;
    if ((state::load(reg) & state::kPerThread) != 0) {
      references::drop_counted(thread::current(), reg);
      return reg;
    }
    uint64_t word;
    EXPECT_NE(drop_shared({reg, generation_of(reg)}, &word), Drop::stale);
    return reg;
  }
  Left left_;
};

}  // namespace pinrail::vma

#endif
