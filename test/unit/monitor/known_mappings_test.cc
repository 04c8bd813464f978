// SPDX-License-Identifier: BSD-3-Clause
// known_mappings_test.cc - verdicts are found until an event touches them, and the event wins.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "framework/monitor/known_mappings_hook.h"
#include "test/support/threads.h"

namespace pinrail::monitor {
namespace {

constexpr uintptr_t kPage = 4096;
Span pages(uintptr_t first, uintptr_t count) { return {first * kPage, (first + count) * kPage}; }

bool keep(KnownMappings* known, const Span& span, bool covered = true) {
  const uint64_t ticket = known->begin_lookup();
  const bool kept = known->keep(ticket, {span, covered});
  known->end_lookup();
  return kept;
}

bool knows(const KnownMappings& known, uintptr_t page) {
  Verdict verdict;
  return known.find(page * kPage, &verdict);
}

TEST(KnownMappings, in_a_full_table_an_event_in_the_midst_leaves_one_end_and_the_neighbours) {
  KnownMappings known;
  for (uintptr_t i = 0; i < KnownMappings::kRoom; ++i) ASSERT_TRUE(keep(&known, pages(8 * i, 4)));
  known.forget_hook(pages(81, 1));
  EXPECT_TRUE(knows(known, 80) && knows(known, 88) && knows(known, 8 * (KnownMappings::kRoom - 1)));
  EXPECT_FALSE(knows(known, 81) || knows(known, 82) || knows(known, 83));
  EXPECT_EQ(known.count(), KnownMappings::kRoom);
}

TEST(KnownMappings, an_event_between_the_look_and_its_keeping_wins) {
  KnownMappings known;
  const uint64_t ticket = known.begin_lookup();
  known.forget_hook(pages(13, 1));
  EXPECT_FALSE(known.keep(ticket, {pages(10, 4), true}));
  EXPECT_TRUE(known.keep(ticket, {pages(20, 4), true})) << "that one was not touched";
  for (size_t i = 0; i < KnownMappings::kEvents; ++i) known.forget_hook(pages(1000 + i, 1));
  EXPECT_FALSE(known.keep(ticket, {pages(10, 4), true})) << "the event is remembered no more";
  known.end_lookup();
  EXPECT_FALSE(knows(known, 10));
  EXPECT_TRUE(keep(&known, pages(10, 4))) << "the next look finds it";
}

TEST(KnownMappings, one_too_many_takes_a_neighbours_place_and_order_stays) {
  KnownMappings known;
  for (uintptr_t i = 0; i < KnownMappings::kRoom; ++i) ASSERT_TRUE(keep(&known, pages(4 * i, 2)));
  const uintptr_t last = KnownMappings::kRoom * 4;
  for (const uintptr_t page : {uintptr_t{2}, uintptr_t{402}, last}) {
    ASSERT_TRUE(keep(&known, pages(page, 2))) << page;
    EXPECT_TRUE(knows(known, page)) << page;
  }
  EXPECT_EQ(known.count(), KnownMappings::kRoom);
  uintptr_t found = 0;
  for (uintptr_t page = 0; page < last + 4; ++page) found += knows(known, page) ? 1 : 0;
  EXPECT_EQ(found, 2 * KnownMappings::kRoom);
}

// Against a map of pages, at random.
TEST(KnownMappings, does_what_a_list_of_pages_does) {
  constexpr uintptr_t kPages = 600;
  auto known = std::make_unique<KnownMappings>();
  std::vector<int> verdicts(kPages, 0);  // 0: unknown; 1: covered; 2: not covered
  std::mt19937 random(7);
  for (int step = 1; step < 20000; ++step) {
    const uintptr_t first = random() % (kPages - 20), count = 1 + random() % 20;
    const bool is_event = random() % 3 == 0;
    const bool covered = random() % 2 == 0;
    if (is_event) {
      known->forget_hook(pages(first, count));
    } else {
      ASSERT_TRUE(keep(known.get(), pages(first, count), covered));
    }
    for (uintptr_t page = first; page < first + count; ++page) verdicts[page] = is_event ? 0 : covered ? 1 : 2;
    const uintptr_t page = random() % kPages;
    Verdict verdict;
    ASSERT_EQ(known->find(page * kPage, &verdict), verdicts[page] != 0) << step;
    if (verdicts[page] == 0) continue;
    ASSERT_EQ(verdict.covered, verdicts[page] == 1) << step;
    ASSERT_TRUE(verdict.span.contains(pages(page, 1))) << step;
    for (uintptr_t each = verdict.span.base / kPage; each < verdict.span.end / kPage; ++each) {
      ASSERT_EQ(verdicts[each], verdicts[page]) << step;
    }
  }
}

// What is found must be what one writer kept: spans that begin at 64 k and are as long as k says.
TEST(KnownMappings, readers_without_the_lock_see_whole_verdicts) {
  KnownMappings known;
  std::atomic<bool> is_over{false};
  std::atomic<int> wrong{0}, found{0};
  test::Team readers(2, [&](int i) {
    std::mt19937 random(static_cast<unsigned>(i));
    while (!is_over) {
      Verdict verdict;
      const uintptr_t at = random() % (64 * 64) * kPage;
      if (!known.find(at, &verdict)) continue;
      const uintptr_t first = verdict.span.base / kPage;
      const bool right = first % 64 == 0 && verdict.span.length() / kPage == 1 + first / 64 % 60 &&
                         verdict.span.base <= at && at < verdict.span.end && verdict.covered == (first / 64 % 2 == 0);
      if (!right) ++wrong;
      ++found;
    }
  });
  std::mt19937 random(99);
  for (int step = 0; step < 50000 || found.load() < 100; ++step) {
    const uintptr_t number = random() % 64;
    const Span span = pages(64 * number, 1 + number % 60);
    if (random() % 2 == 0) {
      keep(&known, span, number % 2 == 0);
    } else {
      known.forget_hook(span);
    }
  }
  is_over = true;
  readers.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace pinrail::monitor
