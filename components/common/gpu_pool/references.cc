// SPDX-License-Identifier: BSD-3-Clause
// Who holds a registration that is counted per thread? Found out only when somebody must know: to evict, to close what
// died, to destroy. What dies together is summed together. What is to be evicted is summed one by one, for the call of
// the driver that follows costs a hundred times as much.
#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {
namespace {

constexpr int kTries = 4;  // sums that a find in vain may have spoilt

uint64_t rollbacks(const pinrail_thread_t* thread) { return __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST); }

}  // namespace

int64_t Pool::references_of(const pinrail_thread_t* thread, pinrail_registration_t* reg) const {
  int64_t references = 0;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = rollbacks(thread);
    host_->count_references(host_, &reg, 1, PINRAIL_SUM_NOW, &references);
    if (references <= 0 || references == references::kUnknown || rollbacks(thread) == before) break;
  }
  return references;
}

// As its entry has it, salted_key; 0: it can have none.
uint64_t Pool::entry_key(const pinrail_registration_t* reg) const {
  const Name& name = name_of(reg);
  const uint64_t salt = allocation_table::owner_salt(name.pid, name.start, name.segment);
  if (known_by_ == allocation_table::By::id || name.segment == 0) return name.id == 0 ? 0 : name.id ^ salt;
  if (name.slot == nullptr) return 0;
  const auto slot = static_cast<uint64_t>(name.slot - area_of(reg).peer->slots->word(0));
  return allocation_table::is_keyed(slot, name.slot_word)
             ? allocation_table::key_of_slot(slot, name.slot_word) ^ salt
             : 0;
}

void Pool::hide_locked(pinrail_registration_t* reg) { allocations_.remove(reg, entry_key(reg)); }

// It is nobody's to write to any more.
void Pool::forget_slot_locked(pinrail_registration_t* reg) {
  hide_locked(reg);
  name_of(reg).slot = nullptr;
}

void Pool::show_locked(pinrail_registration_t* reg) {
  const uint64_t key = entry_key(reg);
  if (key == 0 || (state::load(reg) & state::kPerThread) == 0) return;
  const Name& name = name_of(reg);
  const uint32_t sum = allocation_table::sum_over(name.base, name.length, name.id);
  allocations_.insert(reg, {key, area_of(reg).peer->number, sum});
}

// For a drop of which the calling thread knows nothing: claimed, so that the sum is of one moment.
bool Pool::confirm_held(const pinrail_thread_t* thread, pinrail_handle_t handle) {
  pinrail_registration_t* reg = handle.reg;
  Guard guard(cache_->mutex);
  for (;;) {
    uint64_t word = state::load(reg);
    if (state::generation(word) != handle.generation || (word & state::kReleaseClaim) != 0) return false;
    const bool indexed = (word & state::kIndexed) != 0;
    if (indexed && !state::exchange(reg, &word, word | state::kEvictClaim)) continue;
    if (indexed) hide_locked(reg);
    const int64_t references = references_of(thread, reg);
    if (indexed) show_locked(reg);
    // A claim that was broken meanwhile made the sum worthless.
    if (!indexed || references::revoke_claim(reg)) return references > 0;
  }
}

// An indexed one that nobody holds turns dead, and is the caller's.
bool Pool::claim_idle(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  if ((word & state::kIndexed) == 0) return false;
  if ((word & state::kPerThread) == 0) return state::references(word) == 0 && claim(reg, word);
  if (!state::exchange(reg, &word, word | state::kEvictClaim)) return false;
  hide_locked(reg);
  const int64_t references = references_of(thread, reg);
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

// It is dead and nobody holds it: the caller's to close.
void Pool::add_victim(pinrail_registration_t* reg, Victims* victims) {
  ++cache_->closing;
  victims->add(reg);
}

// Of those that were just killed, or were not summed since: who is held by nobody becomes a victim. At most as many as
// there is room for.
void Pool::claim_dead(const pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count,
                      Victims* victims) {
  if (count == 0) return;
  int64_t references[Victims::kRoom];
  const uint64_t before = rollbacks(thread);
  host_->count_references(host_, regs, count, PINRAIL_SUM_NOW, references);
  const auto note_held = [&] {
    if (held_dead_++ == 0) summed_undone_ = before;
  };
  for (size_t i = 0; i < count; ++i) {
    if (references[i] == references::kUnknown) {
      note_held();
    } else if (references[i] > 0) {
      note_held();
      if (host_->settle_dead(host_, handle_of(regs[i]), PINRAIL_DEAD_HELD) != 1) continue;
      --held_dead_;
      add_victim(regs[i], victims);
    } else {
      references::discard_excess_drops(regs[i], references[i]);
      state::set(regs[i], (state::load(regs[i]) & state::kFlags) | state::kReleaseClaim);
      add_victim(regs[i], victims);
    }
  }
}

// Somebody dropped it, or counted it in vain, and then saw it dead: it may have been the last reference.
void Pool::finish(pinrail_thread_t* thread, pinrail_handle_t handle) {
  Victims victims;
  {
    Guard guard(cache_->mutex);
    const uint64_t word = state::load(handle.reg);
    const bool is_open = state::generation(word) == handle.generation && (word & state::kReleaseClaim) == 0;
    if (!is_open || (word & state::kDead) == 0) return;
    if ((word & state::kSummed) == 0) {
      if (held_dead_ != 0) --held_dead_;
      claim_dead(thread, &handle.reg, 1, &victims);
    } else if (host_->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) {
      if (held_dead_ != 0) --held_dead_;
      add_victim(handle.reg, &victims);
    }
  }
  close(thread, victims, PINRAIL_REASON_RELEASED);
}

// Dead, and its drops are counted as they come.
pinrail_status_t Pool::drop_summed(pinrail_thread_t* thread, pinrail_handle_t handle) {
  Victims victims;
  {
    Guard guard(cache_->mutex);
    const int dropped = host_->settle_dead(host_, handle, PINRAIL_DEAD_DROP);
    if (dropped < 0) return PINRAIL_ERR_BAD_PARAM;
    if (dropped == 1) {
      if (held_dead_ != 0) --held_dead_;
      add_victim(handle.reg, &victims);
    }
  }
  close(thread, victims, PINRAIL_REASON_RELEASED);
  return PINRAIL_SUCCESS;
}

// What only seemed held: somebody, perhaps in another pool, counted it in vain while it was summed (references/C1).
void Pool::sum_again(pinrail_thread_t* thread) {
  close_left_over(thread);
  for (bool more = held_dead_.load(std::memory_order_relaxed) != 0; more;) {  // relaxed: a hint
    Victims victims;
    {
      Guard guard(cache_->mutex);
      if (held_dead_ == 0 || summed_undone_ == rollbacks(thread)) return;
      claim_again(thread, &victims);
      more = victims.full();
    }
    close(thread, victims, PINRAIL_REASON_RELEASED);
  }
}

void Pool::claim_again(const pinrail_thread_t* thread, Victims* victims) {
  pinrail_registration_t* unsummed[Victims::kRoom];
  size_t count = 0;
  const uint64_t before = rollbacks(thread);
  held_dead_ = 0;
  const auto note_held = [&](uint64_t when) {
    if (held_dead_++ == 0) summed_undone_ = when;
  };
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      constexpr uint64_t kWhich = state::kDead | state::kPerThread | state::kReleaseClaim;
      const uint64_t word = state::load(reg);
      if ((word & kWhich) != (state::kDead | state::kPerThread)) continue;
      if (victims->count() + count == Victims::kRoom) {
        note_held(before - 1);  // looked at in the next round
      } else if ((word & state::kSummed) == 0) {
        unsummed[count++] = reg;
      } else if (host_->settle_dead(host_, handle_of(reg), PINRAIL_DEAD_DROPPED) == 1) {
        add_victim(reg, victims);
      } else {
        note_held(before);
      }
    }
  }
  claim_dead(thread, unsummed, count, victims);
}

}  // namespace pinrail::gpu_pool
