// SPDX-License-Identifier: BSD-3-Clause
// References and state words by themselves, two or three threads, every interleaving under x86's store order. The code
// of base/core is the real one; what stands around it is as few steps of the components as the question needs.
#include <gtest/gtest.h>

#include <memory>

#include "test/model/check.h"
#include "test/model/real_threads.h"

namespace pinrail {
namespace {

using model::expect_right;
using model::require;

class ReferencesModel : public ::testing::Test {
 protected:
  void SetUp() override {
    thread::forget_all_threads();
    for (auto& thread : threads_) {
      thread = thread::new_thread();
      ASSERT_NE(thread, nullptr);
      if (!thread::has_ref_slots(thread)) GTEST_SKIP() << "no membarrier here: there are no ref_slots";
    }
    reg_ = make(PINRAIL_COUNTING_THREADS);
    for (int i = 0; i < 3; ++i) {
      model::call(references::near_ref_slot(threads_[i], reg_), "near reference slot of " + std::to_string(i));
      model::call(references::far_ref_slot(threads_[i], reg_), "far reference slot of " + std::to_string(i));
    }
    model::call(&reg_->state, "state");
    model::call(&cache_mutex_, "cache lock");
  }

  static pinrail_registration_t* make(pinrail_counting_t counting) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, counting, &reg).ok());
    state::set(reg, state::kIndexed | (counting == PINRAIL_COUNTING_THREADS ? state::kPerThread : 0));
    return reg;
  }

  // vma_find.cc, acquire(), of an index that has one entry.
  bool hit(int i) {
    if (!references::take(threads_[i], reg_, state::load(reg_))) return false;
    taken();
    return true;
  }
  // vma_index.cc, take_locked(): breaks a claim.
  bool hit_surely(int i) {
    const uint64_t word = state::load(reg_);
    if (!references::take(threads_[i], reg_, word) && !references::take_revoking_claim(threads_[i], reg_, word))
      return false;
    taken();
    return true;
  }
  void taken() {
    ++holders_;
    require(given_back_ == 0, "a reference was taken to what was given back");
    model::pause();
  }

  // grdma_deregister.cc, deregister() and drop_elsewhere(); the state afterwards.
  uint64_t drop(int i) {
    --holders_;
    if (references::drop_own(threads_[i], reg_)) return state::load(reg_);
    return references::drop_counted(threads_[i], reg_);
  }

  // grdma_eviction_list.cc, claim_next_locked() and take_ready_locked(), of a list that has one entry.
  void evict() {
    Guard guard(cache_mutex_);
    uint64_t word = state::load(reg_);
    do {
      if ((word & state::kIndexed) == 0) return;
    } while (!state::exchange(reg_, &word, word | state::kEvictClaim));
    if (sum() > 0) return revoke_claim();
    word = state::load(reg_);
    while ((word & state::kEvictClaim) != 0) {
      if (!state::exchange(reg_, &word, (word & ~(state::kIndexed | state::kEvictClaim)) | state::kDead)) continue;
      return give_back();
    }
  }
  void revoke_claim() {
    uint64_t word = state::load(reg_);
    while ((word & state::kEvictClaim) != 0 && !state::exchange(reg_, &word, word & ~state::kEvictClaim)) {
    }
  }
  int64_t sum() {
    int64_t sum;
    references::sum(&reg_, 1, PINRAIL_SUM_NOW, &sum);
    return sum;
  }

  void give_back() {
    require(holders_ == 0, "it was given back while it is held");
    require(++given_back_ == 1, "it was given back twice");
  }

  // Nothing is lost or left behind.
  void expect_settled() {
    require(holders_ == 0, "the scenario forgot a reference");
    require(sum() == 0, "the sum of the references is not 0 in the end");
    const uint64_t phase = state::load(reg_) & (state::kIndexed | state::kDead | state::kEvictClaim);
    require(phase == (given_back_ != 0 ? state::kDead : state::kIndexed), "the phase is wrong in the end");
  }

  pinrail_thread_t* threads_[3] = {};
  pinrail_registration_t* reg_ = nullptr;
  Mutex cache_mutex_{LockRank::cache};
  int holders_ = 0;
  int given_back_ = 0;
};

TEST_F(ReferencesModel, a_hit_against_the_evictor) {
  expect_right({{[&] {
                   if (hit(0)) drop(0);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

TEST_F(ReferencesModel, two_hits_against_the_evictor) {
  expect_right({{[&] {
                   if (hit(0)) drop(0);
                 },
                 [&] {
                   if (hit(1)) drop(1);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

TEST_F(ReferencesModel, hits_one_after_the_other_against_two_evictors) {
  expect_right({{[&] {
                   for (int i = 0; i < 2; ++i) {
                     if (hit(0)) drop(0);
                   }
                 },
                 [&] { evict(); }, [&] { evict(); }},
                [&] { expect_settled(); }});
}

// The reference slot of the thread that drops goes below 0.
TEST_F(ReferencesModel, dropped_on_another_thread_against_the_evictor) {
  std::atomic<bool> handed{false};
  expect_right({{[&] {
                   if (hit(0)) handed.store(true, std::memory_order_release);
                 },
                 [&] {
                   if (handed.load(std::memory_order_acquire)) drop(1);
                 },
                 [&] { evict(); }},
                [&] {
                  if (holders_ != 0) drop(1);
                  expect_settled();
                }});
}

TEST_F(ReferencesModel, a_broken_claim_against_the_claim) {
  expect_right({{[&] {
                   if (hit_surely(0)) drop(0);
                 },
                 [&] {
                   if (hit_surely(1)) drop(1);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

// C3: the thread that took it ends, another one drops.
TEST_F(ReferencesModel, a_thread_ends_while_its_slots_are_summed) {
  bool kept = false;
  expect_right({{[&] {
                   kept = hit(0);
                   thread::end_of(threads_[0]);
                 },
                 [&] { evict(); }},
                [&] {
                  if (kept) drop(1);
                  expect_settled();
                }});
}

TEST_F(ReferencesModel, a_thread_ends_while_another_one_drops_and_a_third_one_sums) {
  std::atomic<bool> handed{false};
  expect_right({{[&] {
                   if (hit(0)) handed.store(true, std::memory_order_release);
                   thread::end_of(threads_[0]);
                 },
                 [&] {
                   if (handed.load(std::memory_order_acquire)) drop(1);
                 },
                 [&] { evict(); }},
                [&] {
                  if (holders_ != 0) drop(1);
                  expect_settled();
                }});
}

TEST_F(ReferencesModel, the_thread_that_dropped_ends) {
  references::take(threads_[0], reg_, state::load(reg_));
  holders_ = 1;
  expect_right({{[&] {
                   drop(1);
                   thread::end_of(threads_[1]);
                 },
                 [&] {
                   if (hit(2)) drop(2);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

// C2: the near place is another registration's, so the far one counts; or both are, and the state word does.
TEST_F(ReferencesModel, a_taken_slot_sends_the_count_to_the_far_one) {
  const auto other = reinterpret_cast<pinrail_registration_t*>(reinterpret_cast<uintptr_t>(reg_) ^ 0x100);
  *references::near_ref_slot(threads_[0], reg_) = references::tag_of(other) | 1;
  expect_right({{[&] {
                   if (hit(0)) drop(0);
                 },
                 [&] {
                   if (hit(1)) drop(1);
                 },
                 [&] { evict(); }},
                [&] {
                  expect_settled();
                  require(references::names(*references::near_ref_slot(threads_[0], reg_), other),
                          "a reference slot was overwritten");
                }});
}

// One reference stands in the far reference slot, the next ones in the near one: the sum needs both.
TEST_F(ReferencesModel, counts_in_both_slots_add_up) {
  const auto other = reinterpret_cast<pinrail_registration_t*>(reinterpret_cast<uintptr_t>(reg_) ^ 0x100);
  *references::near_ref_slot(threads_[0], reg_) = references::tag_of(other) | 1;
  ASSERT_TRUE(hit(0));
  *references::near_ref_slot(threads_[0], reg_) = references::tag_of(other);
  expect_right({{[&] {
                   const bool again = hit(0);
                   drop(0);
                   if (again) drop(0);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

TEST_F(ReferencesModel, taken_slots_send_the_count_to_the_state_word) {
  const auto other = reinterpret_cast<pinrail_registration_t*>(reinterpret_cast<uintptr_t>(reg_) ^ 0x100);
  *references::near_ref_slot(threads_[0], reg_) = *references::far_ref_slot(threads_[0], reg_) =
      references::tag_of(other) | 1;
  expect_right({{[&] {
                   if (hit(0)) drop(0);
                 },
                 [&] {
                   if (hit(1)) drop(1);
                 },
                 [&] { evict(); }},
                [&] { expect_settled(); }});
}

// C5: dead and held. grdma_gc.cc, give_back_idle() and put_in_limbo(); grdma_deregister.cc, deregister() and
// finish_dead().
class DeadModel : public ReferencesModel {
 protected:
  void die_and_sum() {
    uint64_t before;
    require(kill(reg_, &before), "it was dead already");
    if (sum() <= 0 || settle(PINRAIL_DEAD_HELD) == 1) give_back();
  }
  void drop_dead(int i) {
    --holders_;
    if ((state::load(reg_) & state::kSummed) != 0) {
      const int dropped = settle(PINRAIL_DEAD_DROP);
      require(dropped >= 0, "a good handle was refused");
      if (dropped == 1) give_back();
      return;
    }
    if (!references::drop_own(threads_[i], reg_)) references::count_surely(threads_[i], reg_, -1);
    if ((state::load(reg_) & state::kDead) != 0 && settle(PINRAIL_DEAD_DROPPED) == 1) give_back();
  }
  int settle(pinrail_dead_t what) { return references::settle_dead({reg_, generation_of(reg_)}, what); }

  // grdma_gc.cc, recheck_limbo(): after a find has rolled back its count.
  void expect_given_back() {
    require(holders_ == 0, "the scenario forgot a reference");
    if (given_back_ == 0 && settle(PINRAIL_DEAD_DROPPED) == 1) give_back();
    require(given_back_ == 1, "it was not given back");
    require(sum() == 0, "the sum of the references is not 0 in the end");
  }
};

TEST_F(DeadModel, two_drops_while_it_is_summed) {
  ASSERT_TRUE(hit(0));
  ASSERT_TRUE(hit(1));
  expect_right({{[&] { drop_dead(0); }, [&] { drop_dead(1); }, [&] { die_and_sum(); }}, [&] {
                  require(given_back_ == 1, "the last of two drops was not known");
                  expect_given_back();
                }});
}

TEST_F(DeadModel, a_drop_and_a_refused_hit_while_it_is_summed) {
  ASSERT_TRUE(hit(0));
  expect_right({{[&] { drop_dead(0); },
                 [&] {
                   if (hit(1)) drop_dead(1);
                 },
                 [&] { die_and_sum(); }},
                [&] { expect_given_back(); }});
}

TEST_F(DeadModel, the_thread_that_took_it_ends_while_another_one_drops_and_it_is_summed) {
  ASSERT_TRUE(hit(0));
  expect_right({{[&] { thread::end_of(threads_[0]); }, [&] { drop_dead(1); }, [&] { die_and_sum(); }},
                [&] { expect_given_back(); }});
}

TEST_F(DeadModel, a_thread_that_dropped_more_than_it_took_ends_while_it_is_summed) {
  ASSERT_TRUE(hit(0));
  ASSERT_TRUE(hit(0));
  drop(1);
  expect_right({{[&] { thread::end_of(threads_[1]); }, [&] { drop_dead(0); }, [&] { die_and_sum(); }},
                [&] { expect_given_back(); }});
}

TEST_F(DeadModel, a_drop_without_slots_while_it_is_summed) {
  ASSERT_TRUE(hit(0));
  ASSERT_TRUE(hit(0));
  threads_[1]->ref_slots = thread::no_ref_slots.ref_slots;
  expect_right({{[&] { drop_dead(0); }, [&] { drop_dead(1); }, [&] { die_and_sum(); }}, [&] { expect_given_back(); }});
}

// vma_find.cc, acquire(), against memory that serves another registration: the slot says which one is indexed, and
// a thread that finds the memory in it may take the present registration, never the next one.
class ReuseModel : public ReferencesModel {
 protected:
  void stale_hit(int i) {
    pinrail_registration_t* reg = slot_.load(std::memory_order_acquire);
    if (reg == nullptr) return;
    const uint64_t word = state::load(reg);
    if (slot_.load(std::memory_order_acquire) != reg || version_.load(std::memory_order_acquire) != 0) return;
    if (!references::take(threads_[i], reg, word)) return;
    ++holders_;
    require(life_ == 1, "a reference was taken to the registration that uses the memory now");
    model::pause();
    drop(i);
  }

  // The evictor's claim, then rcache's remove, registration_arena.cc's free() and allocate(), and publish().
  void evict_and_reuse() {
    evict();
    if (given_back_ == 0) return;
    version_.store(1, std::memory_order_release);
    slot_.store(nullptr, std::memory_order_release);
    life_ = 0;
    state::renew(reg_);
    state::set(reg_, state::kPerThread);
    life_ = 2;
    state::set(reg_, state::kPerThread | state::kIndexed);
    slot_.store(reg_, std::memory_order_release);
  }

  std::atomic<pinrail_registration_t*> slot_{nullptr};
  std::atomic<uint64_t> version_{0};
  int life_ = 1;
};

TEST_F(ReuseModel, a_late_hit_finds_the_memory_in_its_next_life) {
  slot_ = reg_;
  expect_right({{[&] { stale_hit(0); }, [&] { evict_and_reuse(); }},
                [&] { require(holders_ == 0 && sum() == 0, "the sum of the references is not 0 in the end"); }});
}

TEST_F(ReuseModel, two_late_hits_find_the_memory_in_its_next_life) {
  slot_ = reg_;
  expect_right({{[&] { stale_hit(0); }, [&] { stale_hit(1); }, [&] { evict_and_reuse(); }},
                [&] { require(holders_ == 0 && sum() == 0, "the sum of the references is not 0 in the end"); }});
}

TEST_F(ReuseModel, a_late_hit_without_slots_finds_the_memory_in_its_next_life) {
  slot_ = reg_;
  threads_[0]->ref_slots = thread::no_ref_slots.ref_slots;
  expect_right({{[&] { stale_hit(0); }, [&] { evict_and_reuse(); }},
                [&] { require(holders_ == 0 && sum() == 0, "the sum of the references is not 0 in the end"); }});
}

// Counted in the state word: registration/S2.
class SharedModel : public ReferencesModel {
 protected:
  void SetUp() override {
    ReferencesModel::SetUp();
    if (IsSkipped()) return;
    reg_ = make(PINRAIL_COUNTING_SHARED);
    model::call(&reg_->state, "state");
    handle_ = {reg_, generation_of(reg_)};
  }

  void take_one() {
    ASSERT_TRUE(try_acquire(reg_, state::load(reg_)));
    ++holders_;
  }

  bool hit_shared() {
    if (!try_acquire(reg_, state::load(reg_))) return false;
    taken();
    return true;
  }

  // grdma_deregister.cc, drop_in_word().
  Drop drop_shared_one() {
    uint64_t word;
    const Drop dropped = drop_shared(handle_, &word);
    if (dropped != Drop::was_last) return dropped;
    if ((word & state::kIndexed) != 0 && !claim(reg_, word)) return dropped;
    give_back_and_renew();
    return dropped;
  }

  // grdma_invalidate_hook.cc, kill_batch_hook(); the gc gives it back.
  void die() {
    uint64_t before;
    if (kill(reg_, &before) && state::references(before) == 0) give_back_and_renew();
  }

  void give_back_and_renew() {
    give_back();
    state::renew(reg_);
  }

  // Given back, or idle in the index: the second drop of a spent handle may get between the last drop and its claim,
  // and then the next last drop gives it back.
  void expect_settled_shared() {
    const uint64_t word = state::load(reg_);
    require(state::references(word) == 0, "the count is not 0 in the end");
    require((given_back_ == 0) == ((word & state::kIndexed) != 0), "it is neither given back nor indexed");
  }

  pinrail_handle_t handle_{};
};

TEST_F(SharedModel, the_last_of_two_drops_acts_once) {
  take_one();
  take_one();
  const auto let_go = [&] {
    --holders_;
    require(drop_shared_one() != Drop::stale, "a good handle was refused");
  };
  expect_right({{let_go, let_go}, [&] { require(given_back_ == 1, "it was not given back"); }});
}

TEST_F(SharedModel, last_drop_hit_and_invalidation) {
  take_one();
  const auto let_go = [&] {
    --holders_;
    require(drop_shared_one() != Drop::stale, "a good handle was refused");
  };
  expect_right({{let_go,
                 [&] {
                   if (hit_shared()) let_go();
                 },
                 [&] { die(); }},
                [&] { require(given_back_ == 1, "it was not given back"); }});
}

TEST_F(SharedModel, a_handle_is_spent_by_two_threads) {
  take_one();
  int good = 0;
  holders_ = 0;
  const auto spend = [&] {
    if (drop_shared_one() != Drop::stale) ++good;
  };
  expect_right({{spend, spend}, [&] {
                  require(good == 1, "one handle was good for other than one drop");
                  expect_settled_shared();
                }});
}

TEST_F(SharedModel, a_handle_is_spent_by_two_threads_while_a_third_one_hits) {
  take_one();
  holders_ = 0;
  int good = 0, hits = 0;
  const auto spend = [&] {
    if (drop_shared_one() != Drop::stale) ++good;
  };
  expect_right({{spend, spend,
                 [&] {
                   if (!try_acquire(reg_, state::load(reg_))) return;
                   ++hits;
                   if (drop_shared_one() != Drop::stale) ++good;
                 }},
                [&] {
                  require(good == 1 + hits, "other than as many drops were good as references were taken");
                  expect_settled_shared();
                }});
}

}  // namespace
}  // namespace pinrail
