// SPDX-License-Identifier: BSD-3-Clause
// API context, under the cache lock. No registrar is called. The calling thread may hold references; a registration
// that is held is not found idle.
#include "components/mpool/grdma/grdma_eviction_list.h"

#include <algorithm>

#include "base/hit/start_table.h"
#include "base/registration/references.h"

namespace pinrail::grdma {

void EvictionList::remove_locked(pinrail_registration_t* reg) {
  if (lru_list_.holds(reg)) lru_list_.remove(reg);
  if (!area_of(reg).is_ready) return;
  const auto* const end = std::remove(ready_ + ready_next_, ready_ + ready_end_, reg);
  ready_end_ = static_cast<size_t>(end - ready_);
}

bool EvictionList::oldest_epoch_locked(uint64_t now, uint64_t* epoch_out) const {
  if (ready_next_ != ready_end_) {
    *epoch_out = last_use(ready_[ready_next_]);
    return true;
  }
  if (lru_list_.empty() || lru_list_.top().epoch > now) return false;
  *epoch_out = lru_list_.top().epoch;
  return true;
}

// Takes the oldest entries off the LRU list and claims them; oldest first.
size_t EvictionList::claim_some_locked(uint64_t now, pinrail_registration_t** regs_out, size_t room) {
  size_t claimed = 0;
  while (claimed < room && !lru_list_.empty() && lru_list_.top().epoch <= now) {
    pinrail_registration_t* reg = lru_list_.top().reg;
    uint64_t word = state::load(reg);
    if ((word & state::kDead) != 0) {
      lru_list_.remove(reg);  // the gc gives it back
    } else if ((word & state::kIndexed) == 0) {
      lru_list_.catch_up(now + 1);  // it is pending
    } else if (const uint64_t used = start_table::last_use(start_table_, reg, now); used > lru_list_.top().epoch) {
      lru_list_.catch_up(used);
    } else if (state::exchange(reg, &word, word | state::kEvictClaim)) {
      lru_list_.remove(reg);
      regs_out[claimed++] = reg;
    }
  }
  return claimed;
}

bool EvictionList::claim_oldest_locked(uint64_t now) {
  pinrail_registration_t* claimed[kMostClaimed];
  int64_t references[kMostClaimed];
  // Of a short list only a few: the next hit on a claimed registration takes the slow path.
  const size_t count = claim_some_locked(now, claimed, std::min(kMostClaimed, 1 + lru_list_.size() / 8));
  if (count == 0) return false;
  rcache_.ops.hide(rcache_.module, claimed, count);
  host_->registrations->count_references(host_, claimed, count, PINRAIL_SUM_NOW, references);
  ready_next_ = ready_end_ = 0;
  for (size_t i = 0; i < count; ++i) {
    if (references[i] <= 0 && references::discard_excess_drops_if_claimed(claimed[i], references[i])) {
      area_of(claimed[i]).is_ready = true;
      ready_[ready_end_++] = claimed[i];
      continue;
    }
    references::revoke_claim(claimed[i]);
    // It is held, so its next use is later than now: this search does not look at it again.
    unhide_locked(claimed[i], now + 1);
  }
  return true;
}

// The claim is revoked or broken: the registration is found again, and it is listed as used in that epoch.
void EvictionList::unhide_locked(pinrail_registration_t* reg, uint64_t epoch) {
  rcache_.ops.unhide(rcache_.module, reg);
  lru_list_.insert(reg, epoch);
}

pinrail_registration_t* EvictionList::take_ready_locked() {
  while (ready_next_ != ready_end_) {
    pinrail_registration_t* reg = ready_[ready_next_++];
    if (ready_next_ != ready_end_) prefetch(ready_[ready_next_]);  // for the next call
    area_of(reg).is_ready = false;
    uint64_t word = state::load(reg);
    while ((word & state::kEvictClaim) != 0) {
      // No hit has broken the claim, so what was idle is idle still. The claim stays: the index has hidden its start
      // already.
      if (state::exchange(reg, &word, (word & ~state::kIndexed) | state::kDead)) return reg;
    }
    // A hit that breaks a claim without the lock of the index leaves it hidden there.
    if ((word & state::kIndexed) != 0) unhide_locked(reg, last_use(reg));
  }
  return nullptr;
}

const char* EvictionList::check_locked(const pinrail_registration_t* reg) {
  const bool is_listed = LruPlaceOf()(reg) != 0;
  const bool is_ready = area_of(reg).is_ready;
  if (!is_listed && !is_ready) return nullptr;
  if ((state::load(reg) & state::kPerThread) == 0) return "what its last drop gives back is on the LRU list";
  return is_listed && is_ready ? "a registration is listed twice" : nullptr;
}

}  // namespace pinrail::grdma
