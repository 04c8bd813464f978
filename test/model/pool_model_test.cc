// SPDX-License-Identifier: BSD-3-Clause
// A whole pool, two or three threads, every interleaving.
#include <gtest/gtest.h>

#include "test/model/explorer.h"
#include "test/model/real_pool.h"

namespace pinrail::model {
namespace {

constexpr uintptr_t kA = 0x100000, kB = 0x200000;

using Body = std::function<void()>;

// Whether what begins at kA is dead in the end, whatever the order; or perhaps, or not.
enum class End : uint8_t { dead, any };

class PoolModel : public ::testing::Test {
 protected:
  void SetUp() override {
    pool_ = new RealPool;
    ASSERT_TRUE(pool_->create(leave_pinned(), count_limit()));
  }
  virtual bool leave_pinned() const { return true; }
  virtual int64_t count_limit() const { return PINRAIL_UNSET; }

  // What comes before the threads start.

  // In the cache, and idle. Thread i remembers the request; other threads find it by its start.
  void cache(uintptr_t base, int i = 2) {
    pinrail_handle_t handle;
    ASSERT_TRUE(pool_->take(i, base, &handle));
    ASSERT_EQ(pool_->drop(i, handle), PINRAIL_SUCCESS);
  }
  // The i-th of held_.
  void hold(int i) { EXPECT_TRUE(pool_->take(i, kA, &held_[i])); }
  void evict_all() {
    while (pool_->evict(0)) {
    }
  }
  // So that a miss finds all memory that it needs: each execution would keep some.
  void warm_up() {
    cache(kA);
    pool_->invalidate(kA);
    pool_->progress(0);
  }

  // What a thread does, as thread i.

  Body hits(int i) {
    return [=] {
      pinrail_handle_t handle;
      if (pool_->find(i, kA, &handle)) drop(i, handle);
    };
  }
  Body misses(int i, uintptr_t base = kA) {
    return [=] {
      pinrail_handle_t handle;
      if (pool_->take(i, base, &handle)) drop(i, handle);
    };
  }
  // Where at most one event overtakes it.
  Body misses_for_sure(int i) {
    return [=] {
      pinrail_handle_t handle;
      require(pool_->take(i, kA, &handle), "a miss is overtaken once, and fails");
      drop(i, handle);
    };
  }
  // Displaces what begins there and has one page.
  Body uses_two_pages(int i) {
    return [=] {
      pinrail_handle_t handle;
      if (pool_->take_two_pages(i, kA, &handle)) drop(i, handle);
    };
  }
  Body drops(int i, int holder) {
    return [=] { drop(i, held_[holder]); };
  }
  Body drops(int i) { return drops(i, i); }
  // Another thread may have spent the handle.
  Body spends(int i) {
    return [=] { Status(pool_->drop_again(i, held_[0])).ignore(); };
  }
  Body invalidates(uintptr_t base = kA) {
    return [=] { pool_->invalidate(base); };
  }
  Body evicts(int i) {
    return [=] { pool_->evict(i); };
  }
  // Made beforehand: what a thread of the model allocates is not given back.
  Body evicts_and_misses(int i, uintptr_t base) {
    return [=, miss = misses(i, base)] {
      if (pool_->evict(i)) miss();
    };
  }
  Body drains(int i) {
    return [=] { pool_->progress(i); };
  }
  static Body both(const Body& first, const Body& second) {
    return [=] {
      first();
      second();
    };
  }
  void drop(int i, pinrail_handle_t handle) {
    require(pool_->drop(i, handle) == PINRAIL_SUCCESS, "a good handle was refused");
  }

  // What is dead is given back by the next call, once: no drop was forgotten. What is not dead can be evicted.
  virtual void expect_settled(End end) {
    Device::Entry &entry = pool_->entry(kA), &longer = pool_->entry_of_two_pages(kA), &other = pool_->entry(kB);
    require(entry.holders + longer.holders + other.holders == 0, "the scenario forgot a reference");
    pool_->progress(2);
    if (end == End::dead) require(entry.given_back == entry.registered, "a dead and unreferenced one is left behind");
    while (pool_->evict(2)) {
    }
    for (const Device::Entry* each : {&entry, &longer, &other})
      require(each->given_back == each->registered, "an idle one can't be evicted");
    require(pool_->check() == nullptr, "an invariant of the pool is broken");
  }

  RealPool* pool_ = nullptr;
  pinrail_handle_t held_[2] = {};
};

// A case: how it ends, what comes before the threads start, and what each of them does.
#define SETTLES(Model, name, end, before, ...)                        \
  TEST_F(Model, name) {                                               \
    before;                                                           \
    expect_right({{__VA_ARGS__}, [&] { expect_settled(End::end); }}); \
  }

// R9.
SETTLES(PoolModel, a_hit_against_the_evictor, any, cache(kA), hits(0), evicts(1))
// recent/Q1.
SETTLES(PoolModel, a_remembered_hit_against_the_evictor, any, cache(kA, 0), hits(0), evicts(1))
SETTLES(PoolModel, a_remembered_hit_against_an_invalidation_and_the_gc, dead, cache(kA, 0), hits(0),
        both(invalidates(), drains(1)))
SETTLES(PoolModel, two_hits_in_turn_against_the_evictor, any, cache(kA), both(hits(0), hits(0)), evicts(1))
// grdma/G1: the event or the last drop owns what has died.
SETTLES(PoolModel, a_hit_against_an_invalidation, dead, cache(kA), hits(0), invalidates())
SETTLES(PoolModel, a_hit_against_an_invalidation_and_the_gc, dead, cache(kA), hits(0), both(invalidates(), drains(1)))
SETTLES(PoolModel, a_drop_against_the_gc_on_two_threads, dead, (hold(0), pool_->invalidate(kA)), drops(0), drains(1),
        drains(2))
SETTLES(PoolModel, a_drop_against_an_invalidation_and_the_gc, dead, hold(0), drops(0), invalidates(), drains(2))
SETTLES(PoolModel, two_drops_of_two_threads_against_an_invalidation_and_the_gc, dead, (hold(0), hold(1)), drops(0),
        drops(1), both(invalidates(), drains(2)))
// pool_registrations/M2: parked, because the evictor found it held.
SETTLES(PoolModel, a_drop_of_what_is_parked_against_the_evictor_and_an_event, dead, (hold(0), pool_->evict(1)),
        drops(0), evicts(1), invalidates())
SETTLES(PoolModel, a_drop_and_a_hit_of_what_is_parked_against_the_evictor, any,
        (cache(kA, 1), hold(0), pool_->evict(2)), drops(0), hits(1), evicts(2))
SETTLES(PoolModel, a_drop_on_another_thread_against_an_invalidation_and_the_gc, dead, hold(0), drops(1, 0),
        both(invalidates(), drains(2)))
SETTLES(PoolModel, a_drop_on_another_thread_against_the_evictor, any, hold(0), drops(1, 0), evicts(2))
SETTLES(PoolModel, the_evictor_against_an_invalidation, dead, cache(kA), evicts(0), both(invalidates(), drains(1)))
SETTLES(PoolModel, a_drop_the_evictor_and_an_invalidation, dead, hold(0), drops(0), evicts(1), invalidates())
SETTLES(PoolModel, two_evictors, any, cache(kA), evicts(0), evicts(1))
// registration/S3: the memory of what a find still looks at serves another range.
SETTLES(PoolModel, a_hit_while_the_memory_gets_its_next_life, any, (cache(kA), cache(kB), evict_all(), cache(kA)),
        hits(0), evicts_and_misses(1, kB))
// R13: what the event overtook has its maker's reference until it is dead, so the evictor leaves it to its maker.
SETTLES(PoolModel, a_miss_against_an_invalidation_and_the_evictor, any, warm_up(), misses_for_sure(0),
        both(invalidates(), evicts(1)))
// What is held when an insert displaces it is linked outside of the index, and ends with its last drop.
SETTLES(PoolModel, a_hit_against_an_insert_that_displaces_it, any, cache(kA), hits(0), uses_two_pages(1))
SETTLES(PoolModel, the_evictor_against_an_insert_that_displaces_its_victim, any, cache(kA), evicts(0),
        uses_two_pages(1))
SETTLES(PoolModel, an_invalidation_against_an_insert_that_displaces, any, cache(kA), both(invalidates(), drains(0)),
        uses_two_pages(1))
SETTLES(PoolModel, a_drop_against_an_insert_that_displaces_it_and_the_gc, any, hold(0), drops(0), uses_two_pages(1),
        drains(2))

// A handle that two threads spend: nothing is deregistered twice, or while another thread holds it.
SETTLES(PoolModel, a_handle_is_spent_by_two_threads, any, (hold(0), pool_->entry(kA).holders = 0), spends(0), spends(1))
SETTLES(PoolModel, a_handle_is_spent_by_two_threads_and_killed, dead, (hold(0), pool_->entry(kA).holders = 0),
        spends(0), spends(1), invalidates())

// What was found held is parked, and brought back by its last drop.
TEST_F(PoolModel, a_hit_against_the_evictor_of_what_is_held) {
  cache(kA);
  hold(0);
  expect_right({{hits(1), evicts(1)}, [&] {
                  drop(2, held_[0]);
                  expect_settled(End::any);
                }});
}

// R12: the owner reads the reason, whichever of the two it is.
TEST_F(PoolModel, a_drop_against_an_invalidation_knows_the_reason) {
  hold(0);
  expect_right({{drops(0), invalidates()}, [&] {
                  expect_settled(End::dead);
                  const Device::Entry& entry = pool_->entry(kA);
                  require(entry.invalidated == entry.given_back, "it was not said that the memory is gone");
                }});
}

// gc_list/D1
TEST_F(PoolModel, an_event_against_a_drain) {
  cache(kA);
  cache(kB);
  pool_->invalidate(kB);
  expect_right({{invalidates(), drains(1)}, [&] {
                  pool_->progress(2);
                  const Device::Entry& other = pool_->entry(kB);
                  require(other.given_back == other.registered, "a dead one is left behind");
                  expect_settled(End::dead);
                }});
}

// E1 holds for the second event as for the first, whichever took the registration out.
TEST_F(PoolModel, an_event_against_the_same_event) {
  cache(kA);
  hold(0);
  drop(0, held_[0]);
  const auto is_dead = [&] {
    require((state::load(held_[0].reg) & state::kIndexed) == 0, "it may be taken after the event");
  };
  expect_right({{invalidates(), both(invalidates(), is_dead)}, [&] { expect_settled(End::dead); }});
}

// E2. Without the lock the hook sees that no registration is under way, or the index as it is afterwards.
TEST_F(PoolModel, a_miss_against_an_invalidation) {
  warm_up();
  expect_right({{misses_for_sure(0), [&] { pool_->lose(kA); }}, [&] {
                  pinrail_handle_t handle;
                  if (!pool_->find(2, kA, &handle)) return;
                  require(!pool_->is_stale(kA), "what was registered before the memory went is in the cache");
                  drop(2, handle);
                  expect_settled(End::any);
                }});
}

// R12, grdma/G6.
TEST_F(PoolModel, an_event_reaches_what_an_insert_displaces_while_it_is_held) {
  hold(0);
  expect_right({{uses_two_pages(1), invalidates()}, [&] {
                  drop(0, held_[0]);
                  const Device::Entry& entry = pool_->entry(kA);
                  require(entry.given_back == 1 && entry.invalidated == 1, "an event did not reach it");
                  expect_settled(End::any);
                }});
}

// R12, R1: what bypasses the cache ends with its last drop, and an event that comes before only marks it.
TEST_F(PoolModel, a_drop_of_what_bypasses_the_cache_against_an_event) {
  ASSERT_TRUE(pool_->take_uncached(0, kA, &held_[0]));
  ASSERT_FALSE(is_indexed(held_[0].reg));
  expect_right({{drops(0), invalidates()}, [&] { expect_settled(End::dead); }});
}

// One registration at a time: a miss evicts.
class LimitedModel : public PoolModel {
 protected:
  int64_t count_limit() const override { return 1; }
  void cache_both() {
    cache(kB);
    cache(kA);
  }
};
SETTLES(LimitedModel, a_miss_that_evicts_against_an_event_of_its_victim, any, cache_both(), misses(0, kB),
        invalidates())
SETTLES(LimitedModel, a_miss_that_evicts_against_a_hit_of_its_victim, any, cache_both(), misses(0, kB), hits(1))
SETTLES(LimitedModel, a_miss_that_evicts_against_events_of_both_ranges, any, cache_both(), misses(0, kB),
        both(invalidates(kB), invalidates()))
SETTLES(LimitedModel, two_misses_that_evict, any, cache_both(), misses(0, kB), misses(1))
SETTLES(LimitedModel, a_miss_that_evicts_against_the_evictor_and_a_hit, any, cache_both(), misses(0, kB), evicts(1),
        hits(2))

// What is not kept: the last drop acts.
class UncachedModel : public PoolModel {
 protected:
  bool leave_pinned() const override { return false; }
  void expect_settled(End) override {
    pool_->progress(2);
    for (const Device::Entry* entry : {&pool_->entry(kA), &pool_->entry_of_two_pages(kA)}) {
      require(entry->holders == 0 && entry->given_back == entry->registered, "the last drop left it behind");
    }
    require(pool_->check() == nullptr, "an invariant of the pool is broken");
  }
};
SETTLES(UncachedModel, two_drops, dead, (hold(0), hold(1)), drops(0), drops(1))
SETTLES(UncachedModel, a_drop_against_a_hit, dead, hold(0), drops(0), hits(1))
SETTLES(UncachedModel, a_drop_against_an_insert_that_displaces_it, dead, hold(0), drops(0), uses_two_pages(1))
SETTLES(UncachedModel, a_drop_against_an_invalidation_and_the_gc, dead, hold(0), drops(0), invalidates(), drains(2))

}  // namespace
}  // namespace pinrail::model
