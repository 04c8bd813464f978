// SPDX-License-Identifier: BSD-3-Clause
// perf_layout_test.cc - a trace's ranges keep their distances, and an event changes the right pages.
#include <gtest/gtest.h>

#include <random>

#include "contrib/tools/perf/replay_memory.h"

namespace pinrail::perf {
namespace {

constexpr uint64_t kPage = 4096, kGap = 1 << 20;

TraceRecord record(TraceOp op, uint64_t addr, uint64_t size) { return {addr, size, 0, 0, 0, 1, op}; }

Layout layout(const std::vector<TraceRecord>& records) {
  Trace trace;
  trace.records = records;
  return Layout::of(trace, kPage, kGap);
}

// Three ranges: two that share a page's neighbourhood, one far away.
std::vector<TraceRecord> three() {
  return {record(TraceOp::reg, 0x700000001100, 0x100), record(TraceOp::reg, 0x700000004ff0, 0x20),
          record(TraceOp::reg, 0x100000000, 3 * kPage)};
}

TEST(PerfLayout, near_ranges_share_a_cluster_and_far_ones_do_not) {
  const Layout found = layout(three());
  ASSERT_EQ(found.clusters().size(), 2u);
  EXPECT_EQ(found.clusters()[0].begin, 0x100000000u);
  EXPECT_EQ(found.clusters()[0].end, 0x100000000u + 3 * kPage);
  EXPECT_EQ(found.clusters()[1].begin, 0x700000001000u);
  EXPECT_EQ(found.clusters()[1].end, 0x700000006000u);
}

TEST(PerfLayout, the_gap_is_kept_to_the_byte) {
  const uint64_t base = 0x10000000;
  EXPECT_EQ(
      layout({record(TraceOp::reg, base, kPage), record(TraceOp::reg, base + kPage + kGap, kPage)}).clusters().size(),
      1u);
  EXPECT_EQ(layout({record(TraceOp::reg, base, kPage), record(TraceOp::reg, base + 2 * kPage + kGap, kPage)})
                .clusters()
                .size(),
            2u);
}

TEST(PerfLayout, only_pages_of_R_lines_are_touched_but_F_lines_have_a_place_too) {
  const Layout found = layout({record(TraceOp::reg, 0x10000000, 1), record(TraceOp::find, 0x10010000, 1),
                               record(TraceOp::invalidate, 0x20000000, kPage)});
  ASSERT_EQ(found.clusters().size(), 1u);
  EXPECT_EQ(found.clusters()[0].end, 0x10011000u);
  ASSERT_EQ(found.touched().size(), 1u);
  EXPECT_EQ(found.touched_pages(), 1u);
}

TEST(PerfLayout, a_moved_cluster_moves_all_its_ranges_by_the_same_distance) {
  Layout moved = layout(three());
  moved.clusters()[1].base = 0x555500001000;
  EXPECT_EQ(moved.translate(0x700000001100), 0x555500001100u);
  EXPECT_EQ(moved.translate(0x700000004ff0), 0x555500004ff0u);
  EXPECT_EQ(moved.translate(0x100000010), 0x100000010u);
}

TEST(PerfLayout, an_event_is_reported_to_the_byte_where_it_meets_clusters) {
  Layout moved = layout(three());
  moved.clusters()[1].base = 0x555500001000;
  const std::vector<Piece> inside = moved.in_clusters({0x700000001108, 0x700000001138});
  ASSERT_EQ(inside.size(), 1u);
  EXPECT_EQ(inside[0].base, 0x555500001108u);
  EXPECT_EQ(inside[0].length, 0x30u);
  EXPECT_EQ(moved.in_clusters({0, UINT64_MAX / 2}).size(), 2u);
  EXPECT_TRUE(moved.in_clusters({0x200000000, 0x300000000}).empty());
  EXPECT_TRUE(moved.in_clusters({0x700000001108, 0x700000001108}).empty());
}

TEST(PerfLayout, an_event_changes_every_touched_page_that_it_overlaps_by_a_byte) {
  const Layout found = layout(three());
  // 0x700000001fff..0x700000004000: the first touched page by its last byte; the next touched one begins at 4000.
  const std::vector<Piece> one = found.touched_pages_in({0x700000001fff, 0x700000004000});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].base, 0x700000001000u);
  EXPECT_EQ(one[0].length, kPage);
  const std::vector<Piece> two = found.touched_pages_in({0x700000001fff, 0x700000004001});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].base, 0x700000004000u);
  EXPECT_TRUE(found.touched_pages_in({0x700000002000, 0x700000004000}).empty());
  EXPECT_TRUE(found.touched_pages_in({0x700000001100, 0x700000001100}).empty());
}

TEST(PerfLayout, touched_pages_have_ordinals_of_their_own) {
  const Layout found = layout(three());
  EXPECT_EQ(found.touched_pages(), 6u);
  EXPECT_EQ(found.touched_pages_in({0x100001000, 0x100002000})[0].first_page, 1u);
  EXPECT_EQ(found.touched_pages_in({0x700000001000, 0x700000002000})[0].first_page, 3u);
  EXPECT_EQ(found.touched_pages_in({0x700000005000, 0x700000006000})[0].first_page, 5u);
}

TEST(PerfLayout, random_traces_keep_distances_within_clusters_and_clusters_apart) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; round++) {
    std::vector<TraceRecord> records;
    for (int i = 0; i < 50; i++)
      records.push_back(record(TraceOp::reg, 0x10000000 + random() % (256 << 20), 1 + random() % (64 << 10)));
    const Layout found = layout(records);
    uint64_t end = 0, pages = 0;
    for (const Cluster& cluster : found.clusters()) {
      EXPECT_TRUE(end == 0 || cluster.begin > end + kGap);
      end = cluster.end;
    }
    for (const Touched& touched : found.touched()) pages += (touched.end - touched.begin) / kPage;
    EXPECT_EQ(pages, found.touched_pages());
    for (const TraceRecord& one : records) {
      EXPECT_EQ(found.translate(one.addr), one.addr);
      const std::vector<Piece> whole = found.touched_pages_in({one.addr, one.addr + one.size});
      ASSERT_EQ(whole.size(), 1u) << "a registered range is touched without a hole";
      EXPECT_LE(whole[0].base, one.addr);
      EXPECT_GE(whole[0].base + whole[0].length, one.addr + one.size);
    }
  }
}

}  // namespace
}  // namespace pinrail::perf
