// SPDX-License-Identifier: BSD-3-Clause
// index_under_test.h - what the tests of the index share: registrations that no device knows, and what leaves the
// index.
#ifndef PINRAIL_TEST_UNIT_RCACHE_INDEX_UNDER_TEST_H
#define PINRAIL_TEST_UNIT_RCACHE_INDEX_UNDER_TEST_H

#include <gtest/gtest.h>

#include <vector>

#include "base/registration/registration_arena.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

constexpr uintptr_t kPage = 4096;

// Not published yet: it has no flags.
inline pinrail_registration_t* make(uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0,
                                    uint32_t flags = 0) {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, 0, &reg).ok());
  set_range(reg, Span::of(base, length), nullptr, traits);
  reg->rights = rights;
  reg->flags = flags;
  return reg;
}

// Collects what leaves.
struct Left {
  std::vector<pinrail_registration_t*> regs;
  static void visit(void* arg, pinrail_registration_t* const* regs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      kill(regs[i]);
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

class IndexTest : public ::testing::Test {
 protected:
  // Registers it, so to say: announces it under a range of its own, so that no other call waits for it, and publishes.
  // Its maker's reference is dropped.
  Status put(Index& index, pinrail_registration_t* reg) {
    pinrail_announcement_t announcement = announcing(reinterpret_cast<uintptr_t>(reg), 1, 0);
    pinrail_registration_t* found = nullptr;
    EXPECT_TRUE(index.find_or_announce(&announcement, &found).is(PINRAIL_ERR_NOT_FOUND));
    const Status published = index.publish(&announcement, reg, Left::visit, &left_);
    if (!published.ok()) {
      EXPECT_TRUE(index.withdraw(&announcement).ok());
      return published;
    }
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return published;
  }
  pinrail_registration_t* add(Index& index, uintptr_t base, size_t length, uint32_t rights, uint32_t traits = 0,
                              uint32_t flags = 0) {
    pinrail_registration_t* const reg = make(base, length, rights, traits, flags);
    EXPECT_TRUE(put(index, reg).ok());
    return reg;
  }
  // The found registration, its reference dropped again; NULL if none.
  static pinrail_registration_t* look(Index& index, uintptr_t base, size_t length, uint32_t rights,
                                      uint32_t traits = 0) {
    pinrail_registration_t* reg = nullptr;
    if (!index.find(Query::of(base, length, rights | traits), &reg).ok()) return nullptr;
    EXPECT_EQ(drop({reg, generation_of(reg)}), Drop::done);
    return reg;
  }
  Left left_;
};

}  // namespace pinrail::vma

#endif
