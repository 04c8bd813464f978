// SPDX-License-Identifier: BSD-3-Clause
// What is held outside of the index: an event marks what it overlaps, and nothing else. Beside a model that looks at
// everything, at random.
#include "components/mpool/grdma/grdma_outside.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace pinrail::grdma {
namespace {

constexpr uintptr_t kPage = 4096;

pinrail_registration_t* make(uintptr_t base, size_t length) {
  pinrail_registration_t* reg = nullptr;
  EXPECT_TRUE(arena::allocate(0, sizeof(Area), &reg).ok());
  set_range(reg, Span::of(base, length), nullptr, 0);
  return reg;
}

TEST(Outside, what_an_event_overlaps_is_marked) {
  Outside outside(arena::chunks(), {});
  EXPECT_TRUE(outside.is_empty());
  pinrail_registration_t* const first = make(kPage, kPage);
  pinrail_registration_t* const second = make(2 * kPage, 3 * kPage);
  outside.link(first);
  outside.link(second);
  EXPECT_FALSE(outside.is_empty());
  outside.invalidate(Span::of(4 * kPage, kPage));
  EXPECT_FALSE(is_invalidated(first));
  EXPECT_TRUE(is_invalidated(second));
}

TEST(Outside, neighbours_of_the_range_are_not_marked) {
  Outside outside(arena::chunks(), {});
  pinrail_registration_t* const before = make(kPage, kPage);
  pinrail_registration_t* const behind = make(3 * kPage, kPage);
  outside.link(before);
  outside.link(behind);
  outside.invalidate(Span::of(2 * kPage, kPage));
  EXPECT_FALSE(is_invalidated(before));
  EXPECT_FALSE(is_invalidated(behind));
}

TEST(Outside, what_is_unlinked_is_not_marked_and_may_be_unlinked_again) {
  Outside outside(arena::chunks(), {});
  pinrail_registration_t* const reg = make(kPage, kPage);
  outside.unlink(reg);
  outside.link(reg);
  outside.unlink(reg);
  outside.unlink(reg);
  EXPECT_TRUE(outside.is_empty());
  outside.invalidate({0, UINTPTR_MAX});
  EXPECT_FALSE(is_invalidated(reg));
}

TEST(Outside, equal_ranges_are_all_marked) {
  Outside outside(arena::chunks(), {});
  std::vector<pinrail_registration_t*> regs;
  for (int i = 0; i < 50; ++i) {
    regs.push_back(make(kPage, kPage));
    outside.link(regs.back());
  }
  for (size_t i = 0; i < regs.size(); i += 2) outside.unlink(regs[i]);
  outside.invalidate(Span::of(kPage, 1));
  for (size_t i = 0; i < regs.size(); ++i) EXPECT_EQ(is_invalidated(regs[i]), i % 2 != 0) << i;
}

class RandomOutside : public ::testing::TestWithParam<unsigned> {};

TEST_P(RandomOutside, agrees_with_the_model) {
  std::mt19937 random(GetParam());
  const bool is_crowded = GetParam() % 2 != 0;
  const uintptr_t pages = is_crowded ? 64 : 1 << 16;
  Outside outside(arena::chunks(), {});
  std::vector<pinrail_registration_t*> in, out;
  const auto span = [&] {
    const uintptr_t longest = random() % 16 == 0 ? pages / 2 : 6;
    return Span::of((1 + random() % pages) * kPage, (1 + random() % longest) * kPage);
  };
  for (int step = 0; step < 5000; ++step) {
    const unsigned what = random() % (step % 2000 < 1500 ? 8 : 4);
    if (what >= 4) {
      const Span at = span();
      in.push_back(make(at.base, at.length()));
      outside.link(in.back());
    } else if (what >= 2 && !in.empty()) {
      std::swap(in[random() % in.size()], in.back());
      outside.unlink(in.back());
      out.push_back(in.back());
      in.pop_back();
    } else {
      const Span event = span();
      std::vector<bool> marked;
      for (const auto* reg : in) marked.push_back(is_invalidated(reg) || span_of(reg).overlaps(event));
      outside.invalidate(event);
      for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(is_invalidated(in[i]), marked[i]) << step;
    }
    ASSERT_EQ(outside.is_empty(), in.empty());
  }
  std::vector<bool> were;
  for (const auto* reg : out) were.push_back(is_invalidated(reg));
  outside.invalidate({0, UINTPTR_MAX});
  for (const auto* reg : in) EXPECT_TRUE(is_invalidated(reg));
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(is_invalidated(out[i]), were[i]);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomOutside, ::testing::Range(1u, 9u));

}  // namespace
}  // namespace pinrail::grdma
