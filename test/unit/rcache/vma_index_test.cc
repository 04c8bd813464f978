// SPDX-License-Identifier: BSD-3-Clause
// What the index finds, what it displaces, what an event takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/registration/registration_arena.h"
#include "components/rcache/vma/vma.h"

namespace pinrail::vma {

// What the tests of the index share: registrations that no device knows, and what leaves the
// index.

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
  // NOT_FOUND: it is announced.
  static Status announce(Index& index, pinrail_announcement_t* announcement) {
    pinrail_registration_t* found = nullptr;
    return index.find_or_announce(announcement, &found);
  }
  // Registers it, so to say: announces it under a range of its own, so that no other call waits for it, and publishes.
  // Its maker's reference is dropped.
  Status put(Index& index, pinrail_registration_t* reg) {
    pinrail_announcement_t announcement = announcing(reinterpret_cast<uintptr_t>(reg), 1, 0);
    EXPECT_TRUE(announce(index, &announcement).is(PINRAIL_ERR_NOT_FOUND));
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
  Index index_{false};
  Left left_;
};

namespace {

// The usual way of a buffer that grows; enough of them that some stand at the ends of leaves.
TEST_F(IndexTest, a_longer_one_displaces_what_begins_where_it_begins) {
  constexpr uintptr_t kMany = 300;
  for (const size_t length : {0x1000, 0x2000, 0x5000}) {
    for (uintptr_t i = 0; i < kMany; ++i) ASSERT_TRUE(put(index_, make(0x10000 * (i + 1), length, 1)).ok());
    EXPECT_EQ(index_.count(), kMany);
    EXPECT_EQ(index_.check(), nullptr);
  }
  EXPECT_EQ(left_.regs.size(), 2 * kMany);
}

// As a report of MAP_FAILED says, which is clipped to nothing. A call under way makes the event search.
TEST_F(IndexTest, an_empty_event_at_the_last_address_ends_nothing) {
  for (uintptr_t i = 1; i <= 3; ++i) add(index_, 0x10000 * i, 0x1000, 1);
  pinrail_announcement_t announcement = announcing(0x50000, 0x1000, 1);
  ASSERT_TRUE(announce(index_, &announcement).is(PINRAIL_ERR_NOT_FOUND));
  index_.invalidate_hook({UINTPTR_MAX, UINTPTR_MAX}, Left::visit, &left_);
  EXPECT_TRUE(left_.regs.empty());
  EXPECT_TRUE(index_.withdraw(&announcement).ok());
  EXPECT_EQ(index_.check(), nullptr);
  EXPECT_EQ(index_.count(), 3u);
}

TEST_F(IndexTest, a_dead_registration_is_not_found_and_one_behind_it_is) {
  pinrail_registration_t* const outer = add(index_, 0x10000, 0x3000, 1);
  pinrail_registration_t* const later = add(index_, 0x11000, 0x8000, 1);
  ASSERT_TRUE(retire(outer, state::load(outer)));  // as an evictor does, before it removes
  EXPECT_EQ(look(index_, 0x12000, 1, 1), later);
  EXPECT_TRUE(index_.remove(outer).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(index_.count(), 1u);
}

// R5: it is waited for once, by its name.
TEST_F(IndexTest, a_request_waits_for_the_announcement_that_will_answer_it_and_for_no_other) {
  const auto announced = [&](pinrail_announcement_t* announcement) { return announce(index_, announcement).code(); };
  pinrail_announcement_t outer = announcing(0x10000, 0x3000, 3), equal = announcing(0x10000, 0x3000, 1),
                         wider = announcing(0x10000, 0x3000, 4), beyond = announcing(0x11000, 0x3000, 1);
  ASSERT_EQ(announced(&outer), PINRAIL_ERR_NOT_FOUND);
  ASSERT_EQ(announced(&wider), PINRAIL_ERR_NOT_FOUND) << "other rights";
  ASSERT_EQ(announced(&beyond), PINRAIL_ERR_NOT_FOUND) << "another range";
  pinrail_announcement_t persistent = announcing(0x10000, 0x3000, 3);
  persistent.flags = PINRAIL_FLAG_PERSISTENT;
  ASSERT_EQ(announced(&persistent), PINRAIL_ERR_NOT_FOUND) << "what answers it must not be evicted";
  ASSERT_TRUE(index_.withdraw(&persistent).ok());
  ASSERT_EQ(announced(&equal), PINRAIL_ERR_WOULD_BLOCK);
  ASSERT_EQ(announced(&equal), PINRAIL_ERR_WOULD_BLOCK) << "as long as it lasts";
  ASSERT_TRUE(index_.withdraw(&outer).ok());
  pinrail_announcement_t again = announcing(0x10000, 0x3000, 3);
  ASSERT_EQ(announced(&again), PINRAIL_ERR_NOT_FOUND);
  ASSERT_EQ(announced(&equal), PINRAIL_ERR_NOT_FOUND) << "another one, at that";
  for (pinrail_announcement_t* each : {&again, &wider, &equal, &beyond}) ASSERT_TRUE(index_.withdraw(each).ok());
  Index exact(true);  // there for equal ones alone
  pinrail_announcement_t inner = announcing(0x10000, 0x1000, 3);
  ASSERT_TRUE(announce(exact, &outer).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(announce(exact, &inner).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(announce(exact, &again).is(PINRAIL_ERR_WOULD_BLOCK));
  for (pinrail_announcement_t* each : {&outer, &inner}) ASSERT_TRUE(exact.withdraw(each).ok());
}

// R4, R5: what is registered beyond the request counts for those that come later.
TEST_F(IndexTest, an_announcement_of_more_than_was_asked_for_is_waited_for) {
  pinrail_announcement_t wide = announcing(0x12000, 0x1000, 1);
  wide.more_rights = 2;
  pinrail_announcement_t inside = announcing(0x17000, 0x1000, 3), beyond = announcing(0x17000, 0x2000, 1),
                         stronger = announcing(0x17000, 0x1000, 4);
  ASSERT_TRUE(announce(index_, &wide).is(PINRAIL_ERR_NOT_FOUND));
  index_.reannounce(&wide, Span::of(0x10000, 0x8000));
  EXPECT_TRUE(announce(index_, &inside).is(PINRAIL_ERR_WOULD_BLOCK));
  for (pinrail_announcement_t* each : {&beyond, &stronger}) {
    EXPECT_TRUE(announce(index_, each).is(PINRAIL_ERR_NOT_FOUND));
    EXPECT_TRUE(index_.withdraw(each).ok());
  }
  EXPECT_TRUE(index_.withdraw(&wide).ok());
}

TEST_F(IndexTest, events_overtake_an_announcement_by_the_range_that_it_is_of_now) {
  pinrail_announcement_t wide = announcing(0x12000, 0x1000, 1);
  ASSERT_TRUE(announce(index_, &wide).is(PINRAIL_ERR_NOT_FOUND));
  index_.reannounce(&wide, Span::of(0x10000, 0x8000));
  index_.invalidate_hook(Span::of(0x17000, 0x1000), Left::visit, &left_);
  index_.reannounce(&wide, Span::of(0x12000, 0x1000));
  EXPECT_TRUE(index_.withdraw(&wide).ok()) << "it counts as not overtaken";
  ASSERT_TRUE(announce(index_, &wide).is(PINRAIL_ERR_NOT_FOUND));
  index_.reannounce(&wide, Span::of(0x10000, 0x8000));
  index_.invalidate_hook(Span::of(0x17000, 0x1000), Left::visit, &left_);
  EXPECT_TRUE(index_.withdraw(&wide).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
}

// R13
TEST_F(IndexTest, an_event_overtakes_the_announcements_that_it_overlaps_once) {
  pinrail_announcement_t hit = announcing(0x10000, 0x2000, 1), missed = announcing(0x20000, 0x2000, 1);
  pinrail_registration_t* const reg = make(0x10000, 0x2000, 1);
  EXPECT_TRUE(index_.publish(&hit, reg, Left::visit, &left_).is(PINRAIL_ERR_OUT_OF_RESOURCE))
      << "there are no nodes yet";
  ASSERT_TRUE(announce(index_, &hit).is(PINRAIL_ERR_NOT_FOUND));
  ASSERT_TRUE(announce(index_, &missed).is(PINRAIL_ERR_NOT_FOUND));
  index_.invalidate_hook(Span::of(0x11000, 0x1000), Left::visit, &left_);
  EXPECT_TRUE(index_.publish(&hit, reg, Left::visit, &left_).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
  EXPECT_EQ(index_.count(), 0u);
  EXPECT_TRUE(index_.publish(&hit, reg, Left::visit, &left_).ok()) << "it was said";
  EXPECT_TRUE(index_.publish(&missed, make(0x20000, 0x2000, 1), Left::visit, &left_).ok());
  index_.invalidate_hook(Span::of(0x10000, 0x20000), Left::visit, &left_);
  EXPECT_EQ(left_.regs.size(), 2u);
}

// R3: its pool removes it soon, and it answers nothing.
TEST_F(IndexTest, a_dead_registration_is_no_reason_to_refuse_what_it_contains) {
  pinrail_registration_t* const strong = make(0x10000, 0x4000, 2);
  pinrail_registration_t* const dead = make(0x20000, 0x4000, 1);
  for (pinrail_registration_t* reg : {strong, dead}) {
    ASSERT_TRUE(put(index_, reg).ok());
    ASSERT_EQ(kill(reg), Killed::owned);
  }
  pinrail_announcement_t announcement = announcing(0x11000, 0x1000, 1);
  ASSERT_TRUE(announce(index_, &announcement).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(put(index_, make(0x21000, 0x1000, 1)).ok());
  EXPECT_EQ(index_.count(), 2u) << "the one with the right is removed by its owner, because no search met it";
}

// Wherever one leaf ends and the next begins: an event takes what it overlaps on both sides, and nothing else.
TEST_F(IndexTest, an_event_takes_what_lies_in_several_leaves) {
  constexpr uintptr_t kMany = 100;
  for (uintptr_t wide = 1; wide <= 4; ++wide) {
    for (uintptr_t first = 0; first + wide <= kMany; ++first) {
      Index index(false);
      for (uintptr_t i = 0; i < kMany; ++i) ASSERT_TRUE(put(index, make((1 + i) * kPage, kPage, 1)).ok());
      left_.regs.clear();
      index.invalidate_hook(Span::of((1 + first) * kPage, wide * kPage), Left::visit, &left_);
      ASSERT_EQ(left_.regs.size(), wide) << "from " << first;
      ASSERT_EQ(index.check(), nullptr) << index.check();
    }
  }
}

// Visits what is displaced, under the index lock, and sleeps there until another call that needs the lock has returned:
// so long in all that it comes in between on a busy machine, too.
struct LockAwaited {
  const Index* index;
  std::atomic<bool> began{false}, counted{false};
  size_t visited = 0, visited_at_count = 0;
  static void visit(void* arg, pinrail_registration_t* const* regs, size_t count) {
    auto* const self = static_cast<LockAwaited*>(arg);
    if (self->counted.load() && self->visited_at_count == 0) self->visited_at_count = self->visited;
    for (size_t i = 0; i < count; ++i) kill(regs[i]);
    self->visited += count;
    self->began.store(true);
    if (!self->counted.load()) std::this_thread::sleep_for(std::chrono::milliseconds(25));
  }
};

TEST_F(IndexTest, what_one_insert_displaces_is_taken_leaf_by_leaf_and_lets_waiting_calls_in_between) {
  constexpr uintptr_t kMany = 10000;
  for (uintptr_t i = 0; i < kMany; ++i) ASSERT_TRUE(put(index_, make((1 + i) * kPage, kPage, 1)).ok());
  LockAwaited displaced{&index_};
  std::thread other([&displaced] {
    while (!displaced.began.load()) std::this_thread::yield();
    displaced.index->count();
    displaced.counted.store(true);
  });
  pinrail_announcement_t announcement = announcing(kPage, kMany * kPage, 1);
  ASSERT_TRUE(announce(index_, &announcement).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(index_.publish(&announcement, make(kPage, kMany * kPage, 1), LockAwaited::visit, &displaced).ok());
  other.join();
  EXPECT_EQ(displaced.visited, kMany);
  EXPECT_GT(displaced.visited_at_count, 0U) << "the other call waited until all were displaced";
  EXPECT_EQ(index_.count(), 1U);
  EXPECT_EQ(index_.check(), nullptr) << index_.check();
}

// The one before it is the last of another leaf, if `own` was the first of its leaf, and ends where the new one does.
TEST_F(IndexTest, what_one_in_another_leaf_contains_is_refused) {
  constexpr uintptr_t kMany = 100;
  const auto base = [](uintptr_t i) { return (1 + 4 * i) * kPage; };
  for (uintptr_t own = 1; own < kMany; ++own) {
    Index index(false);
    std::vector<pinrail_registration_t*> regs;
    for (uintptr_t i = 0; i < kMany; ++i) {
      regs.push_back(make(base(i), 6 * kPage, 1));
      ASSERT_TRUE(put(index, regs.back()).ok());
    }
    ASSERT_TRUE(index.remove(regs[own]).ok());
    ASSERT_TRUE(put(index, make(base(own) + kPage, kPage, 1)).is(PINRAIL_ERR_BUSY)) << own;
    ASSERT_TRUE(put(index, make(base(own) + kPage, 2 * kPage, 1)).ok()) << own;
    ASSERT_EQ(index.check(), nullptr) << index.check();
  }
}

// R3: one that is cached, begins later and contains the request, too, does not hide the persistent one.
TEST_F(IndexTest, a_persistent_request_is_answered_beside_what_is_cached) {
  pinrail_registration_t* const persistent = add(index_, 16 * kPage, 10 * kPage, 1, 0, PINRAIL_FLAG_PERSISTENT);
  ASSERT_TRUE(put(index_, make(17 * kPage, 11 * kPage, 1)).ok());
  pinrail_announcement_t announcement = announcing(18 * kPage, 2 * kPage, 1);
  announcement.flags = PINRAIL_FLAG_PERSISTENT;
  pinrail_registration_t* found = nullptr;
  ASSERT_TRUE(index_.find_or_announce(&announcement, &found).ok());
  EXPECT_EQ(found, persistent);
}

// As a registrar could grant them.
TEST_F(IndexTest, more_kinds_of_rights_and_traits_than_there_are_classes_are_refused) {
  constexpr uint32_t kRights = PINRAIL_RIGHTS_MASK + 1, kTrait = PINRAIL_TRAIT_RELAXED_ORDERING;
  uintptr_t page = 0;
  for (uint32_t traits = 0; traits <= PINRAIL_TRAITS_MASK; traits += kTrait) {
    for (uint32_t kind = 0; kind < 2 * kRights; ++kind) {
      const uint32_t flags = kind < kRights ? 0 : uint32_t{PINRAIL_FLAG_PERSISTENT};
      EXPECT_TRUE(put(index_, make(page += kPage, kPage, kind % kRights, traits, flags)).ok()) << kind << " " << traits;
    }
  }
  pinrail_registration_t* const other = make(kPage, kPage, kRights);
  EXPECT_TRUE(put(index_, other).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(index_.remove(other).is(PINRAIL_ERR_NOT_FOUND));
}

TEST_F(IndexTest, visit_all_shows_what_overlaps_takes_no_reference_and_counts) {
  for (uintptr_t i = 0; i < 10; ++i) ASSERT_TRUE(put(index_, make(0x10000 + i * 0x1000, 0x1800, 1)).ok());
  std::vector<const pinrail_registration_t*> seen;
  const auto note = [](void* arg, pinrail_registration_t* reg) {
    static_cast<std::vector<const pinrail_registration_t*>*>(arg)->push_back(reg);
  };
  EXPECT_EQ(index_.visit_all(Span::of(0x12000, 0x3000), note, &seen), 4u);
  EXPECT_EQ(seen.size(), 4u);
  for (const auto* reg : seen) EXPECT_EQ(references_of(reg), 0u);
  EXPECT_EQ(index_.visit_all({0, UINTPTR_MAX}, note, &seen), 10u);
}

// The index beside a model that looks at everything, at random.

// The model: a set of spans with rights, every answer by looking at all of them.
struct Model {
  std::vector<pinrail_registration_t*> in;

  bool contains(const Span& span, uint32_t rights, uint32_t traits) const {
    return std::any_of(in.begin(), in.end(), [&](auto* reg) {
      return span_of(reg).contains(span) && (reg->rights & rights) == rights && reg->traits == traits;
    });
  }
  std::set<pinrail_registration_t*> dominated_by(const pinrail_registration_t* by) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      const bool weaker = (by->rights & reg->rights) == reg->rights && reg->traits == by->traits;
      if (weaker && span_of(by).contains(span_of(reg))) out.insert(reg);
    }
    return out;
  }
  std::set<pinrail_registration_t*> overlapping(const Span& span) const {
    std::set<pinrail_registration_t*> out;
    for (auto* reg : in) {
      if (span_of(reg).overlaps(span)) out.insert(reg);
    }
    return out;
  }
  void erase(const std::set<pinrail_registration_t*>& gone) {
    in.erase(std::remove_if(in.begin(), in.end(), [&](auto* reg) { return gone.count(reg) != 0; }), in.end());
  }
};

class RandomIndexTest : public IndexTest, public ::testing::WithParamInterface<unsigned> {};

TEST_P(RandomIndexTest, agrees_with_the_model_at_every_step) {
  std::mt19937 random(GetParam());
  const bool deep = GetParam() % 2 != 0;  // few overlaps and trees of three levels; else crowded
  // Of one class: then what is alone in its place is inserted without a search for what dominates it.
  const bool one_class = GetParam() % 4 >= 2;
  const uintptr_t pages = deep ? 1 << 16 : one_class ? 256 : 64;
  auto pick = [&](uintptr_t n) { return std::uniform_int_distribution<uintptr_t>(0, n - 1)(random); };
  auto span = [&] {
    const uintptr_t longest = pick(deep ? 4000 : 8) == 0 ? pages / 2 : 6;
    return Span::of((1 + pick(pages)) * kPage, (1 + pick(longest)) * kPage);
  };
  size_t most = 0;
  Model model;
  for (int step = 0; step < 10000; ++step) {
    const Span at = span();
    const auto rights = one_class ? 1 : static_cast<uint32_t>(pick(4));
    const uint32_t traits = !one_class && pick(8) == 0 ? PINRAIL_TRAIT_RELAXED_ORDERING : 0;
    const auto remove_one = [&] {
      pinrail_registration_t* reg = model.in[pick(model.in.size())];
      ASSERT_TRUE(index_.remove(reg).ok());
      model.erase({reg});
    };
    left_.regs.clear();
    const uintptr_t what = pick(step % 5000 < 4000 ? 72 : 18);  // grows, and shrinks again
    if (what < 12) {
      ASSERT_EQ(look(index_, at.base, at.length(), rights, traits) != nullptr, model.contains(at, rights, traits));
    } else if (what == 13) {
      const auto gone = model.overlapping(at);
      index_.invalidate_hook(at, Left::visit, &left_);
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      ASSERT_EQ(left_.regs.size(), gone.size());
      model.erase(gone);
    } else if (what < 17 && !model.in.empty()) {
      remove_one();
    } else {
      ASSERT_EQ(look(index_, at.base, at.length(), rights, traits) != nullptr, model.contains(at, rights, traits));
      if (pick(3) == 0 && !model.in.empty()) remove_one();
      pinrail_registration_t* reg = make(at.base, at.length(), rights, traits);
      const bool refused = model.contains(at, rights, traits);
      const auto gone = model.dominated_by(reg);
      ASSERT_EQ(put(index_, reg).is(PINRAIL_ERR_BUSY), refused);
      if (refused) continue;
      ASSERT_EQ(std::set<pinrail_registration_t*>(left_.regs.begin(), left_.regs.end()), gone);
      model.erase(gone);
      model.in.push_back(reg);
    }
    ASSERT_EQ(index_.count(), model.in.size());
    most = std::max(most, model.in.size());
    if (step % 64 == 0) {
      ASSERT_EQ(index_.check(), nullptr) << index_.check();
    }
  }
  EXPECT_GT(most, deep ? 1000u : 20u);
  index_.invalidate_hook({0, UINTPTR_MAX}, Left::visit, &left_);
  EXPECT_EQ(index_.count(), 0u);
  EXPECT_EQ(index_.check(), nullptr);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomIndexTest, ::testing::Range(1u, 13u));

class PersistentIndexTest : public IndexTest, public ::testing::WithParamInterface<bool> {};

// Persistent (and exact) ones may contain each other: the reach of the nodes has to find the right one all the same.
TEST_P(PersistentIndexTest, nested_registrations_are_all_found) {
  const bool exact = GetParam();
  Index index(exact);
  std::mt19937 random(7);
  Model model;
  for (int i = 0; i < 3000; ++i) {
    const uintptr_t base = 0x100000 + (random() % 512) * kPage;
    const size_t length = (1 + random() % (i % 64 == 0 ? 512 : 8)) * kPage;
    pinrail_registration_t* reg = make(base, length, 1, 0, PINRAIL_FLAG_PERSISTENT);
    const bool equal = std::any_of(model.in.begin(), model.in.end(), [&](auto* other) {
      return other->base == reg->base && other->length == reg->length;
    });
    ASSERT_EQ(put(index, reg).is(PINRAIL_ERR_BUSY), equal);
    if (!equal) model.in.push_back(reg);
  }
  ASSERT_EQ(index.check(), nullptr) << index.check();
  for (int i = 0; i < 3000; ++i) {
    const Span span = Span::of(0x100000 + (random() % 600) * kPage, (1 + random() % 64) * kPage);
    const bool expected =
        exact ? std::any_of(model.in.begin(), model.in.end(),
                            [&](auto* reg) { return span_of(reg).base == span.base && span_of(reg).end == span.end; })
              : model.contains(span, 1, 0);
    ASSERT_EQ(look(index, span.base, span.length(), 1) != nullptr, expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, PersistentIndexTest, ::testing::Bool());

}  // namespace
}  // namespace pinrail::vma
