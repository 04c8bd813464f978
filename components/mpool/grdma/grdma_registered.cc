// SPDX-License-Identifier: BSD-3-Clause
// API context. Functions whose names end in _locked run under the cache lock; the others take it. No registrar is
// called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_registered.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <thread>

namespace pinrail::grdma {

bool Registered::grow_locked() {
  constexpr uint32_t kMore = 64;
  const uint32_t before = round_.capacity, more = before / 8 + kMore;
  std::unique_ptr<uint32_t[]> numbers(new (std::nothrow) uint32_t[before + more]);
  if (numbers == nullptr) return false;
  std::copy_n(round_.numbers.get(), round_.size, numbers.get());
  Guard unindexed(unindexed_.mutex);
  std::copy_n(round_.numbers.get() + round_.size, round_.in_limbo, numbers.get() + round_.size + more);
  numbers.swap(round_.numbers);
  round_.capacity = before + more;
  return true;
}

// Wherever it is. Takes the lock of Unindexed if that is limbo.
void Registered::remove_locked(pinrail_registration_t* reg) {
  if ((state::load(reg) & state::kSummed) == 0) return round_.remove(reg);
  {
    Guard unindexed(unindexed_.mutex);
    round_.remove_from_limbo(reg);
    unindexed_.displaced_one_left_locked(round_.in_limbo == 0);
  }
  // relaxed: under the lock
  if (round_.in_limbo == 0) oldest_rollbacks_.store(kNoLimbo, std::memory_order_relaxed);
}

void Registered::note_rollbacks_locked(uint64_t rollbacks) {
  // relaxed: under the lock
  const uint64_t oldest = oldest_rollbacks_.load(std::memory_order_relaxed);
  oldest_rollbacks_.store(std::min(rollbacks, oldest), std::memory_order_relaxed);
}

// Takes the lock of Unindexed.
void Registered::move_to_limbo_locked(pinrail_registration_t* reg, uint64_t rollbacks) {
  note_rollbacks_locked(rollbacks);
  round_.remove(reg);
  Guard unindexed(unindexed_.mutex);
  round_.add_to_limbo(reg);
}

// Takes the lock of Unindexed once: in one step for events, which look at displaced list and limbo under it.
void Registered::take_displaced_locked(pinrail_registration_t* const* regs, size_t count, uint64_t rollbacks) {
  note_rollbacks_locked(rollbacks);
  Guard unindexed(unindexed_.mutex);
  unindexed_.unlink_displaced_locked(regs, count);
  for (size_t i = 0; i < count; ++i) {
    round_.remove(regs[i]);
    round_.add_to_limbo(regs[i]);
  }
  unindexed_.displaced_one_left_locked(round_.in_limbo == 0);
}

// What is in limbo from now on counts as summed now.
bool Registered::begin_recheck_locked(const pinrail_thread_t* thread) {
  if (recheck_ != 0) return false;
  recheck_ = round_.in_limbo;
  // seq_cst: what is rolled back after this raises it. relaxed: under the lock.
  const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);
  oldest_rollbacks_.store(recheck_ == 0 ? kNoLimbo : rollbacks, std::memory_order_relaxed);
  return true;
}

size_t Registered::next_to_recheck_locked(pinrail_registration_t** regs_out, size_t most, bool* more_out) {
  size_t count = 0;
  recheck_ = std::min<size_t>(recheck_, round_.in_limbo);
  while (recheck_ != 0 && count < most) regs_out[count++] = round_.limbo_at(--recheck_);
  *more_out = recheck_ != 0;
  return count;
}

// What the walk has not come to is due still: a walk began because the count of rollbacks is above 0.
void Registered::stop_recheck() {
  Guard guard(mutex);
  recheck_ = 0;
  if (round_.in_limbo != 0) note_rollbacks_locked(0);
}

void Registered::forget_rollbacks_locked() {
  oldest_rollbacks_.store(kNoLimbo, std::memory_order_relaxed);  // relaxed: under the lock
}

// Downwards, first those that may move to limbo meanwhile.
void Registered::count_referenced(mpool::Referenced* referenced) {
  for (const bool in_limbo : {false, true}) {
    for (size_t place = SIZE_MAX; place != 0;) {
      pinrail_registration_t* batch[kQuietBatch];
      int64_t references[kQuietBatch];
      if (place != SIZE_MAX) std::this_thread::sleep_for(std::chrono::microseconds(1));  // else the lock is taken again
      Guard guard(mutex);
      place = std::min<size_t>(place, in_limbo ? round_.in_limbo : round_.size);
      size_t count = 0;
      while (place != 0 && count < kQuietBatch) {
        --place;
        batch[count++] = in_limbo ? round_.limbo_at(place) : round_.at(place);
      }
      host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_QUIET, references);
      for (size_t i = 0; i < count; ++i) referenced->add(batch[i], references[i]);
    }
  }
}

bool Registered::is_anything_held_locked(const pinrail_registration_t* own) const {
  if (round_.in_limbo != 0) return true;
  for (size_t i = 0; i < round_.size;) {
    pinrail_registration_t* batch[kBatch];
    int64_t references[kBatch];
    size_t count = 0;
    for (; i < round_.size && count < kBatch; ++i) {
      pinrail_registration_t* const reg = round_.at(i);
      if (reg == own) continue;
      if ((state::load(reg) & (state::kIndexed | state::kDead)) == 0) return true;  // it is pending
      batch[count++] = reg;
    }
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    if (std::any_of(references, references + count, [](int64_t held) { return held > 0; })) return true;
  }
  return false;
}

size_t Registered::next_to_release(pinrail_registration_t** regs_out) {
  Guard guard(mutex);
  size_t count = 0;
  for (size_t i = round_.in_limbo; i != 0 && count < kQuietBatch;) regs_out[count++] = round_.limbo_at(--i);
  for (size_t i = round_.size; i != 0 && count < kQuietBatch;) regs_out[count++] = round_.at(--i);
  return count;
}

void Registered::append_spans_locked(std::vector<Span>* spans) const {
  for (size_t i = 0; i < round_.size; ++i) spans->push_back(span_of(round_.at(i)));
  for (size_t i = 0; i < round_.in_limbo; ++i) spans->push_back(span_of(round_.limbo_at(i)));
}

// Drops and hits change states without the lock, so only what they cannot change is checked.
const char* Registered::check_locked(const pinrail_mpool_t* owner, Memory memory) const {
  for (size_t i = 0; i < round_.size; ++i) {
    const uint64_t word = state::load(round_.at(i));
    const Area& area = area_of(round_.at(i));
    if (round_.at(i)->pool != owner || area.memory != memory || area.place != i)
      return "a registration is in a wrong place";
    if ((word & state::kSummed) != 0) return "a registration was summed dead and held, and is not in limbo";
    if ((word & state::kIndexed) != 0 && (word & state::kDead) != 0) return "a registration is indexed and dead";
  }
  for (size_t i = 0; i < round_.in_limbo; ++i) {
    const uint64_t in_limbo = state::kDead | state::kSummed | state::kPerThread;
    if (area_of(round_.limbo_at(i)).place != i) return "a registration is in a wrong place";
    if ((state::load(round_.limbo_at(i)) & in_limbo) != in_limbo) return "what is in limbo is not dead, or not summed";
  }
  return nullptr;
}

}  // namespace pinrail::grdma
