// SPDX-License-Identifier: BSD-3-Clause
// Makes room: the least recently used idle registration of the cache goes.
//
// Whether a registration is idle is not known, it has to be found out: claim some of the oldest, sum them, keep those
// that are idle claimed and ready, and revoke_claim the others. A hit breaks the claim, and then the evictor finds it
// broken.
#include "base/core/on_unwind.h"
#include "base/hit/start_table.h"
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

bool Pool::evict_one(pinrail_thread_t* thread) {
  const Victim victim = cache_->claim_victim(this);
  if (victim.reg == nullptr) return false;
  OnUnwind unwound([&] { dismiss_and_end(victim.reg, victim.owner); });
  leave_device(thread, victim);
  unwound.disarm();
  dismiss_and_end(victim.reg, victim.owner);
  return true;
}

// Out of the index, and forgotten by the device; to be dismissed then.
void Pool::leave_device(pinrail_thread_t* thread, const Victim& victim) {
  Pool* owner = victim.owner;
  // NOT_FOUND: a find saw it dead and removed it, or an event did.
  Status(owner->rcache_.ops->remove(owner->rcache_.module, victim.reg)).ignore();
  owner->tell_device_off(thread, victim.reg, PINRAIL_REASON_EVICTED);
}

// Parameter empty_cache: everything idle goes.
void Pool::empty(pinrail_thread_t* thread) {
  while (evict_one(thread)) {
  }
}

Status Pool::evict(pinrail_thread_t* thread) {
  drain_own(thread, SIZE_MAX);
  return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

// How long ago the entry that would go first was used; false if there is none to look at up to now.
bool Pool::oldest_epoch(uint64_t now, uint64_t* epoch_out) const {
  if (ready_next_ != ready_end_) {
    *epoch_out = last_use(ready_[ready_next_]);
    return true;
  }
  if (lru_list_.empty() || lru_list_.top().epoch > now) return false;
  *epoch_out = lru_list_.top().epoch;
  return true;
}

// Off the LRU list: the oldest entries, claimed, oldest first.
size_t Pool::take_oldest(uint64_t now, pinrail_registration_t** regs_out, size_t room) {
  size_t taken = 0;
  while (taken < room && !lru_list_.empty() && lru_list_.top().epoch <= now) {
    pinrail_registration_t* reg = lru_list_.top().reg;
    uint64_t word = state::load(reg);
    if ((word & state::kDead) != 0) {
      lru_list_.remove(reg);  // the gc cares for it
    } else if ((word & state::kIndexed) == 0) {
      lru_list_.catch_up(now + 1);  // pending
    } else if (const uint64_t used = start_table::last_use(start_table_, reg, now); used > lru_list_.top().epoch) {
      lru_list_.catch_up(used);
    } else if (state::exchange(reg, &word, word | state::kEvictClaim)) {
      lru_list_.remove(reg);
      regs_out[taken++] = reg;
    }
  }
  return taken;
}

// Whether it is held, as far as its own thread can be trusted; for a drop that its thread has no count of.
bool Pool::confirm_held(pinrail_registration_t* reg, uint64_t generation) {
  Guard guard(cache_->mutex);
  for (;;) {
    uint64_t word = state::load(reg);
    if (state::generation(word) != generation) return false;
    if ((word & state::kEvictClaim) != 0) return false;  // only idle ones stay claimed
    const bool indexed = (word & state::kIndexed) != 0;
    if (indexed && !state::exchange(reg, &word, word | state::kEvictClaim)) continue;
    int64_t references;
    if (indexed) rcache_.ops->hide(rcache_.module, &reg, 1);
    host_->count_references(host_, &reg, 1, PINRAIL_SUM_NOW, &references);
    // A hit that broke the claim meanwhile made the sum worthless.
    const bool unbroken = !indexed || references::revoke_claim(reg);
    if (indexed) rcache_.ops->unhide(rcache_.module, reg);
    if (unbroken) return references > 0;
  }
}

// Fills ready_ with what is idle among the oldest. False if nothing was left to look at.
bool Pool::claim_oldest(uint64_t now) {
  pinrail_registration_t* claimed[kEvictClaim];
  int64_t references[kEvictClaim];
  // Few of a small list: a claim costs the next hit on it the slow way.
  const size_t count = take_oldest(now, claimed, std::min(kEvictClaim, 1 + lru_list_.size() / 8));
  if (count == 0) return false;
  rcache_.ops->hide(rcache_.module, claimed, count);
  host_->count_references(host_, claimed, count, PINRAIL_SUM_NOW, references);
  ready_next_ = ready_end_ = 0;
  for (size_t i = 0; i < count; ++i) {
    if (references[i] <= 0 && references::discard_excess_drops_if_claimed(claimed[i], references[i])) {
      area_of(claimed[i]).is_ready = true;
      ready_[ready_end_++] = claimed[i];
      continue;
    }
    references::revoke_claim(claimed[i]);
    rcache_.ops->unhide(rcache_.module, claimed[i]);
    // Held, so it will be used later than now: not looked at again in this search.
    lru_list_.insert(claimed[i], now + 1);
  }
  return true;
}

// The oldest one that is ready, claimed. NULL: none is left.
pinrail_registration_t* Pool::next_ready() {
  while (ready_next_ != ready_end_) {
    pinrail_registration_t* reg = ready_[ready_next_++];
    if (ready_next_ != ready_end_) fetch(ready_[ready_next_]);  // for who comes next
    area_of(reg).is_ready = false;
    uint64_t word = state::load(reg);
    while ((word & state::kEvictClaim) != 0) {
      // Claimed without a break, and idle then: idle still. It keeps the claim, so the index need not look for its
      // start.
      if (!state::exchange(reg, &word, (word & ~state::kIndexed) | state::kDead)) continue;
      to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: read under the lock that is held
      count_eviction();
      return reg;
    }
    if ((word & state::kIndexed) == 0) continue;
    // A hit broke the claim. If it did so without the index's lock, the index has not heard of it.
    rcache_.ops->unhide(rcache_.module, reg);
    lru_list_.insert(reg, last_use(reg));
  }
  return nullptr;
}

// It is being dismissed: off the lists of all.
void Pool::unlink(pinrail_registration_t* reg) {
  --all_count_;
  if ((state::load(reg) & state::kSummed) == 0) {
    all_.unlink(reg);
    return;
  }
  {
    Guard pending(pending_mutex_);
    limbo_.unlink(reg);
    watch_no_displaced();
  }
  // relaxed: under the lock
  if (limbo_.first == nullptr) limbo_undone_.store(kNoLimbo, std::memory_order_relaxed);
}

// And off the LRU list, or out of ready_.
void Pool::unlist(pinrail_registration_t* reg) {
  if (lru_list_.holds(reg)) lru_list_.remove(reg);
  if (!area_of(reg).is_ready) return;
  const auto* const end = std::remove(ready_ + ready_next_, ready_ + ready_end_, reg);
  ready_end_ = static_cast<size_t>(end - ready_);
}

}  // namespace pinrail::grdma
