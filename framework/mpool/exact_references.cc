// SPDX-License-Identifier: BSD-3-Clause
// Who holds a registration that is counted per thread? Found out only when somebody must know: to evict, to close what
// died, to destroy. A call of the driver costs a hundred times what a sum does, so they are summed one by one.
#include "framework/mpool/exact_match.h"

namespace pinrail::exact {
namespace {

constexpr int kTries = 4;  // sums that a find in vain may have spoilt

uint64_t undone(const pinrail_thread_t* thread) { return __atomic_load_n(thread->undone, __ATOMIC_SEQ_CST); }

}  // namespace

int64_t Pool::references_of(const pinrail_thread_t* thread, pinrail_registration_t* reg) const {
  const uint64_t word = state::load(reg);
  if ((word & state::kPerThread) == 0) return static_cast<int64_t>(state::references(word));
  int64_t references = 0;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t before = undone(thread);
    host_->count_references(host_, &reg, 1, PINRAIL_SUM_NOW, &references);
    if (references <= 0 || references == references::kUnknown || undone(thread) == before) break;
  }
  return references;
}

// As its entry has it, disguised; 0: it can have none.
uint64_t Pool::entry_key(const pinrail_registration_t* reg) const {
  const Name& name = name_of(reg);
  const uint64_t disguise = allocations::disguise(name.pid, name.start, name.segment);
  if (known_by_ == allocations::By::id || name.segment == 0) return name.id == 0 ? 0 : name.id ^ disguise;
  if (name.slot == nullptr) return 0;
  const auto slot = static_cast<uint64_t>(name.slot - area_of(reg).peer->slots->word(0));
  return allocations::is_keyed(slot, name.life) ? allocations::key_of_slot(slot, name.life) ^ disguise : 0;
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
  const uint32_t sum = allocations::sum_over(name.base, name.length, name.id);
  allocations_.insert(reg, {key, area_of(reg).peer->number, sum});
}

// For a drop of which the calling thread knows nothing: sealed, so that the sum is of one moment.
bool Pool::confirm_held(const pinrail_thread_t* thread, pinrail_handle_t handle) {
  pinrail_registration_t* reg = handle.reg;
  Guard guard(cache_->mutex);
  for (;;) {
    uint64_t word = state::load(reg);
    if (state::generation(word) != handle.generation || (word & state::kClaimed) != 0) return false;
    const bool indexed = (word & state::kIndexed) != 0;
    if (indexed && !state::exchange(reg, &word, word | state::kSealed)) continue;
    if (indexed) hide_locked(reg);
    const int64_t references = references_of(thread, reg);
    if (indexed) show_locked(reg);
    // A seal that was broken meanwhile made the sum worthless.
    if (!indexed || references::unseal(reg)) return references > 0;
  }
}

// An indexed one that nobody holds turns dead, and is the caller's.
bool Pool::claim_idle(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  if ((word & state::kIndexed) == 0) return false;
  if ((word & state::kPerThread) == 0) return state::references(word) == 0 && claim(reg, word);
  if (!state::exchange(reg, &word, word | state::kSealed)) return false;
  hide_locked(reg);
  const int64_t references = references_of(thread, reg);
  if (references <= 0 && references::forgive_sealed(reg, references)) {
    word = state::load(reg);
    while ((word & state::kSealed) != 0) {
      constexpr uint64_t kGone = state::kIndexed | state::kSealed;
      if (state::exchange(reg, &word, (word & ~kGone) | state::kDead | state::kClaimed)) return true;
    }
  }
  show_locked(reg);
  references::unseal(reg);
  return false;
}

// One that was just killed, or was found dead and held before: the caller's, if nobody holds it.
bool Pool::claim_dead(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const uint64_t before = undone(thread);
  const int64_t references = references_of(thread, reg);
  if (references > 0) {
    if (held_dead_++ == 0) summed_undone_ = before;
    return false;
  }
  references::forgive(reg, references);
  const uint64_t word = state::load(reg);
  state::set(reg, (word & state::kFlags) | state::kClaimed);
  return true;
}

// Somebody dropped it, or counted it in vain, and then saw it dead: it may have been the last reference.
void Pool::finish(pinrail_thread_t* thread, pinrail_handle_t handle) {
  {
    Guard guard(cache_->mutex);
    const uint64_t word = state::load(handle.reg);
    const bool is_open = state::generation(word) == handle.generation && (word & state::kClaimed) == 0;
    if (!is_open || (word & state::kDead) == 0) return;
    if (held_dead_ != 0) --held_dead_;
    if (!claim_dead(thread, handle.reg)) return;
    ++cache_->closing;
  }
  close_one(thread, handle.reg, PINRAIL_REASON_RELEASED);
}

// What only seemed held: somebody, perhaps in another pool, counted it in vain while it was summed (C1 of
// references.h).
void Pool::sum_again(pinrail_thread_t* thread) {
  for (bool more = held_dead_.load(std::memory_order_relaxed) != 0; more;) {  // relaxed: a hint
    Victims victims;
    {
      Guard guard(cache_->mutex);
      if (held_dead_ == 0 || summed_undone_ == undone(thread)) return;
      held_dead_ = 0;
      for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
        for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
          constexpr uint64_t kWhich = state::kDead | state::kPerThread | state::kClaimed;
          if ((state::load(reg) & kWhich) != (state::kDead | state::kPerThread)) continue;
          if (victims.full()) {
            if (held_dead_++ == 0) summed_undone_ = undone(thread) - 1;  // looked at in the next round
            continue;
          }
          if (!claim_dead(thread, reg)) continue;
          ++cache_->closing;
          victims.add(reg);
        }
      }
      more = victims.full();
    }
    close(thread, victims, PINRAIL_REASON_RELEASED);
  }
}

}  // namespace pinrail::exact
