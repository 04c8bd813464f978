// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration: what events killed goes back to the device once it is not held. API context, also on the gc
// thread. The caller holds no lock, because the registrar is called. The calling thread may hold references, also of
// what is dead.
#include "components/mpool/grdma/grdma_gc.h"

#include <algorithm>

#include "base/core/guarded.h"
#include "base/core/on_unwind.h"
#include "base/registration/references.h"

namespace pinrail::grdma {

// Gives back what is dead and unreferenced. Sums at most so many of the gc list and of the displaced list. Returns how
// many were given back.
size_t Gc::drain(pinrail_thread_t* thread, size_t most) {
  if (!has_dead(thread)) {
    settle_due();
    return 0;
  }
  in_flight_.begin_drain();
  const auto end = [this] {
    settle_due();
    in_flight_.end_drain();
  };
  OnUnwind unwound(end);
  size_t given_back = registered_.needs_recheck(thread) ? recheck_limbo(thread) : 0;
  given_back += drain_displaced(thread, most);
  given_back += drain_gc_list(thread, most);
  unwound.disarm();
  end();
  return given_back;
}

// E4. Events wake the gc thread when they exceed gc_limit, and not again while it is exceeded; so a drain that ends
// above it does. What cannot be summed waits for a later look.
void Gc::settle_due() {
  if (!gc_list_.is_due() || gc_list_.clear_due_below_limit()) return;
  const bool is_left = gc_list_.has_pushed() || gc_list_.has_rest() || unindexed_.has_displaced();
  if (is_left && host_->registrations->counts_per_thread(host_) != 0) gc_list_.wake_thread_hook(PINRAIL_GC_NOW);
}

// What is too much or cannot be summed is put back.
size_t Gc::drain_gc_list(pinrail_thread_t* thread, size_t most) {
  pinrail_registration_t* dead = gc_list_.take();
  OnUnwind unwound([&] {
    if (dead != nullptr) gc_list_.put_back(dead);
  });
  const size_t given_back = sum_some(thread, &dead, most);
  unwound.disarm();
  if (dead != nullptr) gc_list_.put_back(dead);
  return given_back;
}

// Takes the first so many off the chain and sums them, with one barrier for each batch, until a sum fails.
size_t Gc::sum_some(pinrail_thread_t* thread, pinrail_registration_t** chain, size_t most) {
  pinrail_registration_t* batch[kSome];
  int64_t references[kSome];
  size_t given_back = 0;
  while (*chain != nullptr && most != 0) {
    // seq_cst, before the sum: a find that rolls back after this raises it.
    const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);
    size_t count = 0;
    uint64_t bytes = 0;
    pinrail_registration_t* rest = *chain;
    for (; rest != nullptr && count < std::min(kSome, most); rest = area_of(rest).gc_next) {
      batch[count++] = rest;
      bytes += rest->length;
    }
    host_->registrations->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    if (references[0] == PINRAIL_REFERENCES_UNKNOWN) break;
    *chain = rest;
    gc_list_.count_off(bytes, count);
    most -= count;
    given_back += give_back_idle(thread, batch, references, count, rollbacks);
  }
  return given_back;
}

// rollbacks: thread->rollbacks before the sum. Afterwards regs has those that were not held. One whose release is
// claimed is in limbo already: the thread that was to give it back has ended inside the registrar.
size_t Gc::give_back_idle(pinrail_thread_t* thread, pinrail_registration_t** regs, const int64_t* references,
                          size_t count, uint64_t rollbacks) {
  size_t idle = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_claimed = (state::load(regs[i]) & state::kReleaseClaim) != 0;
    if (references[i] > 0 && !is_claimed && !put_in_limbo(regs[i], rollbacks)) continue;
    if (references[i] <= 0) references::discard_excess_drops(regs[i], references[i]);
    regs[idle++] = regs[i];
  }
  give_back(thread, regs, idle);
  return idle;
}

// They are dead and unreferenced. If the thread ends inside the registrar, the next drain sums the rest again.
void Gc::give_back(pinrail_thread_t* thread, pinrail_registration_t* const* regs, size_t count) {
  size_t given_back = 0;
  OnUnwind unwound([&] { gc_list_.put_batch_back(regs + given_back, count - given_back); });
  deregistrar_.give_back(thread, regs, count, PINRAIL_REASON_RELEASED, &given_back);
  unwound.disarm();
}

// The sum found it held. It is in limbo before the library counts its drops one by one, because afterwards its last
// drop may give it back. True if that drop has come meanwhile: then the caller gives it back.
bool Gc::put_in_limbo(pinrail_registration_t* reg, uint64_t rollbacks) {
  Guard guard(registered_.mutex);
  wake_for_limbo_locked();
  registered_.move_to_limbo_locked(reg, rollbacks);
  return host_->registrations->settle_dead(host_, {reg, generation_of(reg)}, PINRAIL_DEAD_HELD) == 1;
}

// The first one: it may only seem to be held, and the gc thread may have looked and gone to sleep.
void Gc::wake_for_limbo_locked() {
  if (!registered_.has_limbo()) gc_list_.wake_thread_hook(PINRAIL_GC_SOON);
}

// As drain_gc_list(), of the displaced list. What is on it stays in reach of events all the time (grdma_unindexed/U2).
size_t Gc::drain_displaced(pinrail_thread_t* thread, size_t most) {
  size_t given_back = 0;
  while (most != 0 && unindexed_.has_displaced()) {
    pinrail_registration_t* idle[kBatch];
    size_t idle_count = 0;
    const size_t summed = sum_displaced(thread, std::min(kBatch, most), idle, &idle_count);
    if (summed == 0) break;
    give_back(thread, idle, idle_count);
    given_back += idle_count;
    most -= summed;
  }
  return given_back;
}

// Moves some from the displaced list into limbo, where events reach them until they are given back: the caller does
// that with those that are not held. Returns how many were summed; 0 also if the barrier failed. The cache lock keeps
// other threads from summing the same ones.
size_t Gc::sum_displaced(const pinrail_thread_t* thread, size_t most, pinrail_registration_t** idle_out,
                         size_t* idle_count_out) {
  pinrail_registration_t* regs[kBatch];
  int64_t references[kBatch];
  Guard guard(registered_.mutex);
  const size_t count = unindexed_.first_displaced(regs, most);
  if (count == 0) return 0;
  const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);  // as in sum_some()
  host_->registrations->count_references(host_, regs, count, PINRAIL_SUM_NOW, references);
  if (references[0] == PINRAIL_REFERENCES_UNKNOWN) return 0;
  wake_for_limbo_locked();
  registered_.take_displaced_locked(regs, count, rollbacks);
  size_t idle_count = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    bytes += regs[i]->length;
    if (host_->registrations->settle_dead(host_, {regs[i], generation_of(regs[i])}, PINRAIL_DEAD_HELD) != 1) continue;
    idle_out[idle_count++] = regs[i];
  }
  *idle_count_out = idle_count;
  gc_list_.count_off(bytes, count);
  return count;
}

// Gives back what a sum found held only because a find was about to roll back. One thread at a time.
size_t Gc::recheck_limbo(pinrail_thread_t* thread) {
  size_t given_back = 0;
  for (bool begins = true, more = true; more; begins = false) {
    pinrail_registration_t* batch[kBatch];
    size_t idle = 0;
    {
      Guard guard(registered_.mutex);
      if (begins && !registered_.begin_recheck_locked(thread)) return 0;
      const size_t count = registered_.next_to_recheck_locked(batch, kBatch, &more);
      for (size_t i = 0; i < count; ++i) {
        const pinrail_handle_t handle = {batch[i], generation_of(batch[i])};
        if (host_->registrations->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) batch[idle++] = batch[i];
      }
    }
    // After the last batch another thread may have begun a walk.
    OnUnwind unwound([&] {
      if (more) registered_.stop_recheck();
    });
    give_back(thread, batch, idle);
    unwound.disarm();
    given_back += idle;
  }
  return given_back;
}

// For the gc thread: drains everything that was dead when it began; a drain takes what an earlier one left over, or
// else what was pushed. What is pushed meanwhile has woken the thread again: if it went on, each few would take a
// barrier. Returns 1 if something is left that could not be summed, or is in limbo and may only seem to be held.
int Gc::drain_entry(void* gc_pointer, pinrail_thread_t* thread) {
  auto* gc = static_cast<Gc*>(gc_pointer);
  const GcList& gc_list = gc->gc_list_;
  const Status drained = guarded([&] {
    const bool had_rest = gc_list.has_rest();
    gc->drain(thread, SIZE_MAX);
    if (had_rest && !gc_list.has_rest()) gc->drain(thread, SIZE_MAX);
    return success();
  });
  const bool is_left = gc_list.has_rest() || gc->unindexed_.has_displaced() || gc->registered_.has_limbo();
  return !drained.ok() || is_left ? 1 : 0;
}

// In a miss: drains some. A barrier interrupts every processor that runs a thread of the process, and takes longer than
// a registration. So it waits until it serves many registrations, if the gc thread limits how long they wait. While
// another thread drains, what it has taken is still counted until it has passed its barrier.
void Gc::drain_if_many(pinrail_thread_t* thread) {
  const bool may_wait = gc_list_.has_thread() && !is_overdue(thread);
  if (may_wait && gc_list_.count() < (in_flight_.is_draining() ? kSome : kMany)) return;
  drain(thread, kSome);
}

}  // namespace pinrail::grdma
