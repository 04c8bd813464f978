// SPDX-License-Identifier: BSD-3-Clause
// PageCounts against a plain array of counts.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

#include "base/core/page_counts.h"

namespace {

using pinrail::PageCounts;
using pinrail::Span;

constexpr size_t kPage = 4096;
Span pages(size_t first, size_t count) { return Span::of(first * kPage, count * kPage); }

std::vector<Span> removed(PageCounts* counts, Span span) {
  std::vector<Span> spans;
  EXPECT_TRUE(counts->remove(span, [&](Span piece) { spans.push_back(piece); }).ok());
  return spans;
}

std::vector<Span> unheld(const PageCounts& counts, Span span) {
  std::vector<Span> spans;
  counts.for_each_unheld(span, [&](Span piece) { spans.push_back(piece); });
  return spans;
}

void expect_spans(const std::vector<Span>& got, const std::vector<Span>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].base, want[i].base) << i;
    EXPECT_EQ(got[i].end, want[i].end) << i;
  }
}

TEST(PageCounts, a_span_that_is_not_held_is_refused_though_others_begin_or_end_there) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(0, 4)).ok());
  ASSERT_TRUE(counts.add(pages(0, 2)).ok());
  const auto visited = [](Span) { FAIL() << "it is held"; };
  EXPECT_TRUE(counts.remove(pages(2, 2), visited).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(counts.check_invariants());
  EXPECT_EQ(counts.held_bytes(), 4 * kPage);
  EXPECT_TRUE(removed(&counts, pages(0, 2)).empty());
  expect_spans(removed(&counts, pages(0, 4)), {pages(0, 4)});
}

TEST(PageCounts, the_only_holder_gives_everything_back) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(4, 8)).ok());
  expect_spans(removed(&counts, pages(4, 8)), {pages(4, 8)});
  EXPECT_EQ(counts.nodes(), 0u);
}

TEST(PageCounts, an_inner_span_leaves_its_outer_one_held) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(1, 3)).ok());
  ASSERT_TRUE(counts.add(pages(2, 1)).ok());
  expect_spans(removed(&counts, pages(2, 1)), {});
  expect_spans(removed(&counts, pages(1, 3)), {pages(1, 3)});
}

TEST(PageCounts, an_outer_span_gives_back_only_what_the_inner_one_does_not_hold) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(1, 3)).ok());
  ASSERT_TRUE(counts.add(pages(2, 1)).ok());
  expect_spans(removed(&counts, pages(1, 3)), {pages(1, 1), pages(3, 1)});
  EXPECT_EQ(counts.held_bytes(), kPage);
}

TEST(PageCounts, neighbours_do_not_hold_each_other) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(1, 2)).ok());
  ASSERT_TRUE(counts.add(pages(3, 2)).ok());
  expect_spans(removed(&counts, pages(1, 2)), {pages(1, 2)});
  expect_spans(removed(&counts, pages(3, 2)), {pages(3, 2)});
}

TEST(PageCounts, unheld_pieces_are_what_is_between_and_around) {
  PageCounts counts;
  ASSERT_TRUE(counts.add(pages(4, 2)).ok());
  ASSERT_TRUE(counts.add(pages(8, 2)).ok());
  expect_spans(unheld(counts, pages(2, 10)), {pages(2, 2), pages(6, 2), pages(10, 2)});
  expect_spans(unheld(counts, pages(4, 2)), {});
  expect_spans(unheld(counts, pages(20, 2)), {pages(20, 2)});
  expect_spans(unheld(counts, pages(5, 2)), {pages(6, 1)});
}

TEST(PageCounts, an_empty_span_is_refused) {
  PageCounts counts;
  EXPECT_TRUE(counts.add(pages(4, 0)).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counts.nodes(), 0u);
}

TEST(PageCounts, removing_pages_without_a_count_changes_nothing) {
  PageCounts counts;
  const auto never = [](Span) { FAIL(); };
  EXPECT_TRUE(counts.remove(pages(1, 1), never).is(PINRAIL_ERR_BAD_PARAM));
  ASSERT_TRUE(counts.add(pages(1, 1)).ok());
  ASSERT_TRUE(counts.add(pages(5, 1)).ok());
  EXPECT_TRUE(counts.remove(pages(1, 5), never).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_EQ(counts.held_bytes(), 2 * kPage);
  EXPECT_TRUE(counts.check_invariants());
}

// Counts of an array, changed in step with the map.
class Model {
 public:
  void change(Span span, int by) {
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) counts_[page] += by;
  }
  std::vector<Span> zero_pieces(Span span) const {
    std::vector<Span> spans;
    for (size_t page = span.base / kPage; page < span.end / kPage; ++page) {
      if (counts_[page] != 0) continue;
      if (!spans.empty() && spans.back().end == page * kPage) {
        spans.back().end += kPage;
      } else {
        spans.push_back(pages(page, 1));
      }
    }
    return spans;
  }
  size_t held_bytes() const {
    size_t bytes = 0;
    for (const int count : counts_) bytes += count != 0 ? kPage : 0;
    return bytes;
  }

 private:
  std::vector<int> counts_ = std::vector<int>(256);
};

TEST(PageCounts, agrees_with_an_array_of_counts_in_20000_random_steps) {
  std::mt19937 random(20240607);
  PageCounts counts;
  Model model;
  std::vector<Span> held;
  for (int step = 0; step < 20000; ++step) {
    if (held.size() < 2 || random() % 100 < 52) {
      const size_t first = random() % 200;
      held.push_back(pages(first, 1 + random() % (random() % 4 == 0 ? 56 : 4)));
      ASSERT_TRUE(counts.add(held.back()).ok());
      model.change(held.back(), 1);
    } else {
      std::swap(held[random() % held.size()], held.back());
      const Span span = held.back();
      held.pop_back();
      model.change(span, -1);
      expect_spans(removed(&counts, span), model.zero_pieces(span));
    }
    const Span window = pages(random() % 100, 1 + random() % 100);
    expect_spans(unheld(counts, window), model.zero_pieces(window));
    ASSERT_TRUE(counts.check_invariants());
    ASSERT_LE(counts.nodes(), 2 * held.size());
    ASSERT_EQ(counts.held_bytes(), model.held_bytes());
  }
}

}  // namespace
