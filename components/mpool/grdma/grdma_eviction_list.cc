// SPDX-License-Identifier: BSD-3-Clause
// API context, under the cache lock. No registrar is called. The calling thread may hold references; a registration
// that is held is not found idle.
#include "components/mpool/grdma/grdma_eviction_list.h"

#include <algorithm>

#include "base/hit/start_table.h"
#include "base/registration/references.h"

namespace pinrail::grdma {

void EvictionList::remove_locked(const pinrail_registration_t* reg) {
  if (!area_of(reg).is_ready) return;
  const auto* const end = std::remove(ready_ + ready_next_, ready_ + ready_end_, reg);
  ready_end_ = static_cast<size_t>(end - ready_);
}

// If it was used since the hand last passed, the hand passes by: that is its second chance.
bool EvictionList::is_to_be_claimed_locked(pinrail_registration_t* reg, uint64_t now) const {
  constexpr uint64_t kPhase = state::kIndexed | state::kPerThread | state::kEvictClaim;
  if ((state::load(reg) & kPhase) != (state::kIndexed | state::kPerThread)) return false;
  const uint64_t passed = epoch::epoch_of(area_of(reg).passed, now);
  if (passed > now) return false;  // this search has found it held
  const uint64_t used = start_table::last_use(start_table_, reg, now);
  if (used <= passed) return true;
  area_of(reg).passed = epoch::short_date(std::min(used, now));
  return false;
}

// Turns the hand to the next registration that is to be claimed. Two rounds are enough: in the second one nothing was
// used since the hand passed, unless other threads use it all the time. NULL: there is none.
pinrail_registration_t* EvictionList::turn_hand_locked(uint64_t now) {
  pinrail_registration_t*& hand = registered_.places[List::evicting];
  for (size_t steps = 2 * registered_.size; steps != 0; --steps) {
    if (hand == nullptr) hand = registered_.first;
    if (is_to_be_claimed_locked(hand, now)) return hand;
    hand = area_of(hand).next;
  }
  return nullptr;
}

bool EvictionList::next_epoch_locked(uint64_t now, uint64_t* epoch_out) {
  const pinrail_registration_t* next = turn_hand_locked(now);
  if (next == nullptr) return false;
  *epoch_out = epoch::epoch_of(area_of(next).passed, now);
  return true;
}

// Claims the next ones; oldest first.
size_t EvictionList::claim_some_locked(uint64_t now, pinrail_registration_t** regs_out, size_t room) {
  size_t claimed = 0;
  while (claimed < room) {
    pinrail_registration_t* reg = turn_hand_locked(now);
    if (reg == nullptr) break;
    uint64_t word = state::load(reg);
    if ((word & state::kIndexed) == 0) continue;  // an event has killed it
    if (state::exchange(reg, &word, word | state::kEvictClaim)) regs_out[claimed++] = reg;
  }
  return claimed;
}

bool EvictionList::claim_next_locked(uint64_t now) {
  pinrail_registration_t** const claimed = ready_;  // none is ready now
  int64_t references[kMostClaimed];
  // Of a few only an eighth: the next hit on a claimed registration takes the slow path.
  const size_t count = claim_some_locked(now, claimed, std::min(kMostClaimed, 1 + registered_.size / 8));
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
    rcache_.ops.unhide(rcache_.module, claimed[i]);
    area_of(claimed[i]).passed = epoch::short_date(now + 1);  // held: this search does not claim it again
  }
  return true;
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
    if ((word & state::kIndexed) != 0) rcache_.ops.unhide(rcache_.module, reg);
  }
  return nullptr;
}

const char* EvictionList::check_locked() const {
  size_t ready = 0;
  for (const pinrail_registration_t* reg = registered_.first; reg != nullptr; reg = area_of(reg).next) {
    if (!area_of(reg).is_ready) continue;
    ++ready;
    if ((state::load(reg) & state::kPerThread) == 0) return "what its last drop gives back is ready to be evicted";
  }
  // One that was taken, killed and found held since is in limbo.
  return ready <= ready_end_ - ready_next_ ? nullptr : "what is ready to be evicted is not listed as that";
}

}  // namespace pinrail::grdma
