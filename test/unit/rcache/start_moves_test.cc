// SPDX-License-Identifier: BSD-3-Clause
// What comes to, leaves and is moved in the table of starts, so that one entry stands where another one was.
#include <random>
#include <utility>

#include "test/unit/rcache/index_under_test.h"

namespace pinrail::vma {
namespace {

pinrail_registration_t* make_counted(uintptr_t base, size_t length) {
  return make(base, length, 1, 0, 0, PINRAIL_COUNTING_THREADS);
}

void make_room(StartTable* table) {
  while (!table->has_room()) {
    const size_t room = table->room();
    ASSERT_TRUE(table->make_memory_usable(room));
    table->note_memory(room);
  }
}

// The same buffers leave and come again. What is left of an entry that is gone must not stand for the one that is
// there.
void expect_all_seen(size_t regions, size_t kept) {
  std::mt19937_64 random(1);
  StartTable table(arena::chunks(), thread::epoch_word());
  std::vector<pinrail_registration_t*> out, in;
  for (size_t i = 0; i < regions; ++i) out.push_back(make_counted(0x10000000 + i * 16 * kPage, 16 * kPage));
  const auto move_one = [&](auto* from, auto* to) {
    std::swap((*from)[random() % from->size()], from->back());
    to->push_back(from->back());
    from->pop_back();
    return to->back();
  };
  for (size_t step = 0; step < 100 * kept; ++step) {
    if (in.size() == kept) table.remove(move_one(&in, &out));
    make_room(&table);
    table.insert(nullptr, move_one(&out, &in));
  }
  size_t unseen = 0;
  for (const pinrail_registration_t* reg : in) {
    start_table::Found found;
    const bool is_seen = start_table::look_up(table.table(), span_of(reg).base, 0, kPage, 1, &found);
    if (start_table::entry_of(table.table(), reg) != nullptr && !is_seen) ++unseen;
  }
  EXPECT_EQ(unseen, 0u) << kept << " of " << regions;
  for (pinrail_registration_t* reg : in) table.remove(reg);
  for (const auto& all : {in, out}) {
    for (pinrail_registration_t* reg : all) arena::free(reg);
  }
}

TEST(StartMoves, what_has_left_hides_nothing) {
  expect_all_seen(2048, 1024);
  expect_all_seen(1200, 1000);
}

// Parts of the buckets of a table of 576.
struct Range {
  double from, behind;
  bool has(uint64_t place) const {
    const double at = static_cast<double>(place) * 576 / 4294967296.0;
    return at >= from && at < behind;
  }
};

class StartMovesTest : public IndexTest {
 protected:
  // An address whose two buckets lie there.
  uintptr_t base_in(Range first, Range second) {
    for (;;) {
      const uintptr_t base = any_base();
      const uint64_t hash = start_table::hash_of(base);
      if (first.has(start_table::first_place(hash)) && second.has(start_table::second_place(hash))) return base;
    }
  }
  uintptr_t base_outside(std::initializer_list<Range> ranges) {
    for (;;) {
      const uintptr_t base = any_base();
      const uint64_t hash = start_table::hash_of(base);
      const bool is_outside = std::none_of(ranges.begin(), ranges.end(), [hash](Range range) {
        return range.has(start_table::first_place(hash)) || range.has(start_table::second_place(hash));
      });
      if (is_outside) return base;
    }
  }

 private:
  uintptr_t any_base() { return (1 + (random_() & 0x7fffffff)) * kPage; }
  std::mt19937_64 random_{1};
};

// The table grows from 512 buckets to 576. While an entry of old bucket 4 looks for room in bucket 3, which is full, a
// chain of four moves brings one of bucket 112 to the very place that the entry had.
TEST_F(StartMovesTest, what_takes_the_place_of_an_entry_that_is_moved_is_not_moved_for_it) {
  const Range four_high{4.5, 5}, four_low{4.02, 4.48}, three{3.4, 3.99}, other{112.5, 113}, far{300, 300.9};
  std::vector<uintptr_t> bases;
  const auto add = [&](Range first, Range second) { bases.push_back(base_in(first, second)); };
  add(four_low, other);
  for (int i = 0; i < 2; ++i) add(three, other);
  add(four_high, other);
  add(four_high, far);
  add(four_high, other);
  add(other, three);
  for (int i = 0; i < 2; ++i) add(other, four_high);
  const uintptr_t moved = bases[6];
  constexpr size_t kMany = 1200, kGrown = 1040;
  while (bases.size() < kMany) bases.push_back(base_outside({{1, 6}, {110, 115}, {125, 128}, {298, 303}, {336, 340}}));
  Index index(false, arena::chunks(), thread::epoch_word());
  for (size_t i = 0; i < kMany; ++i) {
    ASSERT_TRUE(put(index, make_counted(bases[i], kPage)).ok());
    ASSERT_EQ(index.check(), nullptr) << index.check() << " after " << i;
    if (i == kGrown) index.invalidate_hook(Span::of(moved, kPage), Left::visit, &left_);
    if (i > kGrown) {
      ASSERT_EQ(look(index, moved, kPage, 1), nullptr) << "E1: the event has taken it";
    }
  }
  EXPECT_EQ(left_.regs.size(), 1u);
}

}  // namespace
}  // namespace pinrail::vma
