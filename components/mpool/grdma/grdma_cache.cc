// SPDX-License-Identifier: BSD-3-Clause
#include "components/mpool/grdma/grdma_cache.h"

#include <algorithm>
#include <new>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

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

// R7: whether there were room if everything were gone that seems idle. Where any one victim is enough, nothing needs to
// be counted: without an idle one nothing is evicted either.
bool Cache::could_fit(const Pool* asker, uint64_t bytes) const {
  if (budget_.any_one_suffices(bytes)) return true;
  const uint64_t wanted = budget_.missing_bytes(bytes), wanted_count = budget_.missing_count();
  uint64_t idle = 0, idle_count = 0;
  for (const Pool* pool : pools_) {
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    const bool enough = pool->add_idle([&](const pinrail_registration_t* reg) {
      idle += reg->length;
      ++idle_count;
      return idle >= wanted && idle_count >= wanted_count;
    });
    if (enough) return true;
  }
  return false;
}

Status Cache::admit(const pinrail_thread_t* thread, Pool* pool, Admission* admission, Victim* victim) {
  const pinrail_registration_t* reg = admission->reg;
  Guard guard(mutex);
  if (victim->reg != nullptr) dismiss_locked(victim->owner, victim->reg);
  *victim = {};
  if (!admission->counted) pool->count_miss();
  admission->counted = true;
  epoch::move_on(epoch_word);
  if (!budget_.could_ever_hold(reg->length)) return PINRAIL_ERR_OUT_OF_RESOURCE;
  try {
    pool->lru_list_.reserve(pool->all_count_ + 1);
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  }
  if (!budget_.has_room_for(reg->length)) {
    admission->possible = admission->possible || could_fit(pool, reg->length);
    admission->impossible = !admission->possible;
    if (admission->impossible) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    if (!anything_dead(thread, pool)) *victim = claim_locked(pool);
    // Of what the victim leaves over, others would use the place before the device has forgotten the victim.
    if (victim->reg == nullptr || !budget_.has_room_instead_of(victim->reg->length, reg->length)) {
      return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    }
    dismiss_locked(victim->owner, victim->reg);
  }
  budget_.add(reg->length);
  link(pool, admission->reg);
  return success();
}

void Cache::link(Pool* pool, pinrail_registration_t* reg) {
  pool->all_.link(reg);
  ++pool->all_count_;
  if ((state::load(reg) & state::kPerThread) != 0) pool->lru_list_.insert(reg, epoch());
}

void Cache::dismiss(Pool* pool, pinrail_registration_t* reg) {
  Guard guard(mutex);
  dismiss_locked(pool, reg);
}

void Cache::dismiss_locked(Pool* pool, pinrail_registration_t* reg) {
  budget_.remove(reg->length);
  pool->unlist(reg);
  pool->unlink(reg);
  if (waiters_ != 0) released.notify_all();
}

// The pool whose oldest entry is the oldest of all, of those that the asker may evict from.
Pool* Cache::oldest_pool(const Pool* asker, uint64_t now) const {
  Pool* oldest = nullptr;
  uint64_t oldest_epoch = 0;
  for (Pool* pool : pools_) {
    uint64_t epoch;
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    if (!pool->oldest_epoch(now, &epoch) || (oldest != nullptr && epoch >= oldest_epoch)) continue;
    oldest = pool;
    oldest_epoch = epoch;
  }
  return oldest;
}

// Whether a drain could make room instead: then nothing that is alive has to go.
bool Cache::anything_dead(const pinrail_thread_t* thread, const Pool* asker) const {
  for (const Pool* pool : pools_) {
    if ((pool == asker || !pool->is_caller_only()) && pool->has_dead(thread)) return true;
  }
  return false;
}

Victim Cache::claim_victim(const Pool* asker) {
  Guard guard(mutex);
  epoch::move_on(epoch_word);
  return claim_locked(asker);
}

// In a new epoch: what was found held in an earlier search may be looked at again, once.
Victim Cache::claim_locked(const Pool* asker) {
  const uint64_t now = epoch();
  while (Pool* pool = oldest_pool(asker, now)) {
    pinrail_registration_t* reg = pool->next_ready();
    if (reg != nullptr) return {reg, pool};
    pool->claim_oldest(now);
  }
  return {};
}

Victim Cache::claim_of(Pool* pool, uint64_t now) {
  Guard guard(mutex);
  for (;;) {
    pinrail_registration_t* reg = pool->next_ready();
    if (reg != nullptr) return {reg, pool};
    if (!pool->claim_oldest(now)) return {};
  }
}

bool Cache::wait_for_release(const Pool* asker) {
  Guard guard(mutex);
  for (const Pool* pool : pools_) {
    if (pool != asker && pool->is_caller_only()) continue;
    // relaxed: a release that is missed here was not promised to anybody yet.
    const uint64_t busy =
        pool->to_release_.load(std::memory_order_relaxed) + pool->draining_.load(std::memory_order_relaxed);
    if (busy == 0) continue;
    // Bounded: what is on a gc list since we looked is nobody's until somebody drains, and that may be the caller.
    ++waiters_;
    released.wait_for(mutex, std::chrono::microseconds(200));
    --waiters_;
    return true;
  }
  return false;
}

bool Cache::anything_held(const pinrail_registration_t* own) {
  Guard guard(mutex);
  return std::any_of(pools_.begin(), pools_.end(), [own](const Pool* pool) { return pool->is_anything_held(own); });
}

Usage Cache::usage() const {
  Guard guard(mutex);
  return budget_.usage();
}

uint64_t Cache::pinned_bytes() const {
  std::vector<Span> spans;
  for (;;) {
    const size_t expected = usage().count;
    spans.clear();
    spans.reserve(expected + expected / 8 + 64);  // without the lock
    Guard guard(mutex);
    if (budget_.usage().count > spans.capacity()) continue;
    for (const Pool* pool : pools_) {
      for (const List* list : {&pool->all_, &pool->limbo_}) {
        for (const pinrail_registration_t* reg = list->first; reg != nullptr; reg = area_of(reg).next) {
          spans.push_back(span_of(reg));
        }
      }
    }
    break;
  }
  return union_length(&spans);
}

size_t Cache::reachable_pools(const Pool* asker, Pool** pools_out, size_t room) {
  Guard guard(mutex);
  size_t count = 0;
  for (Pool* pool : pools_) {
    if (count == room) break;
    if (pool != asker && (pool->closing_ || pool->is_caller_only())) continue;
    pool->visitors_.fetch_add(1, std::memory_order_relaxed);  // relaxed: under the lock, as closing_ is set
    pools_out[count++] = pool;
  }
  return count;
}

}  // namespace pinrail::grdma
