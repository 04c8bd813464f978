// SPDX-License-Identifier: BSD-3-Clause
// pin_plan: how ranges become chunks, at the edges of groups, chunks and limits.
#include "framework/api/pin_plan.h"

#include <gtest/gtest.h>

namespace pinrail::api {
namespace {

constexpr uintptr_t kPage = 4096;

pinrail_range_t range(uintptr_t base, size_t length) {
  return {reinterpret_cast<void*>(base), length};  // NOLINT(performance-no-int-to-ptr)
}

bool has_around(const PinPlan& plan, uintptr_t base, size_t length, size_t chunk) {
  size_t found = SIZE_MAX;
  return plan.find_around(Span::of(base, length), &found) && found == chunk;
}

TEST(PinPlan, a_range_that_ends_with_its_group_joins_it_beyond_the_limit_as_well) {
  const pinrail_range_t ranges[] = {range(16 * kPage, 8 * kPage), range(23 * kPage, kPage)};
  const PinPlan plan(ranges, 2, 2 * kPage, kPage);
  EXPECT_EQ(plan.chunk_count(), 4u);
  EXPECT_EQ(plan.bytes(), 8 * kPage);
  EXPECT_EQ(plan.ranges()[0].group, plan.ranges()[1].group);
}

TEST(PinPlan, ranges_join_whose_pages_touch_up_to_the_limit_and_no_further) {
  const pinrail_range_t touching[] = {range(16 * kPage, kPage), range(17 * kPage, kPage)};
  EXPECT_EQ(PinPlan(touching, 2, 2 * kPage, kPage).chunk_count(), 1u) << "exactly as long as a chunk may be";
  EXPECT_EQ(PinPlan(touching, 2, kPage, kPage).chunk_count(), 2u);
  const pinrail_range_t apart[] = {range(16 * kPage, kPage), range(18 * kPage, kPage)};
  EXPECT_EQ(PinPlan(apart, 2, 16 * kPage, kPage).chunk_count(), 2u);
}

TEST(PinPlan, a_range_as_long_as_the_limit_is_one_chunk_wherever_it_begins) {
  const pinrail_range_t odd = range(17 * kPage, 4 * kPage);
  EXPECT_EQ(PinPlan(&odd, 1, 4 * kPage, kPage).chunk_count(), 1u);
  EXPECT_EQ(PinPlan(&odd, 1, 4 * kPage - 1, kPage).chunk_count(), 2u) << "the limit is rounded down to pages";
}

TEST(PinPlan, each_chunk_belongs_to_its_own_group) {
  const pinrail_range_t ranges[] = {range(16 * kPage, 4 * kPage), range(32 * kPage, kPage), range(64 * kPage, kPage)};
  const PinPlan plan(ranges, 3, 2 * kPage, kPage);
  ASSERT_EQ(plan.chunk_count(), 4u);
  const uintptr_t bases[] = {16, 18, 32, 64};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(plan.chunk(i).base, bases[i] * kPage) << i;
  EXPECT_EQ(plan.chunk(1).end, 20 * kPage);
  EXPECT_EQ(plan.chunk(3).end, 65 * kPage);
}

TEST(PinPlan, a_span_is_found_from_the_first_byte_of_a_chunk_to_its_last_and_not_across_two) {
  const pinrail_range_t ranges[] = {range(16 * kPage, 4 * kPage), range(32 * kPage, kPage)};
  const PinPlan plan(ranges, 2, 2 * kPage, kPage);
  EXPECT_TRUE(has_around(plan, 16 * kPage, 2 * kPage, 0));
  EXPECT_TRUE(has_around(plan, 18 * kPage, 2 * kPage, 1));
  EXPECT_TRUE(has_around(plan, 32 * kPage, kPage, 2));
  EXPECT_TRUE(has_around(plan, 33 * kPage - 1, 1, 2));
  size_t number = 0;
  EXPECT_FALSE(plan.find_around(Span::of(18 * kPage - 1, 2), &number)) << "across two chunks";
  EXPECT_FALSE(plan.find_around(Span::of(20 * kPage, 1), &number)) << "behind its group";
  EXPECT_FALSE(plan.find_around(Span::of(16 * kPage - 1, 1), &number)) << "before the first group";
}

TEST(PinPlan, the_chunks_of_a_span_are_those_that_it_overlaps_by_a_byte) {
  const pinrail_range_t ranges[] = {range(16 * kPage, 4 * kPage), range(32 * kPage, kPage)};
  const PinPlan plan(ranges, 2, 2 * kPage, kPage);
  const auto chunks = [&](uintptr_t base, uintptr_t end) {
    std::vector<size_t> found;
    plan.for_chunks({base, end}, [&](size_t number) { found.push_back(number); });
    return found;
  };
  EXPECT_EQ(chunks(17 * kPage, 18 * kPage), std::vector<size_t>({0}));
  EXPECT_EQ(chunks(17 * kPage, 18 * kPage + 1), std::vector<size_t>({0, 1}));
  EXPECT_EQ(chunks(20 * kPage, 32 * kPage), std::vector<size_t>());
  EXPECT_EQ(chunks(20 * kPage - 1, 32 * kPage + 1), std::vector<size_t>({1, 2}));
}

}  // namespace
}  // namespace pinrail::api
