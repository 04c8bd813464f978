// SPDX-License-Identifier: BSD-3-Clause
// pool_cache.h - what the pools of one cache name share: the budget, and whose turn it is to be evicted.
//
// Owns     itself, as long as it has pools. Not the pools, not the registrations.
// Threads  all functions of Cache may run together; their caller holds no lock of the rank `cache` or above. API
//          context, never a hook. No registrar is called here. The calling thread may hold references.
//
// The budget counts every registration that the device knows: from before its register_mem until after its
// deregister_mem. It does not count a victim whose place another one of its pool has taken; that one is deregistered
// before the other is registered. A pool is not destroyed while a call into another pool of the cache has one of its
// registrations, or drains it: Member::visitors counts these, from under the cache lock on.
#ifndef PINRAIL_FRAMEWORK_MPOOL_POOL_CACHE_H
#define PINRAIL_FRAMEWORK_MPOOL_POOL_CACHE_H

#include <pinrail/component_mpool.h>

#include <chrono>
#include <utility>
#include <vector>

#include "base/core/span.h"
#include "base/core/status.h"
#include "framework/mpool/gc_list.h"
#include "framework/mpool/params.h"
#include "framework/mpool/pool_registrations.h"

namespace pinrail::mpool {

// relaxed: a statistic that is counted under one lock only.
inline void count_one_hook(std::atomic<uint64_t>* counter) {
  counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

// What a cache knows of each of its pools.
struct Member {
  Member(uint64_t gc_limit, bool is_of_caller_only) : is_caller_only(is_of_caller_only), gc_list(gc_limit) {}

  bool has_dead() const { return !gc_list.is_empty(); }
  // Under the cache lock: whether calls into other pools of the cache may drain this one and evict from it.
  bool may_be_visited() const { return !is_closing && !is_caller_only; }
  // Such a call begins under the cache lock, and ends without it: from then on the pool may be gone. destroy() looks
  // again and again whether it has ended. release: pairs with the acquire there.
  void begin_visit() { visitors.fetch_add(1, std::memory_order_relaxed); }
  void end_visit() { visitors.fetch_sub(1, std::memory_order_release); }

  const bool is_caller_only;  // its registrar may only be called inside calls into this pool
  bool is_closing = false;    // cache lock
  uint16_t number = 0;        // in the cache
  std::atomic<uint64_t> visitors{0};
  std::atomic<uint64_t> evictions{0};  // counted under the cache lock
  GcList gc_list;
};

// What is in a cache beside the registration of a request. If nothing was held before the registrar refused that one,
// nor afterwards, and nothing was added meanwhile, it was for no lack that others cause: OUT_OF_RESOURCE, not
// TEMP_OUT_OF_RESOURCE (R7).
struct Others {
  bool are_held = true;  // any is referenced, pending or being given back
  uint64_t added = 0;    // how often a registration was added
};

// What is to be evicted: dead, and the caller's.
struct Victim {
  pinrail_registration_t* reg = nullptr;
  Member* owner = nullptr;
};

// How a request for a place in the budget ended.
enum class Admission : uint8_t {
  admitted,      // it has its place. If there is a victim, it has lost its own, and is to be deregistered first
  evict_first,   // there is a victim: when it was given back there may be room
  release_near,  // there is no room, but something is dead or is being given back
  all_held,      // there is no room, and evicting would not make enough, or others take what it makes (R7)
  out_of_reach,  // the same, but what takes the room is idle in pools that this one may not evict from
  never          // it can never fit, or there is no memory
};

class Cache {
 public:
  Cache(const Limits& limits, char* const* chunks) : budget_(limits), limits_(limits), registrations_(chunks) {}

  const Limits& limits() const { return limits_; }
  // Whether a request may be refused because of what is registered already.
  bool may_refuse_bytes() const { return limits_.bytes != UINT64_MAX && !limits_.bounds_idle_only; }

  // OUT_OF_RESOURCE: there are too many pools. May throw bad_alloc.
  Status add_pool(Member* pool) EXCLUDES(mutex) {
    Guard guard(mutex);
    auto at = std::find(pools_.begin(), pools_.end(), nullptr);
    if (at == pools_.end()) {
      if (pools_.size() > UINT16_MAX) return PINRAIL_ERR_OUT_OF_RESOURCE;
      at = pools_.insert(at, nullptr);
    }
    *at = pool;
    pool->number = static_cast<uint16_t>(at - pools_.begin());
    return success();
  }
  void remove_pool(const Member* pool) EXCLUDES(mutex) {
    Guard guard(mutex);
    pools_[pool->number] = nullptr;
  }

  // What a request knows of its earlier tries.
  struct Tries {
    bool is_possible = false;       // evicting would make enough room, as far as that could be seen
    bool ignores_releases = false;  // neither a drain nor waiting has helped
    uint64_t added = UINT64_MAX;    // at the last try
    size_t left = 0;                // how many more it makes between which others are given room
  };
  // Asks for the registration's place in the budget, in one hold of the lock until it has its place.
  Admission admit(Member* asker, pinrail_registration_t* reg, Tries* tries, Victim* victim_out) EXCLUDES(mutex) {
    Guard guard(mutex);
    const uint64_t charge = charge_of(reg);
    if (!budget_.could_ever_hold(charge) || !registrations_.reserve(reg)) return Admission::never;
    if (budget_.has_room_for(charge)) {
      add_locked(reg);
      return Admission::admitted;
    }
    if (is_overtaken_locked(tries)) return exceed_or_locked(Admission::all_held, reg);
    const bool is_release_near = releasing_.load(std::memory_order_relaxed) != 0 || is_any_dead_locked(asker);
    if (is_release_near && !tries->ignores_releases) return Admission::release_near;
    // A call that has begun to evict goes on, although other calls may take the room that it makes.
    tries->is_possible = tries->is_possible || budget_.may_exceed() || could_fit_locked(asker, charge);
    if (!tries->is_possible) return without_victim_locked(reg);
    const Victim victim = retire_next_locked(asker, kAny);
    if (victim.reg == nullptr) return exceed_or_locked(without_victim_locked(reg), reg);
    *victim_out = victim;
    // If the victim left room over, others would use it before the device has deregistered the victim.
    const uint64_t freed = charge_of(victim.reg);
    if (victim.owner != asker || !budget_.has_room_instead_of(freed, charge)) {
      begin_release(1);
      return Admission::evict_first;
    }
    budget_.replace(freed, charge);
    registrations_.replace(victim.reg, reg, charge - freed);
    return Admission::admitted;
  }
  // Whether others have been given room between so many of the tries that the call gives up (R7).
  bool is_overtaken(Tries* tries) const EXCLUDES(mutex) {
    Guard guard(mutex);
    return is_overtaken_locked(tries);
  }
  // The same where nothing is evicted, and no more than most_bytes are taken.
  bool admit_as_it_is(pinrail_registration_t* reg, uint64_t most_bytes) EXCLUDES(mutex) {
    Guard guard(mutex);
    const bool is_free = reg->length <= most_bytes && budget_.usage().bytes <= most_bytes - reg->length;
    if (!is_free || !budget_.has_room_for(reg->length) || !registrations_.reserve(reg)) return false;
    add_locked(reg);
    return true;
  }
  // The reverse, once the device has deregistered what was being given back.
  void dismiss(pinrail_registration_t* const* regs, size_t count) EXCLUDES(mutex) {
    Guard guard(mutex);
    for (size_t i = 0; i < count; ++i) {
      budget_.remove(charge_of(regs[i]));
      registrations_.remove(regs[i]);
    }
    releasing_.fetch_sub(count, std::memory_order_relaxed);
    if (waiters_ != 0) released.notify_all();
  }

  // The next idle registration that is_wanted(reg), of the pools that a call into asker may evict from; none if none is
  // idle.
  template <typename IsWanted>
  Victim retire_next(Member* asker, IsWanted&& is_wanted) EXCLUDES(mutex) {
    Guard guard(mutex);
    const Victim victim = retire_next_locked(asker, is_wanted);
    if (victim.reg != nullptr) begin_release(1);
    return victim;
  }
  static constexpr auto kAny = [](const pinrail_registration_t*) { return true; };
  // The last reference of a registration was dropped that an evictor had found referenced.
  void unpark(pinrail_handle_t handle) EXCLUDES(mutex) {
    Guard guard(mutex);
    registrations_.unpark(handle);
  }

  // A thread gives registrations back: begin comes before they are deregistered, and dismiss() ends it. relaxed: others
  // look at it under the lock that dismiss() takes.
  void begin_release(size_t count) { releasing_.fetch_add(count, std::memory_order_relaxed); }
  // Sleeps up to 200 us, with the lock given back, if a thread is giving something back; false if none is. Bounded:
  // what came onto a gc list since the caller looked waits for a drain, perhaps by the caller.
  bool wait_for_release() EXCLUDES(mutex) {
    Guard guard(mutex);
    if (releasing_.load(std::memory_order_relaxed) == 0) return false;
    ++waiters_;
    released.wait_for(mutex, std::chrono::microseconds(200));
    --waiters_;
    return true;
  }

  Others others_than(const pinrail_registration_t* own) const EXCLUDES(mutex) {
    Guard guard(mutex);
    return {are_others_held_locked(own), budget_.usage().added};
  }
  Usage usage() const EXCLUDES(mutex) {
    Guard guard(mutex);
    return budget_.usage();
  }
  // Whether the limits would hold one more of that length if so many had left.
  bool has_room_without(uint64_t leaving_bytes, uint64_t leaving_count, uint64_t bytes) const EXCLUDES(mutex) {
    Guard guard(mutex);
    return budget_.could_ever_hold(bytes) && budget_.missing_bytes(bytes) <= leaving_bytes &&
           budget_.missing_count() <= leaving_count;
  }
  // Takes no lock, which may be held for ever in a forked child.
  uint64_t peak_bytes() const NO_THREAD_SAFETY_ANALYSIS { return budget_.peak_bytes(); }
  // Unique bytes of all registrations that the device knows, without those of all memory, which pin nothing. Allocates
  // without the lock, and again if the registrations have become too many meanwhile. counts_pending: their ranges are
  // set before the registrar is called, not by it. May throw bad_alloc.
  uint64_t pinned_bytes(bool counts_pending) const EXCLUDES(mutex) {
    std::vector<Span> spans;
    for (;;) {
      const size_t expected = usage().count;
      spans.clear();
      spans.reserve(expected + expected / 8 + 64);  // without the lock
      Guard guard(mutex);
      if (registrations_.size() > spans.capacity()) continue;
      for (size_t place = 0; place < registrations_.size(); ++place) {
        const pinrail_registration_t* const reg = registrations_.at(place);
        const bool is_pending = (state::load(reg) & (state::kIndexed | state::kDead)) == 0;
        if (charge_of(reg) != 0 && (counts_pending || !is_pending)) spans.push_back(span_of(reg));
      }
      break;
    }
    return union_length(&spans);
  }

  // Takes what is dead off the pool's gc list, at most so many: it is being given back from now on.
  size_t take_dead(Member* pool, pinrail_registration_t** regs_out, size_t most) EXCLUDES(mutex) {
    if (!pool->has_dead()) return 0;
    Guard guard(mutex);
    const size_t count = pool->gc_list.take_locked(regs_out, most);
    if (count != 0) begin_release(count);
    return count;
  }
  // As pool->has_dead(), while no other thread is taking what is dead.
  bool has_dead(const Member* pool) const EXCLUDES(mutex) {
    Guard guard(mutex);
    return pool->has_dead();
  }
  // The pools of the cache that have something dead and that a call into asker may drain; at most room. The caller ends
  // each one's visit.
  size_t visit_dead(const Member* asker, Member** pools_out, size_t room) EXCLUDES(mutex) {
    Guard guard(mutex);
    size_t count = 0;
    for (Member* pool : pools_) {
      if (count == room) break;
      if (pool == nullptr || (pool != asker && !pool->may_be_visited()) || !pool->has_dead()) continue;
      pool->begin_visit();
      pools_out[count++] = pool;
    }
    return count;
  }

  // Adds what of the pool's registrations is referenced or being made, and counts what is dead and unreferenced.
  void count_use(const Member* pool, pinrail_mpool_stats_t* totals) const EXCLUDES(mutex) {
    Guard guard(mutex);
    for (size_t place = 0; place < registrations_.size(); ++place) {
      const pinrail_registration_t* const reg = registrations_.at(place);
      if (owner_of_locked(reg) != pool) continue;
      const uint64_t word = state::load(reg);
      const bool is_pending = (word & (state::kIndexed | state::kDead)) == 0;
      if (is_pending || state::references(word) != 0) {
        totals->held_bytes += charge_of(reg);
        ++totals->held_count;
      } else if ((word & state::kDead) != 0) {
        totals->dead_bytes += charge_of(reg);
        ++totals->dead_count;
      }
    }
  }
  // Counts the pool's referenced registrations.
  void count_referenced(const Member* pool, Referenced* referenced) const EXCLUDES(mutex) {
    Guard guard(mutex);
    for (size_t place = 0; place < registrations_.size(); ++place) {
      const pinrail_registration_t* const reg = registrations_.at(place);
      const uint64_t references = references_of(reg);
      if (references != 0 && owner_of_locked(reg) == pool) referenced->add(reg, static_cast<int64_t>(references));
    }
  }
  // Some of the pool's registrations, held or not: those from *place downwards, which goes on to the next ones. They
  // are dead and the caller's, and being given back from now on. *has_any_out is set if the pool has any, another
  // thread's among them. Under the lock that dismiss() takes, nothing in the array is freed meanwhile.
  size_t seize_of(const Member* pool, size_t* place, pinrail_registration_t** regs_out, size_t room, bool* has_any_out)
      EXCLUDES(mutex) {
    Guard guard(mutex);
    const size_t count = next_where_locked(place, regs_out, room, [&](pinrail_registration_t* reg) {
      assert_held();
      if (owner_of_locked(reg) != pool) return false;
      *has_any_out = true;
      return seize(reg);
    });
    begin_release(count);
    return count;
  }
  // The same of those that are idle, which count as evictions.
  size_t retire_of(Member* pool, size_t* place, pinrail_registration_t** regs_out, size_t room) EXCLUDES(mutex) {
    Guard guard(mutex);
    const size_t count = next_where_locked(place, regs_out, room, [&](pinrail_registration_t* reg) {
      assert_held();
      if (owner_of_locked(reg) != pool || !retire(reg, state::load(reg))) return false;
      count_one_hook(&pool->evictions);
      return true;
    });
    begin_release(count);
    return count;
  }

  // budget/N1, the registrations' invariants, and that all of the pool's are of its kind.
  const char* check(const Member* pool, const pinrail_mpool_t* face) const EXCLUDES(mutex) {
    Guard guard(mutex);
    if (!budget_.is_within_limits()) return "over a limit";
    if (budget_.usage().count != registrations_.size()) return "the budget counts others than the registrations";
    for (size_t place = 0; place < registrations_.size(); ++place) {
      const pinrail_registration_t* const reg = registrations_.at(place);
      const Member* const owner = owner_of_locked(reg);
      if (owner == nullptr || (owner == pool && reg->pool != face)) return "a registration is another pool's";
    }
    return registrations_.check();
  }

  // "cache" in lock_rank.h. Public: it guards the rest of each pool's gc list, too.
  alignas(64) mutable Mutex mutex{LockRank::cache};
  Condition released;  // something was dismissed

 private:
  // For functions that are called under the lock and do not say so. Debug builds look whether the thread holds it.
  void assert_held() const ASSERT_CAPABILITY(mutex) { assert_rank_held(LockRank::cache); }
  Member* owner_of_locked(const pinrail_registration_t* reg) const REQUIRES(mutex) {
    return pools_[area_of(reg).owner];
  }
  // A call into one pool reaches others, unless these are being destroyed, or their registrars may only be called
  // inside calls into them.
  bool may_evict_locked(const Member* asker, const pinrail_registration_t* reg) const REQUIRES(mutex) {
    const Member* const owner = owner_of_locked(reg);
    return owner == asker || owner->may_be_visited();
  }
  // R7: whether evicting everything that seems idle would make room.
  bool could_fit_locked(const Member* asker, uint64_t bytes) REQUIRES(mutex) {
    const uint64_t wanted = budget_.missing_bytes(bytes), wanted_count = budget_.missing_count();
    uint64_t idle = 0, idle_count = 0;
    if (registrations_.active_bytes() < wanted || registrations_.active() < wanted_count) return false;
    return registrations_.visit_idle([&](const pinrail_registration_t* reg) {
      assert_held();
      if (!may_evict_locked(asker, reg)) return false;
      idle += charge_of(reg);
      ++idle_count;
      return idle >= wanted && idle_count >= wanted_count;
    });
  }
  // What is parked was referenced when a search looked at it. What is dead, or of a pool that is being destroyed, makes
  // room in a moment, but not what is dead in a pool that waits for a call of its own.
  bool are_others_held_locked(const pinrail_registration_t* own) const REQUIRES(mutex) {
    bool are_held = releasing_.load(std::memory_order_relaxed) != 0 || registrations_.active() != registrations_.size();
    for (size_t place = 0; place < registrations_.active() && !are_held; ++place) {
      const pinrail_registration_t* const reg = registrations_.at(place);
      const uint64_t word = state::load(reg);
      const Member* const owner = owner_of_locked(reg);
      const bool waits = owner->is_caller_only && (word & state::kDead) != 0;
      const bool is_idle = state::references(word) == 0 && ((word & state::kIndexed) != 0 || waits);
      are_held = reg != own && (!is_idle || owner->is_closing);
    }
    return are_held;
  }
  Admission without_victim_locked(const pinrail_registration_t* own) const REQUIRES(mutex) {
    return are_others_held_locked(own) ? Admission::all_held : Admission::out_of_reach;
  }
  template <typename IsWanted>
  Victim retire_next_locked(Member* asker, IsWanted&& is_wanted) REQUIRES(mutex) {
    pinrail_registration_t* const reg = registrations_.retire_next([&](const pinrail_registration_t* each) {
      assert_held();
      return may_evict_locked(asker, each) && is_wanted(each);
    });
    if (reg == nullptr) return {};
    Member* const owner = owner_of_locked(reg);
    count_one_hook(&owner->evictions);
    if (owner != asker) owner->begin_visit();
    return {reg, owner};
  }
  // Between as many tries as there were registrations at the first one, and some more where these are few.
  bool is_overtaken_locked(Tries* tries) const REQUIRES(mutex) {
    constexpr size_t kMore = 1024;
    const bool is_first = tries->added == UINT64_MAX;
    const uint64_t before = std::exchange(tries->added, budget_.usage().added);
    if (is_first) {
      tries->left = registrations_.size() + kMore;
    } else if (before != tries->added) {
      --tries->left;
    }
    return tries->left == 0;
  }
  Admission exceed_or_locked(Admission otherwise, pinrail_registration_t* reg) REQUIRES(mutex) {
    if (!budget_.may_exceed()) return otherwise;
    add_locked(reg);
    return Admission::admitted;
  }
  void add_locked(pinrail_registration_t* reg) REQUIRES(mutex) {
    budget_.add(charge_of(reg));
    registrations_.add(reg);
  }
  // Whether a drain could make room instead of an eviction.
  bool is_any_dead_locked(const Member* asker) const REQUIRES(mutex) {
    for (const Member* pool : pools_) {
      if (pool != nullptr && pool->has_dead() && (pool == asker || pool->may_be_visited())) return true;
    }
    return false;
  }
  // A step of a walk downwards (pool_registrations/M3).
  template <typename Is>
  size_t next_where_locked(size_t* place, pinrail_registration_t** regs_out, size_t room, Is&& is) const
      REQUIRES(mutex) {
    size_t count = 0;
    *place = std::min(*place, registrations_.size());
    while (*place != 0 && count < room) {
      pinrail_registration_t* const reg = registrations_.at(--*place);
      if (is(reg)) regs_out[count++] = reg;
    }
    return count;
  }

  std::atomic<size_t> releasing_{0};
  size_t waiters_ GUARDED_BY(mutex) = 0;  // for a release
  Budget budget_ GUARDED_BY(mutex);
  std::vector<Member*> pools_ GUARDED_BY(mutex);  // by number; NULL: the number is free
  const Limits limits_;
  Registrations registrations_ GUARDED_BY(mutex);
};

}  // namespace pinrail::mpool

#endif
