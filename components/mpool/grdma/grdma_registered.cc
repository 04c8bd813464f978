// SPDX-License-Identifier: BSD-3-Clause
// API context. Functions whose names end in _locked run under the cache lock; the others take it. No registrar is
// called. The calling thread may hold references.
#include "components/mpool/grdma/grdma_registered.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace pinrail::grdma {

void Registered::add_locked(pinrail_registration_t* reg) { all_.link(reg); }

// From whichever list has it. Takes the lock of Unindexed if that is limbo.
void Registered::remove_locked(pinrail_registration_t* reg) {
  if ((state::load(reg) & state::kSummed) == 0) {
    all_.unlink(reg);
    return;
  }
  {
    Guard unindexed(unindexed_.mutex);
    limbo_.unlink(reg);
    unindexed_.displaced_one_left_locked(limbo_.first == nullptr);
  }
  // relaxed: under the lock
  if (limbo_.first == nullptr) oldest_rollbacks_.store(kNoLimbo, std::memory_order_relaxed);
}

void Registered::note_rollbacks_locked(uint64_t rollbacks) {
  // relaxed: under the lock
  const uint64_t oldest = oldest_rollbacks_.load(std::memory_order_relaxed);
  oldest_rollbacks_.store(std::min(rollbacks, oldest), std::memory_order_relaxed);
}

// Takes the lock of Unindexed.
void Registered::move_to_limbo_locked(pinrail_registration_t* reg, uint64_t rollbacks) {
  note_rollbacks_locked(rollbacks);
  all_.unlink(reg);
  Guard unindexed(unindexed_.mutex);
  limbo_.link(reg);
}

// Takes the lock of Unindexed once: in one step for events, which look at both lists under it.
void Registered::take_displaced_locked(pinrail_registration_t* const* regs, const int64_t* references, size_t count,
                                       uint64_t rollbacks) {
  Guard unindexed(unindexed_.mutex);
  unindexed_.unlink_displaced_locked(regs, count);
  for (size_t i = 0; i < count; ++i) {
    if (references[i] <= 0) continue;
    note_rollbacks_locked(rollbacks);
    all_.unlink(regs[i]);
    limbo_.link(regs[i]);
  }
  unindexed_.displaced_one_left_locked(limbo_.first == nullptr);
}

// What is in limbo from now on counts as summed now.
bool Registered::begin_recheck_locked(const pinrail_thread_t* thread) {
  if (limbo_.places[List::looking] != nullptr) return false;
  limbo_.places[List::looking] = limbo_.first;
  // seq_cst: what is rolled back after this raises it. relaxed: under the lock.
  const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);
  oldest_rollbacks_.store(limbo_.first == nullptr ? kNoLimbo : rollbacks, std::memory_order_relaxed);
  return true;
}

size_t Registered::next_to_recheck_locked(pinrail_registration_t** regs_out, size_t most, bool* more_out) {
  const size_t count = limbo_.next_batch(List::looking, regs_out, most);
  *more_out = limbo_.places[List::looking] != nullptr;
  return count;
}

void Registered::stop_recheck() {
  Guard guard(mutex);
  limbo_.places[List::looking] = nullptr;
}

void Registered::forget_rollbacks_locked() {
  oldest_rollbacks_.store(kNoLimbo, std::memory_order_relaxed);  // relaxed: under the lock
}

void Registered::count_referenced(mpool::Referenced* referenced) NO_THREAD_SAFETY_ANALYSIS {
  for (List* list : {&all_, &limbo_}) count_referenced_in(list, referenced);
}

void Registered::count_referenced_in(List* list, mpool::Referenced* referenced) {
  for (bool begins = true, more = true; more; begins = false) {
    pinrail_registration_t* batch[kQuietBatch];
    int64_t references[kQuietBatch];
    if (!begins) std::this_thread::sleep_for(std::chrono::microseconds(1));  // else the lock is taken again at once
    Guard guard(mutex);
    if (begins) list->places[List::counting] = list->first;
    const size_t count = list->next_batch(List::counting, batch, kQuietBatch);
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_QUIET, references);
    for (size_t i = 0; i < count; ++i) referenced->add(batch[i], references[i]);
    more = list->places[List::counting] != nullptr;
  }
}

bool Registered::is_anything_held_locked(const pinrail_registration_t* own) const {
  if (limbo_.first != nullptr) return true;
  for (pinrail_registration_t* reg = all_.first; reg != nullptr;) {
    pinrail_registration_t* batch[kBatch];
    int64_t references[kBatch];
    size_t count = 0;
    for (; reg != nullptr && count < kBatch; reg = area_of(reg).next) {
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
  List& list = limbo_.first != nullptr ? limbo_ : all_;
  list.places[List::counting] = list.first;
  return list.next_batch(List::counting, regs_out, kQuietBatch);
}

void Registered::append_spans_locked(std::vector<Span>* spans) const {
  for (const List* list : {&all_, &limbo_}) {
    for (const pinrail_registration_t* reg = list->first; reg != nullptr; reg = area_of(reg).next) {
      spans->push_back(span_of(reg));
    }
  }
}

// Drops and hits change states without the lock, so only what they cannot change is checked.
const char* Registered::check_locked(const Pool* owner) const {
  for (const List* list : {&all_, &limbo_}) {
    const uint64_t in_limbo = state::kDead | state::kSummed | state::kPerThread;
    for (const pinrail_registration_t* reg = list->first; reg != nullptr; reg = area_of(reg).next) {
      const uint64_t word = state::load(reg);
      if (area_of(reg).owner != owner) return "a registration is in a wrong pool's list";
      if (list == &limbo_ && (word & in_limbo) != in_limbo) return "what is in limbo is not dead, or not summed";
      if (list == &limbo_) continue;
      if ((word & state::kSummed) != 0) return "a registration was summed dead and held, and is not in limbo";
      if ((word & state::kIndexed) != 0 && (word & state::kDead) != 0) return "a registration is indexed and dead";
    }
  }
  return nullptr;
}

}  // namespace pinrail::grdma
