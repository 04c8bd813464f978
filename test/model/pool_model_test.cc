// SPDX-License-Identifier: BSD-3-Clause
// A whole pool, two or three threads, every interleaving under x86's store order. What is  takes too long for
// each build, some seconds to some minutes: --gtest_also_run_disabled_tests.
#include <gtest/gtest.h>

#include "test/model/explorer.h"
#include "test/model/real_pool.h"

namespace pinrail::model {
namespace {

constexpr uintptr_t kA = 0x100000, kB = 0x200000;

class PoolModel : public ::testing::Test {
 protected:
  void SetUp() override {
    pool_ = new RealPool;
    ASSERT_TRUE(pool_->create(leave_pinned(), count_limit()));
  }
  virtual bool leave_pinned() const { return true; }
  virtual int64_t count_limit() const { return PINRAIL_UNSET; }

  // In the cache, and idle. Thread i remembers the request; other threads find it by its start.
  void cache(uintptr_t base, int i = 2) {
    pinrail_handle_t handle;
    ASSERT_TRUE(pool_->take(i, base, &handle));
    ASSERT_EQ(pool_->drop(i, handle), PINRAIL_SUCCESS);
  }

  pinrail_handle_t hold(int i, uintptr_t base) {
    pinrail_handle_t handle{};
    EXPECT_TRUE(pool_->take(i, base, &handle));
    return handle;
  }

  void hit_and_drop(int i) {
    pinrail_handle_t handle;
    if (pool_->find(i, kA, &handle)) drop(i, handle);
  }
  // Displaces what begins there and has one page.
  void use_two_pages(int i) {
    pinrail_handle_t handle;
    if (pool_->take_two_pages(i, kA, &handle)) drop(i, handle);
  }
  void invalidate_and_drain(int i) {
    pool_->invalidate(kA);
    pool_->progress(i);
  }
  void drop(int i, pinrail_handle_t handle) {
    require(pool_->drop(i, handle) == PINRAIL_SUCCESS, "a good handle was refused");
  }

  // What is dead is given back by the next call, once: no drop was forgotten. What is not dead can be evicted.
  void expect_settled(bool is_dead) {
    Device::Entry &entry = pool_->entry(kA), &longer = pool_->entry_of_two_pages(kA);
    require(entry.holders + longer.holders == 0, "the scenario forgot a reference");
    pool_->progress(2);
    if (is_dead) require(entry.given_back == entry.registered, "a dead and unreferenced one is left behind");
    while (pool_->evict(2)) {
    }
    require(entry.given_back == entry.registered, "an idle one can't be evicted");
    require(longer.given_back == longer.registered, "an idle one of two pages can't be evicted");
    require(pool_->check() == nullptr, "an invariant of the pool is broken");
  }

  RealPool* pool_ = nullptr;
};

// R9.
TEST_F(PoolModel, a_hit_against_the_evictor) {
  cache(kA);
  expect_right({{[&] { hit_and_drop(0); }, [&] { pool_->evict(1); }}, [&] { expect_settled(false); }});
}

// recent/Q1.
TEST_F(PoolModel, a_remembered_hit_against_the_evictor) {
  cache(kA, 0);
  expect_right({{[&] { hit_and_drop(0); }, [&] { pool_->evict(1); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, a_remembered_hit_against_an_invalidation_and_the_gc) {
  cache(kA, 0);
  expect_right({{[&] { hit_and_drop(0); }, [&] { invalidate_and_drain(1); }}, [&] { expect_settled(true); }});
}

TEST_F(PoolModel, two_hits_in_turn_against_the_evictor) {
  cache(kA);
  expect_right({{[&] {
                   hit_and_drop(0);
                   hit_and_drop(0);
                 },
                 [&] { pool_->evict(1); }},
                [&] { expect_settled(false); }});
}

// What was found held is parked, and brought back by its last drop.
TEST_F(PoolModel, a_hit_against_the_evictor_of_what_is_held) {
  cache(kA);
  const pinrail_handle_t handle = hold(2, kA);
  expect_right({{[&] { hit_and_drop(0); }, [&] { pool_->evict(1); }}, [&] {
                  drop(2, handle);
                  expect_settled(false);
                }});
}

// grdma/G1: the event or the last drop owns what has died.
TEST_F(PoolModel, a_hit_against_an_invalidation) {
  cache(kA);
  expect_right({{[&] { hit_and_drop(0); }, [&] { pool_->invalidate(kA); }}, [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_hit_against_an_invalidation_and_the_gc) {
  cache(kA);
  expect_right({{[&] { hit_and_drop(0); }, [&] { invalidate_and_drain(1); }}, [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_drop_against_the_gc_on_two_threads) {
  const pinrail_handle_t handle = hold(0, kA);
  pool_->invalidate(kA);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->progress(1); }, [&] { pool_->progress(2); }},
                [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_drop_against_an_invalidation_and_the_gc) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->invalidate(kA); }, [&] { pool_->progress(2); }},
                [&] { expect_settled(true); }});
}

TEST_F(PoolModel, two_drops_of_two_threads_against_an_invalidation_and_the_gc) {
  const pinrail_handle_t first = hold(0, kA), second = hold(1, kA);
  expect_right({{[&] { drop(0, first); }, [&] { drop(1, second); },
                 [&] {
                   pool_->invalidate(kA);
                   pool_->progress(2);
                 }},
                [&] { expect_settled(true); }});
}

// R12: the owner reads the reason, whichever of the two it is.
TEST_F(PoolModel, a_drop_against_an_invalidation_knows_the_reason) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->invalidate(kA); }}, [&] {
                  expect_settled(true);
                  const Device::Entry& entry = pool_->entry(kA);
                  require(entry.invalidated == entry.given_back, "it was not said that the memory is gone");
                }});
}

// gc_list/D1
TEST_F(PoolModel, an_event_against_a_drain) {
  cache(kA);
  cache(kB);
  pool_->invalidate(kB);
  expect_right({{[&] { pool_->invalidate(kA); }, [&] { pool_->progress(1); }}, [&] {
                  expect_settled(true);
                  Device::Entry& other = pool_->entry(kB);
                  require(other.given_back == other.registered, "a dead one is left behind");
                }});
}

// pool_registrations/M2: parked, because the evictor found it held.
TEST_F(PoolModel, a_drop_of_what_is_parked_against_the_evictor_and_an_event) {
  const pinrail_handle_t handle = hold(0, kA);
  pool_->evict(1);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->evict(1); }, [&] { pool_->invalidate(kA); }},
                [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_drop_and_a_hit_of_what_is_parked_against_the_evictor) {
  cache(kA, 1);
  const pinrail_handle_t handle = hold(0, kA);
  pool_->evict(2);
  expect_right(
      {{[&] { drop(0, handle); }, [&] { hit_and_drop(1); }, [&] { pool_->evict(2); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, a_drop_on_another_thread_against_an_invalidation_and_the_gc) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(1, handle); },
                 [&] {
                   pool_->invalidate(kA);
                   pool_->progress(2);
                 }},
                [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_drop_on_another_thread_against_the_evictor) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(1, handle); }, [&] { pool_->evict(2); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, the_evictor_against_an_invalidation) {
  cache(kA);
  expect_right({{[&] { pool_->evict(0); }, [&] { invalidate_and_drain(1); }}, [&] { expect_settled(true); }});
}

TEST_F(PoolModel, a_drop_the_evictor_and_an_invalidation) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->evict(1); }, [&] { pool_->invalidate(kA); }},
                [&] { expect_settled(true); }});
}

TEST_F(PoolModel, two_evictors) {
  cache(kA);
  expect_right({{[&] { pool_->evict(0); }, [&] { pool_->evict(1); }}, [&] { expect_settled(false); }});
}

// registration/S3: the memory of what a find still looks at serves another range.
TEST_F(PoolModel, a_hit_while_the_memory_gets_its_next_life) {
  cache(kA);
  cache(kB);
  while (pool_->evict(0)) {
  }
  cache(kA);
  expect_right({{[&] { hit_and_drop(0); },
                 [&] {
                   if (!pool_->evict(1)) return;
                   pinrail_handle_t handle;
                   if (pool_->take(1, kB, &handle)) drop(1, handle);
                 }},
                [&] { expect_settled(false); }});
}

// A handle that two threads spend: nothing is deregistered twice, or while another thread holds it.
TEST_F(PoolModel, a_handle_is_spent_by_two_threads) {
  const pinrail_handle_t handle = hold(0, kA);
  pool_->entry(kA).holders = 0;
  const auto spend = [&](int i) { Status(pool_->drop_again(i, handle)).ignore(); };
  expect_right({{[&] { spend(0); }, [&] { spend(1); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, a_handle_is_spent_by_two_threads_and_killed) {
  const pinrail_handle_t handle = hold(0, kA);
  pool_->entry(kA).holders = 0;
  const auto spend = [&](int i) { Status(pool_->drop_again(i, handle)).ignore(); };
  expect_right({{[&] { spend(0); }, [&] { spend(1); }, [&] { pool_->invalidate(kA); }}, [&] { expect_settled(true); }});
}

// E1 holds for the second event as for the first, whichever took the registration out.
TEST_F(PoolModel, an_event_against_the_same_event) {
  cache(kA);
  const pinrail_handle_t handle = hold(0, kA);
  drop(0, handle);
  expect_right({{[&] { pool_->invalidate(kA); },
                 [&] {
                   pool_->invalidate(kA);
                   require((state::load(handle.reg) & state::kIndexed) == 0, "it may be taken after the event");
                 }},
                [&] { expect_settled(true); }});
}

// E2. Without the lock the hook sees that no registration is under way, or the index as it is afterwards.
TEST_F(PoolModel, a_miss_against_an_invalidation) {
  cache(kA);  // so that a miss finds all memory that it needs: each execution would keep some
  pool_->invalidate(kA);
  pool_->progress(0);
  expect_right({{[&] { drop(0, hold(0, kA)); }, [&] { pool_->lose(kA); }}, [&] {
                  pinrail_handle_t handle;
                  if (!pool_->find(2, kA, &handle)) return;
                  require(!pool_->is_stale(kA), "what was registered before the memory went is in the cache");
                  drop(2, handle);
                  expect_settled(false);
                }});
}

// R13: what the event overtook has its maker's reference until it is dead, so the evictor leaves it to its maker.
TEST_F(PoolModel, a_miss_against_an_invalidation_and_the_evictor) {
  cache(kA);
  pool_->invalidate(kA);
  pool_->progress(0);
  expect_right({{[&] { drop(0, hold(0, kA)); },
                 [&] {
                   pool_->invalidate(kA);
                   pool_->evict(1);
                 }},
                [&] { expect_settled(false); }});
}

// What is held when an insert displaces it is linked outside of the index, and ends with its last drop.
TEST_F(PoolModel, a_hit_against_an_insert_that_displaces_it) {
  cache(kA);
  expect_right({{[&] { hit_and_drop(0); }, [&] { use_two_pages(1); }}, [&] { expect_settled(false); }});
}

// R12, grdma/G6.
TEST_F(PoolModel, an_event_reaches_what_an_insert_displaces_while_it_is_held) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { use_two_pages(1); }, [&] { pool_->invalidate(kA); }}, [&] {
                  drop(0, handle);
                  const Device::Entry& entry = pool_->entry(kA);
                  require(entry.given_back == 1 && entry.invalidated == 1, "an event did not reach it");
                  expect_settled(false);
                }});
}

TEST_F(PoolModel, the_evictor_against_an_insert_that_displaces_its_victim) {
  cache(kA);
  expect_right({{[&] { pool_->evict(0); }, [&] { use_two_pages(1); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, an_invalidation_against_an_insert_that_displaces) {
  cache(kA);
  expect_right({{[&] { invalidate_and_drain(0); }, [&] { use_two_pages(1); }}, [&] { expect_settled(false); }});
}

TEST_F(PoolModel, a_drop_against_an_insert_that_displaces_it_and_the_gc) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { use_two_pages(1); }, [&] { pool_->progress(2); }},
                [&] { expect_settled(false); }});
}

// R12, R1: what bypasses the cache ends with its last drop, and an event that comes before only marks it.
TEST_F(PoolModel, a_drop_of_what_bypasses_the_cache_against_an_event) {
  pinrail_handle_t first{};
  ASSERT_TRUE(pool_->take_uncached(0, kA, &first));
  ASSERT_FALSE(is_indexed(first.reg));
  expect_right({{[&] { drop(0, first); }, [&] { pool_->invalidate(kA); }}, [&] { expect_settled(true); }});
}

// One registration at a time: a miss evicts.
class LimitedModel : public PoolModel {
 protected:
  int64_t count_limit() const override { return 1; }
  void miss(int i, uintptr_t base) {
    pinrail_handle_t handle;
    if (pool_->take(i, base, &handle)) drop(i, handle);
  }
  void expect_all_settled() {
    expect_settled(false);
    Device::Entry& other = pool_->entry(kB);
    require(other.holders == 0 && other.given_back == other.registered, "an idle one can't be evicted");
  }
};

TEST_F(LimitedModel, a_miss_that_evicts_against_an_event_of_its_victim) {
  cache(kB);
  cache(kA);
  expect_right({{[&] { miss(0, kB); }, [&] { pool_->invalidate(kA); }}, [&] { expect_all_settled(); }});
}

TEST_F(LimitedModel, a_miss_that_evicts_against_a_hit_of_its_victim) {
  cache(kB);
  cache(kA);
  expect_right({{[&] { miss(0, kB); }, [&] { hit_and_drop(1); }}, [&] { expect_all_settled(); }});
}

TEST_F(LimitedModel, a_miss_that_evicts_against_events_of_both_ranges) {
  cache(kB);
  cache(kA);
  expect_right({{[&] { miss(0, kB); },
                 [&] {
                   pool_->invalidate(kB);
                   pool_->invalidate(kA);
                 }},
                [&] { expect_all_settled(); }});
}

TEST_F(LimitedModel, two_misses_that_evict) {
  cache(kB);
  cache(kA);
  expect_right({{[&] { miss(0, kB); }, [&] { miss(1, kA); }}, [&] { expect_all_settled(); }});
}

TEST_F(LimitedModel, a_miss_that_evicts_against_the_evictor_and_a_hit) {
  cache(kB);
  cache(kA);
  expect_right(
      {{[&] { miss(0, kB); }, [&] { pool_->evict(1); }, [&] { hit_and_drop(2); }}, [&] { expect_all_settled(); }});
}

// What is not kept: the last drop acts.
class UncachedModel : public PoolModel {
 protected:
  bool leave_pinned() const override { return false; }
  void expect_given_back() {
    pool_->progress(2);
    for (const Device::Entry* entry : {&pool_->entry(kA), &pool_->entry_of_two_pages(kA)}) {
      require(entry->holders == 0 && entry->given_back == entry->registered, "the last drop left it behind");
    }
    require(pool_->check() == nullptr, "an invariant of the pool is broken");
  }
};

TEST_F(UncachedModel, two_drops) {
  const pinrail_handle_t first = hold(0, kA), second = hold(1, kA);
  expect_right({{[&] { drop(0, first); }, [&] { drop(1, second); }}, [&] { expect_given_back(); }});
}

TEST_F(UncachedModel, a_drop_against_a_hit) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { hit_and_drop(1); }}, [&] { expect_given_back(); }});
}

TEST_F(UncachedModel, a_drop_against_an_insert_that_displaces_it) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { use_two_pages(1); }}, [&] { expect_given_back(); }});
}

TEST_F(UncachedModel, a_drop_against_an_invalidation_and_the_gc) {
  const pinrail_handle_t handle = hold(0, kA);
  expect_right({{[&] { drop(0, handle); }, [&] { pool_->invalidate(kA); }, [&] { pool_->progress(2); }},
                [&] { expect_given_back(); }});
}

}  // namespace
}  // namespace pinrail::model
