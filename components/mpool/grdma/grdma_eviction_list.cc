// SPDX-License-Identifier: BSD-3-Clause
// API context, under the cache lock. No registrar is called. The calling thread may hold references; a registration
// that is held is not found idle.
#include "components/mpool/grdma/grdma_eviction_list.h"

#include <algorithm>

#include "base/hit/start_table.h"
#include "base/registration/references.h"

namespace pinrail::grdma {

// If it was used since the hand last passed, the hand passes by: that is its second chance.
bool EvictionList::is_to_be_claimed_locked(pinrail_registration_t* reg, uint64_t now, uint64_t* used_out) const {
  constexpr uint64_t kPhase = state::kIndexed | state::kPerThread | state::kEvictClaim;
  if ((state::load(reg) & kPhase) != (state::kIndexed | state::kPerThread)) return false;
  *used_out = start_table::last_use(start_table_, reg, now);
  if (*used_out > now) return false;  // also what this search has found held
  uint16_t& seen = area_of(reg).seen;
  const auto used = static_cast<uint16_t>(*used_out);
  if (used == seen) return true;
  seen = used;
  return false;
}

// Turns the hand to the next registration that is to be claimed. Two rounds are enough: in the second one nothing was
// used since the hand passed, unless other threads use it all the time. NULL: there is none.
inline pinrail_registration_t* EvictionList::turn_hand_locked(uint64_t now, uint64_t* used_out) {
  Round& round = registered_;
  for (size_t steps = 2 * size_t{round.size}; steps != 0; --steps) {
    if (round.hand >= round.size) round.hand = 0;
    pinrail_registration_t* const reg = round.at(round.hand);
    if (is_to_be_claimed_locked(reg, now, used_out)) return reg;
    ++round.hand;
  }
  return nullptr;
}

bool EvictionList::next_epoch_locked(uint64_t now, uint64_t* epoch_out) {
  return turn_hand_locked(now, epoch_out) != nullptr;
}

// Claims the next ones; oldest first.
size_t EvictionList::claim_some_locked(uint64_t now, pinrail_registration_t** regs_out, size_t room) {
  size_t claimed = 0;
  uint64_t used;
  while (claimed < room) {
    pinrail_registration_t* reg = turn_hand_locked(now, &used);
    if (reg == nullptr) break;
    uint64_t word = state::load(reg);
    if ((word & state::kIndexed) == 0) continue;  // an event has killed it
    if (!state::exchange(reg, &word, word | state::kEvictClaim)) continue;
    ++registered_.hand;
    regs_out[claimed++] = reg;
  }
  return claimed;
}

bool EvictionList::claim_next_locked(uint64_t now) {
  pinrail_registration_t* claimed[kMostClaimed];
  int64_t references[kMostClaimed];
  // Of a few only an eighth: the next hit on a claimed registration takes the slow path.
  const size_t count = claim_some_locked(now, claimed, std::min<size_t>(kMostClaimed, 1 + registered_.size / 8));
  if (count == 0) return false;
  rcache_.ops.hide(rcache_.module, claimed, count);
  host_->registrations->count_references(host_, claimed, count, PINRAIL_SUM_NOW, references);
  ready_next_ = ready_end_ = 0;
  for (size_t i = 0; i < count; ++i) {
    if (references[i] <= 0 && references::discard_excess_drops_if_claimed(claimed[i], references[i])) {
      ready_[ready_end_++] = {claimed[i], generation_of(claimed[i])};
      continue;
    }
    references::revoke_claim(claimed[i]);
    rcache_.ops.unhide(rcache_.module, claimed[i]);
    touch(claimed[i], now + 1);  // held: this search does not claim it again
  }
  return true;
}

pinrail_registration_t* EvictionList::take_ready_locked() {
  while (ready_next_ != ready_end_) {
    const Ready& ready = ready_[ready_next_++];
    if (ready_next_ != ready_end_) prefetch(ready_[ready_next_].reg);  // for the next call
    uint64_t word = state::load(ready.reg);
    while (ready.is_claimed_in(word)) {
      // No hit has broken the claim, so what was idle is idle still. The claim stays: the index has hidden its start
      // already.
      if (state::exchange(ready.reg, &word, (word & ~state::kIndexed) | state::kDead)) return ready.reg;
    }
    // A hit that breaks a claim without the lock of the index leaves it hidden there.
    const bool is_used = (word & state::kIndexed) != 0 && state::generation(word) == ready.generation;
    if (is_used) rcache_.ops.unhide(rcache_.module, ready.reg);
  }
  return nullptr;
}

const char* EvictionList::check_locked() const {
  size_t claimed = 0;
  for (size_t i = 0; i < registered_.size; ++i) {
    const uint64_t word = state::load(registered_.at(i));
    if ((word & state::kEvictClaim) == 0 || (word & state::kIndexed) == 0) continue;  // the dead are taken already
    ++claimed;
    if ((word & state::kPerThread) == 0) return "what its last drop gives back is claimed to be evicted";
  }
  return claimed <= ready_end_ - ready_next_ ? nullptr : "what is claimed to be evicted is not ready";
}

}  // namespace pinrail::grdma
