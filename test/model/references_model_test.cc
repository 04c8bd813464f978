// SPDX-License-Identifier: BSD-3-Clause
// State words by themselves, two or three threads, every interleaving. The code of base/registration and base/hit is
// the real one; what stands around it is as few steps of the components as the question needs.
#include <gtest/gtest.h>

#include <memory>

#include "base/hit/start_hints.h"
#include "test/model/explorer.h"
#include "test/model/real_threads.h"

namespace pinrail {
namespace {

using model::expect_right;
using model::require;

class ReferencesModel : public ::testing::Test {
 protected:
  void SetUp() override {
    thread::forget_all_threads();
    thread::new_thread()->spare_count = UINT32_MAX;  // what is freed would become a spare of one thread
    reg_ = make(state::kIndexed | state::kQuick);
    handle_ = {reg_, generation_of(reg_)};
    model::call(&reg_->state, "state");
  }

  // Idle, with these flags.
  static pinrail_registration_t* make(uint64_t flags) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_TRUE(arena::allocate(0, 0, &reg).ok());
    state::publish(reg, flags & ~state::kTransient);
    EXPECT_NE(drop({reg, generation_of(reg)}), Drop::stale);
    uint64_t word = state::load(reg);
    EXPECT_TRUE(state::exchange(reg, &word, word | flags));
    return reg;
  }
  // From the beginning on.
  void hold(int references = 1) {
    for (int i = 0; i < references; ++i) ASSERT_TRUE(take(reg_, state::load(reg_)));
    holders_ += references;
  }

  // base/hit/recent.h, take(); vma_index.cc, find_and_take_locked().
  bool hit_quickly() { return taken(take_quick(reg_, handle_.generation)); }
  bool hit() { return taken(take(reg_, state::load(reg_))); }
  bool taken(bool is_taken) {
    if (!is_taken) return false;
    ++holders_;
    require(given_back_ == 0, "a reference was taken to what was given back");
    contents_.store(1, std::memory_order_relaxed);  // the holder uses the memory
    model::pause();
    return true;
  }

  // api_call.cc, pinrail_mpool_deregister(); engine.h, deregister().
  Drop drop_one() {
    --holders_;
    return drop_again();
  }
  Drop drop_again() {
    if (drop_quick(handle_)) return Drop::done;
    const Drop dropped = drop(handle_);
    if (dropped == Drop::last) give_back();
    return dropped;
  }
  void let_go() { require(drop_one() != Drop::stale, "a good handle was refused"); }
  void hit_and_drop() {
    if (hit_quickly()) let_go();
  }

  // pool_registrations.h, retire_next().
  void evict() {
    if (retire(reg_, state::load(reg_))) give_back();
  }
  // grdma_invalidate_hook.cc, kill_batch_hook().
  void event() {
    if (kill(reg_) == Killed::owned) give_back();
  }

  void give_back() {
    require(holders_ == 0, "it was given back while it is held");
    require(++given_back_ == 1, "it was given back twice");
    seen_ = contents_.load(std::memory_order_relaxed);
  }

  // Nothing is lost or left behind.
  void expect_settled() {
    require(holders_ == 0, "the scenario forgot a reference");
    const uint64_t word = state::load(reg_);
    require(state::references(word) == 0, "the count is not 0 in the end");
    constexpr uint64_t kPhase = state::kIndexed | state::kDead | state::kLast;
    require((word & kPhase) == (given_back_ != 0 ? state::kDead | state::kLast : state::kIndexed),
            "the phase is wrong in the end");
  }
  void expect_given_back() {
    expect_settled();
    require(given_back_ == 1, "it was not given back");
  }

  pinrail_registration_t* reg_ = nullptr;
  pinrail_handle_t handle_{};
  std::atomic<int> contents_{0};  // of the memory
  int seen_ = 0;                  // by the owner
  int holders_ = 0;
  int given_back_ = 0;
};

// A case: how it ends, what comes before the threads start, and what each of them does.
#define SETTLES(Model, name, expect_end, before, ...)     \
  TEST_F(Model, name) {                                   \
    before;                                               \
    expect_right({{__VA_ARGS__}, [&] { expect_end(); }}); \
  }
#define DOES(step) [&] { step; }

SETTLES(ReferencesModel, a_hit_against_the_evictor, expect_settled, , DOES(hit_and_drop()), DOES(evict()))
SETTLES(ReferencesModel, two_hits_against_the_evictor, expect_settled, , DOES(hit_and_drop()),
        DOES(if (hit()) let_go()), DOES(evict()))
SETTLES(ReferencesModel, hits_one_after_the_other_against_two_evictors, expect_settled, ,
        DOES((hit_and_drop(), hit_and_drop())), DOES(evict()), DOES(evict()))
SETTLES(ReferencesModel, the_evictor_against_an_event, expect_given_back, , DOES(evict()), DOES(event()))
SETTLES(ReferencesModel, an_event_against_another_event_and_a_hit, expect_given_back, , DOES(hit_and_drop()),
        DOES(event()), DOES(event()))
// registration/S2: the event or the last of the drops owns it.
SETTLES(ReferencesModel, two_drops_against_an_event, expect_given_back, hold(2), DOES(let_go()), DOES(let_go()),
        DOES(event()))
SETTLES(ReferencesModel, a_drop_and_a_hit_against_an_event, expect_given_back, hold(), DOES(let_go()),
        DOES(hit_and_drop()), DOES(event()))
SETTLES(ReferencesModel, a_drop_against_an_event_and_the_evictor, expect_given_back, hold(), DOES(let_go()),
        DOES(event()), DOES(evict()))

TEST_F(ReferencesModel, dropped_on_another_thread_against_the_evictor) {
  std::atomic<bool> handed{false};
  expect_right({{[&] {
                   if (hit_quickly()) handed.store(true, std::memory_order_release);
                 },
                 [&] {
                   if (handed.load(std::memory_order_acquire)) let_go();
                 },
                 [&] { evict(); }},
                [&] {
                  if (holders_ != 0) let_go();
                  expect_settled();
                }});
}

// What a holder did with the memory comes before the device gives it back.
TEST_F(ReferencesModel, the_owner_sees_what_a_holder_wrote) {
  bool was_hit = false;
  expect_right({{[&] {
                   was_hit = hit_quickly();
                   if (was_hit) let_go();
                 },
                 [&] { evict(); }},
                [&] {
                  if (given_back_ == 0) evict();
                  require(seen_ == (was_hit ? 1 : 0), "the owner does not see what a holder wrote");
                }});
}

// registration/S1: one reference fits.
TEST_F(ReferencesModel, two_hits_of_an_almost_full_count) {
  uint64_t word = state::load(reg_);
  ASSERT_TRUE(state::exchange(reg_, &word, word + (state::kMaxReferences - 1) * state::kOne));
  int hits = 0;
  expect_right({{[&] { hits += hit_quickly() ? 1 : 0; }, [&] { hits += hit() ? 1 : 0; }}, [&] {
                  require(hits == 1, "other than one reference fitted");
                  require(references_of(reg_) == state::kMaxReferences, "the count is wrong");
                }});
}

// A program's double release.
TEST_F(ReferencesModel, a_handle_is_spent_by_two_threads) {
  hold();
  holders_ = 0;
  int good = 0;
  const auto spend = [&] { good += drop_again() != Drop::stale ? 1 : 0; };
  expect_right({{spend, spend}, [&] {
                  require(good == 1, "one handle was good for other than one drop");
                  expect_settled();
                }});
}

TEST_F(ReferencesModel, a_handle_is_spent_by_two_threads_while_a_third_one_hits) {
  hold();
  holders_ = 0;
  int good = 0, hits = 0;
  const auto spend = [&] { good += drop_again() != Drop::stale ? 1 : 0; };
  expect_right({{spend, spend,
                 [&] {
                   if (!take_quick(reg_, handle_.generation)) return;
                   ++hits;
                   spend();
                 }},
                [&] {
                  require(good == 1 + hits, "other than as many drops were good as references were taken");
                  require(references_of(reg_) == 0, "the count is not 0 in the end");
                }});
}

// What is not kept ends with its last reference.
class TransientModel : public ReferencesModel {
 protected:
  void SetUp() override {
    ReferencesModel::SetUp();
    reg_ = make(state::kIndexed | state::kQuick | state::kTransient);
    handle_ = {reg_, generation_of(reg_)};
    model::call(&reg_->state, "state");
  }
};

SETTLES(TransientModel, the_last_of_two_drops_acts_once, expect_given_back, hold(2), DOES(let_go()), DOES(let_go()))
SETTLES(TransientModel, a_last_drop_against_a_hit_and_an_event, expect_given_back, hold(), DOES(let_go()),
        DOES(hit_and_drop()), DOES(event()))

// Memory that serves another range afterwards: hints may be of the earlier one.
class ReuseModel : public ReferencesModel {
 protected:
  static constexpr uintptr_t kA = 0x10000, kB = 0x90000, kLength = 0x1000;

  void SetUp() override {
    ReferencesModel::SetUp();
    set_range(reg_, Span::of(kA, kLength), pool(), 0);
    hints_.remember(arena::chunks(), reg_, kHash, [](const pinrail_registration_t*, uint64_t) { return true; });
  }
  pinrail_mpool_t* pool() { return reinterpret_cast<pinrail_mpool_t*>(this); }

  void check_taken(pinrail_handle_t handle) {
    require(life_ == 1, "a reference was taken to the registration that uses the memory now");
    require(reinterpret_cast<uintptr_t>(handle.reg->base) == kA, "it is of another range");
    model::pause();
    require(drop_quick(handle) || drop(handle) != Drop::stale, "a good handle was refused");
  }
  // base/hit/recent.h
  void hit_by_recent_request() {
    if (take_quick(reg_, handle_.generation)) check_taken(handle_);
  }
  // base/hit/start_hints.h, find()
  void hit_by_hint() {
    hints_.find(arena::chunks(), kHash, [&](pinrail_registration_t* reg, uint64_t word) {
      const uint64_t generation = state::generation(word);
      if (!start_hints::is_answer(reg, pool(), Span::of(kA, kLength), 0) || !take_quick(reg, generation)) return false;
      check_taken({reg, generation});
      return true;
    });
  }
  // The same, but for what is not quick: the pool takes it with the word that it has loaded.
  void hit_by_hint_of_pool() {
    hints_.find(arena::chunks(), kHash, [&](pinrail_registration_t* reg, uint64_t word) {
      if (!start_hints::is_answer(reg, pool(), Span::of(kA, kLength), 0) || !take(reg, word)) return false;
      check_taken({reg, state::generation(word)});
      return true;
    });
  }

  // registration_arena.cc, free() and allocate(); grdma_device.cc, make(); and the index's publish().
  void evict_and_reuse() {
    if (!retire(reg_, state::load(reg_))) return;
    life_ = 0;
    state::renew(reg_);
    set_range(reg_, {}, nullptr, 0);
    set_range(reg_, Span::of(kB, kLength), pool(), 0);
    life_ = 2;
    state::publish(reg_, state::kIndexed | state::kQuick);
    require(drop({reg_, generation_of(reg_)}) == Drop::done, "its maker's reference was not there");
  }
  void expect_unused() { require(references_of(reg_) == 0, "the count is not 0 in the end"); }

  static constexpr uint64_t kHash = 0x9E3779B97F4A7C15u;
  Hints::Line lines_[1] = {};
  Hints hints_{lines_, 1};
  int life_ = 1;
};

SETTLES(ReuseModel, a_recent_request_finds_the_memory_in_its_next_life, expect_unused, , DOES(hit_by_recent_request()),
        DOES(evict_and_reuse()))
SETTLES(ReuseModel, a_hint_finds_the_memory_in_its_next_life, expect_unused, , DOES(hit_by_hint()),
        DOES(evict_and_reuse()))
SETTLES(ReuseModel, a_hint_of_a_pool_finds_the_memory_in_its_next_life, expect_unused, , DOES(hit_by_hint_of_pool()),
        DOES(evict_and_reuse()))
SETTLES(ReuseModel, two_hints_find_the_memory_in_its_next_life, expect_unused, , DOES(hit_by_hint()),
        DOES(hit_by_recent_request()), DOES(evict_and_reuse()))

// A drop that comes too late, of a handle that was spent.
TEST_F(ReuseModel, a_spent_handle_drops_nothing_of_the_next_life) {
  expect_right({{[&] {
                   if (!take_quick(reg_, handle_.generation)) return;
                   require(drop_quick(handle_) || drop(handle_) != Drop::stale, "a good handle was refused");
                   require(!drop_quick(handle_) && drop(handle_) == Drop::stale, "a spent handle was good");
                 },
                 [&] { evict_and_reuse(); }},
                [&] { expect_unused(); }});
}

// R10: a pool that is destroyed by force gives what is held back to the device at once; its last drop frees the memory.
class OrphanModel : public ReferencesModel {
 protected:
  // engine.h, release_all() and release_one().
  void destroy() {
    if (!seize(reg_)) return;
    require(++given_back_ == 1, "it was given back twice");
    if (disown(reg_)) free_it();
  }
  // grdma_invalidate_hook.cc; the gc list is drained by destroy(), which owns what hooks own.
  void event_of_destroyed() {
    if (kill(reg_) != Killed::owned) return;
    require(++given_back_ == 1, "it was given back twice");
    free_it();
  }
  // api_call.cc, deregister_by_pool().
  void drop_orphan() {
    --holders_;
    require(!drop_quick(handle_), "a quick drop of an orphan");
    require((state::load(reg_) & state::kOrphan) != 0, "the drop would ask a pool that is gone");
    const Drop dropped = drop(handle_);
    require(dropped != Drop::stale, "a good handle was refused");
    if (dropped == Drop::last) free_it();
  }
  // engine.h, after_drop(), and if the pool has let go of it api_call.cc: at any time of the destruction.
  void drop_held() {
    --holders_;
    const Drop dropped = drop(handle_);
    require(dropped != Drop::stale, "a good handle was refused");
    if (dropped != Drop::last) return;
    if ((state::load(reg_) & state::kOrphan) == 0) require(++given_back_ == 1, "it was given back twice");
    free_it();
  }
  void free_it() {
    require(holders_ == 0, "it was freed while it is held");
    require(++freed_ == 1, "it was freed twice");
  }
  void expect_freed() { require(given_back_ == 1 && freed_ == 1, "it was not given back and freed"); }

  int freed_ = 0;
};

SETTLES(OrphanModel, two_drops_after_the_destruction, expect_freed, (hold(2), destroy()), DOES(drop_orphan()),
        DOES(drop_orphan()))
SETTLES(OrphanModel, the_destruction_against_the_drops_of_what_is_dead, expect_freed, (hold(2), kill(reg_)),
        DOES(destroy()), DOES(drop_held()), DOES(drop_held()))
SETTLES(OrphanModel, the_destruction_against_an_event, expect_freed, , DOES(destroy()), DOES(event_of_destroyed()))

TEST_F(OrphanModel, a_hit_by_a_stale_request_against_the_last_drop) {
  hold();
  destroy();
  expect_right({{[&] { drop_orphan(); },
                 [&] { require(!take_quick(reg_, handle_.generation), "a reference of an orphan was taken"); }},
                [&] { expect_freed(); }});
}

TEST_F(OrphanModel, the_destruction_against_an_event_of_what_is_held) {
  hold();
  expect_right({{[&] { destroy(); }, [&] { event_of_destroyed(); }}, [&] {
                  require(freed_ == 0, "it was freed while it is held");
                  drop_orphan();
                  expect_freed();
                }});
}

}  // namespace
}  // namespace pinrail
