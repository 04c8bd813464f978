// SPDX-License-Identifier: BSD-3-Clause
// Sums references that are counted per thread. This happens only to evict, to close what died, and to destroy.
// Registrations that die together are summed together. Victims of eviction are summed one by one, because the driver
// call that follows costs a hundred times as much.
//
// API context. A function whose name ends in _locked runs under the cache lock; before all others the caller holds no
// lock. The calling thread may hold references.
#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {
namespace {

constexpr int kTries = 4;  // a sum is repeated if a rollback happened during it

uint64_t rollbacks(const pinrail_thread_t* thread) { return __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST); }

}  // namespace

// The registration's reference count, or references::kUnknown. Exact if no thread can take a new reference.
int64_t Pool::references_of_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) const {
  int64_t references = 0;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = rollbacks(thread);
    host_->registrations->count_references(host_, &reg, 1, PINRAIL_SUM_NOW, &references);
    if (references <= 0 || references == references::kUnknown || rollbacks(thread) == before) break;
  }
  return references;
}

// The key of the registration's entry, XORed with the owner's salt; 0: it can have no entry. The caller holds the
// cache lock.
uint64_t Pool::entry_key(const pinrail_registration_t* reg) const {
  const Identity& name = identity_of(reg);
  const uint64_t salt = allocation_table::owner_salt(name.pid, name.start, name.segment);
  if (known_by_ == allocation_table::By::id || name.segment == 0) return name.id == 0 ? 0 : name.id ^ salt;
  if (name.slot == nullptr) return 0;
  const auto slot = static_cast<uint64_t>(name.slot - area_of(reg).peer->slots->word(0));
  return allocation_table::is_keyed(slot, name.slot_word) ? allocation_table::key_of_slot(slot, name.slot_word) ^ salt
                                                          : 0;
}

// hide_locked() removes the registration's entry from the table that hits read, before a sum; show_locked() inserts
// it.
void Pool::hide_locked(pinrail_registration_t* reg) { allocations_.remove(reg, entry_key(reg)); }

// Removes the entry and forgets the slot: after a restart the exporter's segment must not be written.
void Pool::forget_slot_locked(pinrail_registration_t* reg) {
  hide_locked(reg);
  identity_of(reg).slot = nullptr;
}

void Pool::show_locked(pinrail_registration_t* reg) {
  const uint64_t key = entry_key(reg);
  if (key == 0 || (state::load(reg) & state::kPerThread) == 0) return;
  const Identity& name = identity_of(reg);
  const uint32_t sum = allocation_table::checksum_of_range(name.base, name.length, name.id);
  allocations_.insert(reg, {key, area_of(reg).peer->number, sum});
}

// Whether the registration is referenced, for a drop by a thread that has no count of it. An indexed registration is
// claimed during the sum, so that the sum is exact. False also for a stale handle.
bool Pool::confirm_held(const pinrail_thread_t* thread, pinrail_handle_t handle) {
  pinrail_registration_t* reg = handle.reg;
  Guard guard(cache_->mutex);
  for (;;) {
    uint64_t word = state::load(reg);
    if (state::generation(word) != handle.generation || (word & state::kReleaseClaim) != 0) return false;
    const bool indexed = (word & state::kIndexed) != 0;
    if (indexed && !state::exchange(reg, &word, word | state::kEvictClaim)) continue;
    if (indexed) hide_locked(reg);
    const int64_t references = references_of_locked(thread, reg);
    if (indexed) show_locked(reg);
    // If a hit revoked the claim meanwhile, the sum is worthless: try again.
    if (!indexed || references::revoke_claim(reg)) return references > 0;
  }
}

// Kills and claims an indexed registration if it is unreferenced: the caller closes it. False: it is referenced, or
// not indexed.
bool Pool::claim_if_idle_locked(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  if ((word & state::kIndexed) == 0) return false;
  if ((word & state::kPerThread) == 0) return state::references(word) == 0 && claim(reg, word);
  if (!state::exchange(reg, &word, word | state::kEvictClaim)) return false;
  hide_locked(reg);
  const int64_t references = references_of_locked(thread, reg);
  if (references <= 0 && references::discard_excess_drops_if_claimed(reg, references)) {
    word = state::load(reg);
    while ((word & state::kEvictClaim) != 0) {
      constexpr uint64_t kGone = state::kIndexed | state::kEvictClaim;
      if (state::exchange(reg, &word, (word & ~kGone) | state::kDead | state::kReleaseClaim)) return true;
    }
  }
  show_locked(reg);
  references::revoke_claim(reg);
  return false;
}

// Adds a dead, unreferenced and claimed registration to those that the caller closes.
void Pool::add_victim_locked(pinrail_registration_t* reg, Victims* victims) {
  ++cache_->closing;
  victims->add(reg);
}

// Sums dead registrations, those just killed or not yet summed. An unreferenced one is claimed and becomes a victim, a
// referenced one is marked as summed. `victims` has room for all of them.
void Pool::claim_dead_locked(const pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count,
                             Victims* victims) {
  if (count == 0) return;
  int64_t references[Victims::kRoom];
  const uint64_t before = rollbacks(thread);
  host_->registrations->count_references(host_, regs, count, PINRAIL_SUM_NOW, references);
  const auto note_held = [&] {
    if (held_dead_++ == 0) rollbacks_at_sum_ = before;
  };
  for (size_t i = 0; i < count; ++i) {
    if (references[i] == references::kUnknown) {
      note_held();
    } else if (references[i] > 0) {
      note_held();
      if (host_->registrations->settle_dead(host_, handle_of(regs[i]), PINRAIL_DEAD_HELD) != 1) continue;
      --held_dead_;
      add_victim_locked(regs[i], victims);
    } else {
      references::discard_excess_drops(regs[i], references[i]);
      state::set(regs[i], (state::load(regs[i]) & state::kFlags) | state::kReleaseClaim);
      add_victim_locked(regs[i], victims);
    }
  }
}

// Closes the registration if it is dead and this was its last reference. Called after a drop or a rollback that saw it
// dead.
void Pool::finish(pinrail_thread_t* thread, pinrail_handle_t handle) {
  Victims victims;
  {
    Guard guard(cache_->mutex);
    const uint64_t word = state::load(handle.reg);
    const bool is_open = state::generation(word) == handle.generation && (word & state::kReleaseClaim) == 0;
    if (!is_open || (word & state::kDead) == 0) return;
    if ((word & state::kSummed) == 0) {
      if (held_dead_ != 0) --held_dead_;
      claim_dead_locked(thread, &handle.reg, 1, &victims);
    } else if (host_->registrations->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) {
      if (held_dead_ != 0) --held_dead_;
      add_victim_locked(handle.reg, &victims);
    }
  }
  close(thread, victims, PINRAIL_REASON_RELEASED);
}

// Drops a reference of a registration that is dead and marked as summed; the last drop closes it. BAD_PARAM: the
// handle is stale.
pinrail_status_t Pool::drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle) {
  Victims victims;
  {
    Guard guard(cache_->mutex);
    const int dropped = host_->registrations->settle_dead(host_, handle, PINRAIL_DEAD_DROP);
    if (dropped < 0) return PINRAIL_ERR_BAD_PARAM;
    if (dropped == 1) {
      if (held_dead_ != 0) --held_dead_;
      add_victim_locked(handle.reg, &victims);
    }
  }
  close(thread, victims, PINRAIL_REASON_RELEASED);
  return PINRAIL_SUCCESS;
}

// Closes what was left over, and sums again the dead registrations that seemed referenced, if a rollback happened
// since: a thread, perhaps of another pool, may have counted a speculative reference during the sum (references/C1).
void Pool::sum_again(pinrail_thread_t* thread) {
  close_deferred(thread);
  for (bool more = held_dead_.load(std::memory_order_relaxed) != 0; more;) {  // relaxed: a hint
    Victims victims;
    {
      Guard guard(cache_->mutex);
      if (held_dead_ == 0 || rollbacks_at_sum_ == rollbacks(thread)) return;
      claim_again_locked(thread, &victims);
      more = victims.full();
    }
    close(thread, victims, PINRAIL_REASON_RELEASED);
  }
}

// Sums again all dead registrations that are counted per thread and not claimed; at most one batch.
void Pool::claim_again_locked(const pinrail_thread_t* thread, Victims* victims) {
  pinrail_registration_t* unsummed[Victims::kRoom];
  size_t count = 0;
  const uint64_t before = rollbacks(thread);
  held_dead_ = 0;
  const auto note_held = [&](uint64_t when) {
    if (held_dead_++ == 0) rollbacks_at_sum_ = when;
  };
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      constexpr uint64_t kWhich = state::kDead | state::kPerThread | state::kReleaseClaim;
      const uint64_t word = state::load(reg);
      if ((word & kWhich) != (state::kDead | state::kPerThread)) continue;
      if (victims->count() + count == Victims::kRoom) {
        note_held(before - 1);  // not summed now: `before - 1` forces another round
      } else if ((word & state::kSummed) == 0) {
        unsummed[count++] = reg;
      } else if (host_->registrations->settle_dead(host_, handle_of(reg), PINRAIL_DEAD_DROPPED) == 1) {
        add_victim_locked(reg, victims);
      } else {
        note_held(before);
      }
    }
  }
  claim_dead_locked(thread, unsummed, count, victims);
}

}  // namespace pinrail::gpu_pool
