// SPDX-License-Identifier: BSD-3-Clause
// The budget and the order of eviction of one cache_name. API context. Functions whose names end in _locked run under
// the cache lock (`mutex`); the others take it, and their caller holds no lock of the rank `cache` or above. No
// registrar is called here. The calling thread may hold references.
#include "components/mpool/grdma/grdma_cache.h"

#include <algorithm>
#include <new>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// OUT_OF_RESOURCE: no memory for the list.
Status Cache::add_pool(Pool* pool) {
  Guard guard(mutex);
  try {
    pools_.push_back(pool);
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  return success();
}

void Cache::remove_pool(Pool* pool) {
  Guard guard(mutex);
  pools_.erase(std::remove(pools_.begin(), pools_.end(), pool), pools_.end());
}

// R7: whether evicting everything that seems idle would make room.
bool Cache::could_fit_locked(const Pool* asker, uint64_t bytes) const {
  const uint64_t wanted = budget_.missing_bytes(bytes), wanted_count = budget_.missing_count();
  uint64_t idle = 0, idle_count = 0;
  for (const Pool* pool : pools_) {
    pool->assert_cache_held();
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    const bool enough = pool->visit_idle_locked([&](const pinrail_registration_t* reg) {
      idle += reg->length;
      ++idle_count;
      return idle >= wanted && idle_count >= wanted_count;
    });
    if (enough) return true;
  }
  return false;
}

// What an earlier search claimed and found idle, of the asker's own first.
inline Victim Cache::claim_locked(Pool* asker) {
  asker->assert_cache_held();
  pinrail_registration_t* const reg = asker->take_victim_locked();
  return reg != nullptr ? Victim{reg, asker} : search_locked(asker);
}

// Of few registrations each miss begins an epoch. The first hit in an epoch dates its registration, which moves a line
// that other threads read: of two threads with 1 % of misses, hits took three times as long when each miss did so.
void Cache::count_miss_in_epoch_locked() {
  constexpr size_t kEpochsPerRound = 16;
  if (++misses_in_epoch_ * kEpochsPerRound <= budget_.usage().count) return;
  misses_in_epoch_ = 0;
  epoch::move_on(epoch_word);
}

// See the header. One hold of the lock from the question for room until the registration has its place.
Status Cache::admit(const pinrail_thread_t* thread, Pool* pool, Admission* admission) {
  pinrail_registration_t* const reg = admission->reg;
  Victim& victim = admission->victim;
  Guard guard(mutex);
  pool->assert_cache_held();
  if (victim.reg != nullptr) {
    dismiss_locked(victim.owner, victim.reg);
    victim = {};
  }
  if (!admission->is_counted) Pool::count_one(&pool->misses_);
  admission->is_counted = true;
  if (pools_.size() > 1) count_miss_in_epoch_locked();
  const bool can_be_held = budget_.could_ever_hold(reg->length) && pool->registered_.reserve_locked(reg);
  if (!can_be_held) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (budget_.has_room_for(reg->length)) {
    budget_.add(reg->length);
    pool->registered_.add_locked(reg, epoch());
  } else {
    // If any one victim is enough, nothing is summed: without an idle one nothing is evicted either.
    admission->is_possible = admission->is_possible || budget_.may_exceed() || budget_.any_one_suffices(reg->length) ||
                             could_fit_locked(pool, reg->length);
    admission->is_impossible = !admission->is_possible;
    if (admission->is_impossible) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    if (!anything_dead_locked(thread, pool)) victim = claim_locked(pool);
    // If the victim left room over, others would use it before the device has deregistered the victim.
    if (victim.reg == nullptr || !budget_.has_room_instead_of(victim.reg->length, reg->length)) {
      return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    }
    replace_locked(victim, pool, reg);
  }
  admission->is_admitted = true;
  return success();
}

// See the header.
bool Cache::admit_after_all(Pool* pool, pinrail_registration_t* reg) {
  Guard guard(mutex);
  pool->assert_cache_held();
  if (!budget_.has_room_for(reg->length) && !budget_.may_exceed()) return false;
  if (!pool->registered_.reserve_locked(reg)) return false;
  budget_.add(reg->length);
  pool->registered_.add_locked(reg, epoch());
  return true;
}

// The registration takes the place of the victim. No thread is woken for that, because no room is left over.
void Cache::replace_locked(const Victim& victim, Pool* pool, pinrail_registration_t* reg) {
  pool->assert_cache_held();
  victim.owner->assert_cache_held();
  budget_.remove(victim.reg->length);
  budget_.add(reg->length);
  if (victim.owner == pool) return pool->registered_.replace_locked(victim.reg, reg, epoch());
  victim.owner->registered_.remove_locked(victim.reg);
  pool->registered_.add_locked(reg, epoch());
}

// Gives the places of the registrations in the budget back and unlinks them. The device has deregistered them.
void Cache::dismiss(Pool* pool, pinrail_registration_t* const* regs, size_t count) {
  Guard guard(mutex);
  for (size_t i = 0; i < count; ++i) dismiss_locked(pool, regs[i]);
}

void Cache::dismiss_locked(Pool* pool, pinrail_registration_t* reg) {
  pool->assert_cache_held();
  budget_.remove(reg->length);
  pool->registered_.remove_locked(reg);
  if (waiters_ != 0) released.notify_all();
}

// The pool whose next registration was used least recently, of those that the asker may evict from. NULL: none has one
// that is to be claimed.
Pool* Cache::oldest_pool_locked(const Pool* asker, uint64_t now) const {
  Pool* oldest = nullptr;
  uint64_t oldest_epoch = 0;
  for (Pool* pool : pools_) {
    uint64_t epoch;
    pool->assert_cache_held();
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    if (!pool->eviction_list_.next_epoch_locked(now, &epoch) || (oldest != nullptr && epoch >= oldest_epoch)) continue;
    oldest = pool;
    oldest_epoch = epoch;
  }
  return oldest;
}

// Whether a drain could make room instead of an eviction.
bool Cache::anything_dead_locked(const pinrail_thread_t* thread, const Pool* asker) const {
  for (const Pool* pool : pools_) {
    if ((pool == asker || !pool->is_caller_only()) && pool->gc_.has_dead(thread)) return true;
  }
  return false;
}

// Claims and kills the next idle registration, of this pool or of others that the asker may evict from.
Victim Cache::claim_victim(Pool* asker) {
  Guard guard(mutex);
  return claim_locked(asker);
}

// What an earlier search found held may be claimed by this one again, once.
Victim Cache::search_locked(const Pool* asker) {
  for (Pool* pool : pools_) {
    pool->assert_cache_held();
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    pinrail_registration_t* reg = pool->take_victim_locked();
    if (reg != nullptr) return {reg, pool};
  }
  const uint64_t now = epoch();
  epoch::move_on(epoch_word);
  while (Pool* pool = oldest_pool_locked(asker, now)) {
    pool->assert_cache_held();
    pool->eviction_list_.claim_next_locked(now);
    pinrail_registration_t* reg = pool->take_victim_locked();
    if (reg != nullptr) return {reg, pool};
  }
  return {};
}

// The same of one pool alone, for what was not used after `now`.
Victim Cache::claim_of(Pool* pool, uint64_t now) {
  Guard guard(mutex);
  pool->assert_cache_held();
  for (;;) {
    pinrail_registration_t* reg = pool->take_victim_locked();
    if (reg != nullptr) return {reg, pool};
    if (!pool->eviction_list_.claim_next_locked(now)) return {};
  }
}

// Sleeps up to 200 us, with the lock given back, if a thread is giving something back.
bool Cache::wait_for_release(const Pool* asker) {
  Guard guard(mutex);
  for (const Pool* pool : pools_) {
    if (pool != asker && pool->is_caller_only()) continue;
    if (!pool->in_flight_.is_releasing()) continue;
    // Bounded: what came onto a gc list since the caller looked waits for a drain, perhaps by the caller.
    ++waiters_;
    released.wait_for(mutex, std::chrono::microseconds(200));
    --waiters_;
    return true;
  }
  return false;
}

// Sums all registrations of all pools of the cache, until one but `own` is referenced or pending.
bool Cache::anything_held(const pinrail_registration_t* own) {
  Guard guard(mutex);
  return std::any_of(pools_.begin(), pools_.end(), [own](const Pool* pool) {
    pool->assert_cache_held();
    return pool->registered_.is_anything_held_locked(own);
  });
}

Usage Cache::usage() const {
  Guard guard(mutex);
  return budget_.usage();
}

// Allocates without the lock, and again if the registrations have become too many meanwhile.
uint64_t Cache::pinned_bytes() const {
  std::vector<Span> spans;
  for (;;) {
    const size_t expected = usage().count;
    spans.clear();
    spans.reserve(expected + expected / 8 + 64);  // without the lock
    Guard guard(mutex);
    if (budget_.usage().count > spans.capacity()) continue;
    for (const Pool* pool : pools_) {
      pool->assert_cache_held();
      pool->registered_.append_spans_locked(&spans);
    }
    break;
  }
  return union_length(&spans);
}

// Begins a visit of each pool, which the caller ends (InFlight::end_visit).
size_t Cache::visit_dead(const pinrail_thread_t* thread, const Pool* asker, Pool** pools_out, size_t room) {
  Guard guard(mutex);
  size_t count = 0;
  for (Pool* pool : pools_) {
    if (count == room) break;
    pool->assert_cache_held();
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    if (!pool->gc_.has_dead(thread)) continue;
    pool->in_flight_.begin_visit();
    pools_out[count++] = pool;
  }
  return count;
}

}  // namespace pinrail::grdma
