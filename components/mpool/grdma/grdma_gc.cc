// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration, API context only: what events killed goes back to the device, once nobody holds it.
#include "base/core/on_unwind.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// Gives back what is dead and unreferenced, of what events killed at most so many; returns how many.
size_t Pool::drain_own(pinrail_thread_t* thread, size_t most) {
  if (!has_dead(thread)) return 0;
  draining_.fetch_add(1, std::memory_order_relaxed);
  OnUnwind unwound([this] { draining_.fetch_sub(1, std::memory_order_release); });
  size_t given_back = is_misjudged(thread) ? look_at_limbo(thread) : 0;
  given_back += drain_displaced(thread, most);
  given_back += drain_once(thread, most);
  // relaxed: the bound of the gc list need not be exact.
  if (gc_bytes_.load(std::memory_order_relaxed) <= settings_.gc_limit) gc_due_.store(false, std::memory_order_relaxed);
  unwound.disarm();
  draining_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  return given_back;
}

// Takes the gc list, and puts back into gc_rest_ what was too much, or could not be summed.
size_t Pool::drain_once(pinrail_thread_t* thread, size_t most) {
  pinrail_registration_t* dead;
  {
    Guard guard(cache_->mutex);
    dead = gc_rest_.load(std::memory_order_relaxed);  // relaxed: read for good under the lock only
    gc_rest_.store(nullptr, std::memory_order_relaxed);
  }
  // acquire: pairs with the release push in die_hook().
  if (dead == nullptr) dead = gc_list_.exchange(nullptr, std::memory_order_acquire);
  OnUnwind unwound([&] {
    if (dead != nullptr) put_rest_back(dead);
  });
  const size_t given_back = sum_some(thread, &dead, most);
  unwound.disarm();
  if (dead != nullptr) put_rest_back(dead);
  return given_back;
}

// Sums the first so many of the list, one barrier for each batch, until one fails.
size_t Pool::sum_some(pinrail_thread_t* thread, pinrail_registration_t** list, size_t most) {
  pinrail_registration_t* batch[kBatch];
  int64_t references[kBatch];
  size_t given_back = 0;
  while (*list != nullptr && most != 0) {
    // seq_cst, before the sum: what a failed find takes back after this raises it.
    const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);
    size_t count = 0;
    uint64_t bytes = 0;
    pinrail_registration_t* rest = *list;
    for (; rest != nullptr && count < std::min(kBatch, most); rest = area_of(rest).gc_next) {
      batch[count++] = rest;
      bytes += rest->length;
    }
    host_->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    if (references[0] == PINRAIL_REFERENCES_UNKNOWN) break;
    *list = rest;
    count_off_gc_list(bytes, count);
    most -= count;
    given_back += give_back_idle(thread, batch, references, count, rollbacks);
  }
  return given_back;
}

void Pool::count_off_gc_list(uint64_t bytes, uint64_t count) {
  gc_bytes_.fetch_sub(bytes, std::memory_order_relaxed);  // relaxed: a bound, not exact
  gc_count_.fetch_sub(count, std::memory_order_relaxed);  // as above
}

// The same for what was displaced, which events must reach all the time (grdma/G6).
size_t Pool::drain_displaced(pinrail_thread_t* thread, size_t most) {
  size_t given_back = 0;
  while (most != 0 && displaced_.load() != nullptr) {
    pinrail_registration_t* idle[kBatch];
    size_t idle_count = 0, i = 0;
    const size_t summed = sum_displaced(thread, std::min(kBatch, most), idle, &idle_count);
    if (summed == 0) break;
    OnUnwind unwound([&] { put_batch_back(idle + i + 1, idle_count - i - 1); });
    for (; i < idle_count; ++i) give_back_dropped(thread, idle[i]);
    unwound.disarm();
    given_back += idle_count;
    most -= summed;
  }
  return given_back;
}

// Off displaced_: what is held goes into limbo, the rest is the caller's. How many were summed; 0 also if the barrier
// failed. The cache lock keeps others from taking the same ones.
size_t Pool::sum_displaced(const pinrail_thread_t* thread, size_t most, pinrail_registration_t** idle_out,
                           size_t* idle_count_out) {
  pinrail_registration_t* regs[kBatch];
  int64_t references[kBatch];
  Guard guard(cache_->mutex);
  const size_t count = first_displaced(regs, most);
  if (count == 0) return 0;
  const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);  // as in sum_some()
  host_->count_references(host_, regs, count, PINRAIL_SUM_NOW, references);
  if (references[0] == PINRAIL_REFERENCES_UNKNOWN) return 0;
  unlink_displaced(regs, references, count);
  size_t idle_count = 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    bytes += regs[i]->length;
    if (references[i] > 0) {
      note_limbo(rollbacks);
      if (host_->settle_dead(host_, {regs[i], generation_of(regs[i])}, PINRAIL_DEAD_HELD) != 1) continue;
    } else {
      references::discard_excess_drops(regs[i], references[i]);
    }
    idle_out[idle_count++] = regs[i];
  }
  *idle_count_out = idle_count;
  count_off_gc_list(bytes, count);
  return count;
}

size_t Pool::first_displaced(pinrail_registration_t** regs_out, size_t most) {
  Guard guard(pending_mutex_);
  size_t count = 0;
  pinrail_registration_t* reg = displaced_.load();
  for (; reg != nullptr && count < most; reg = area_of(reg).gc_next) regs_out[count++] = reg;
  return count;
}

// The registrations are those of first_displaced(), one behind the other; others may have come before them since. What
// has references goes into limbo in the same step.
void Pool::unlink_displaced(pinrail_registration_t* const* regs, const int64_t* references, size_t count) {
  Guard guard(pending_mutex_);
  pinrail_registration_t* before = displaced_.load();
  pinrail_registration_t* const rest = area_of(regs[count - 1]).gc_next;
  if (before == regs[0]) {
    displaced_.store(rest);
  } else {
    while (area_of(before).gc_next != regs[0]) before = area_of(before).gc_next;
    area_of(before).gc_next = rest;
  }
  for (size_t i = 0; i < count; ++i) {
    if (references[i] <= 0) continue;
    all_.unlink(regs[i]);
    limbo_.link(regs[i]);
  }
  watch_no_displaced();
}

// What could not be summed stands there still, and is given back by who calls this.
void Pool::forget_displaced() {
  Guard guard(pending_mutex_);
  displaced_.store(nullptr);
}

// If nothing displaced is left, events need not look for it. Under the cache lock besides.
void Pool::watch_no_displaced() {
  if (displaced_.load() == nullptr && limbo_.first == nullptr) has_displaced_.store(false);
}

void Pool::put_rest_back(pinrail_registration_t* rest) {
  Guard guard(cache_->mutex);
  pinrail_registration_t* other = gc_rest_.load(std::memory_order_relaxed);  // relaxed: under the lock
  gc_rest_.store(rest, std::memory_order_relaxed);
  wake_gc_hook(PINRAIL_GC_SOON);  // it may have come and gone while this thread had them in its hands
  if (other == nullptr) return;
  while (area_of(rest).gc_next != nullptr) rest = area_of(rest).gc_next;  // another thread drained, too: rare
  area_of(rest).gc_next = other;
}

// rollbacks: of before the sum.
size_t Pool::give_back_idle(pinrail_thread_t* thread, pinrail_registration_t** regs, const int64_t* references,
                            size_t count, uint64_t rollbacks) {
  size_t given_back = 0, i = 0;
  OnUnwind unwound([&] { put_batch_back(regs + i + 1, count - i - 1); });
  for (; i < count; ++i) {
    if (references[i] > 0 && !put_in_limbo(regs[i], rollbacks)) continue;
    if (references[i] <= 0) references::discard_excess_drops(regs[i], references[i]);
    give_back_dropped(thread, regs[i]);
    ++given_back;
  }
  unwound.disarm();
  return given_back;
}

// The thread ends inside the registrar: whoever drains next sums them again.
void Pool::put_batch_back(pinrail_registration_t** regs, size_t count) {
  if (count == 0) return;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    area_of(regs[i]).gc_next = i + 1 < count ? regs[i + 1] : nullptr;
    bytes += regs[i]->length;
  }
  gc_bytes_.fetch_add(bytes, std::memory_order_relaxed);  // relaxed: a bound, not exact
  gc_count_.fetch_add(count, std::memory_order_relaxed);  // as above
  put_rest_back(regs[0]);
}

// Nobody holds it, and it is the caller's.
void Pool::give_back_dropped(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
  give_back(thread, reg, PINRAIL_REASON_RELEASED);
}

// It was summed, and is held; first into the list, for afterwards its last drop may give it back. True if that came
// meanwhile: it is the caller's.
bool Pool::put_in_limbo(pinrail_registration_t* reg, uint64_t rollbacks) {
  Guard guard(cache_->mutex);
  note_limbo(rollbacks);
  all_.unlink(reg);
  {
    Guard pending(pending_mutex_);
    limbo_.link(reg);
  }
  return host_->settle_dead(host_, {reg, generation_of(reg)}, PINRAIL_DEAD_HELD) == 1;
}

// Something that was summed then is in limbo. Under the cache lock.
void Pool::note_limbo(uint64_t rollbacks) {
  // relaxed: under the lock. The oldest one counts.
  limbo_undone_.store(std::min(rollbacks, limbo_undone_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
}

// What a find counted in vain, and took back without a word. Those that are idle go; one thread at a time looks.
size_t Pool::look_at_limbo(pinrail_thread_t* thread) {
  size_t given_back = 0;
  for (bool begins = true, more = true; more; begins = false) {
    pinrail_registration_t* batch[kBatch];
    size_t idle = 0;
    {
      Guard guard(cache_->mutex);
      if (begins) {
        if (limbo_.places[List::looking] != nullptr) return 0;
        limbo_.places[List::looking] = limbo_.first;
        // relaxed: under the lock. seq_cst: what is taken back after this raises it.
        const uint64_t rollbacks = __atomic_load_n(thread->rollbacks, __ATOMIC_SEQ_CST);
        limbo_undone_.store(limbo_.first == nullptr ? kNoLimbo : rollbacks, std::memory_order_relaxed);
      }
      const size_t count = limbo_.next_batch(List::looking, batch, kBatch);
      for (size_t i = 0; i < count; ++i) {
        const pinrail_handle_t handle = {batch[i], generation_of(batch[i])};
        if (host_->settle_dead(host_, handle, PINRAIL_DEAD_DROPPED) == 1) batch[idle++] = batch[i];
      }
      more = limbo_.places[List::looking] != nullptr;
    }
    size_t i = 0;
    OnUnwind unwound([&] {
      {
        Guard guard(cache_->mutex);
        limbo_.places[List::looking] = nullptr;
      }
      put_batch_back(batch + i + 1, idle - i - 1);
    });
    for (; i < idle; ++i) give_back_dropped(thread, batch[i]);
    unwound.disarm();
    given_back += idle;
  }
  return given_back;
}

// The same for every pool of the cache that a call into this one may touch.
size_t Pool::drain_all(pinrail_thread_t* thread) {
  constexpr size_t kPools = 64;
  Pool* pools[kPools];
  const size_t count = cache_->reachable_pools(this, pools, kPools);
  size_t given_back = 0, i = 0;
  // release: pairs with the acquire load in destroy().
  const auto leave_one = [&] { pools[i++]->visitors_.fetch_sub(1, std::memory_order_release); };
  OnUnwind unwound([&] {
    while (i < count) leave_one();
  });
  while (i < count) {
    given_back += pools[i]->drain_own(thread, kSome);
    leave_one();
  }
  unwound.disarm();
  return given_back;
}

// For the gc thread: everything. 1: some of it is held still, and may only seem so; or it could not be summed.
int Pool::drain_entry(void* pool_pointer, pinrail_thread_t* thread) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  const Status drained = guarded([&] {
    do {  // what an earlier call left over first, then what has come since
      pool->drain_own(thread, SIZE_MAX);
    } while (pool->gc_rest_.load(std::memory_order_relaxed) == nullptr &&
             pool->gc_list_.load(std::memory_order_relaxed) != nullptr);
    return success();
  });
  const bool is_left = pool->gc_rest_.load(std::memory_order_relaxed) != nullptr ||
                       pool->displaced_.load(std::memory_order_relaxed) != nullptr ||
                       pool->limbo_undone_.load(std::memory_order_relaxed) != kNoLimbo;
  return !drained.ok() || is_left ? 1 : 0;
}

void Pool::drain_if_due(pinrail_thread_t* thread) {
  // relaxed: a hint; the list itself is taken with an acquire.
  if (gc_due_.load(std::memory_order_relaxed)) drain_own(thread, SIZE_MAX);
}

// A barrier disturbs every processor that runs one of our threads, and takes longer than a registration: so it waits
// until it serves many, where somebody else sees to it that the wait is short.
void Pool::drain_if_many(pinrail_thread_t* thread) {
  const bool may_wait = gc_member_ != nullptr && !is_overdue(thread);
  // relaxed: a hint, as above
  if (may_wait && gc_count_.load(std::memory_order_relaxed) < kBatch) return;
  drain_own(thread, kSome);
}

Status Pool::progress(pinrail_thread_t* thread) {
  drain_own(thread, SIZE_MAX);  // what an earlier call left over
  drain_own(thread, SIZE_MAX);  // what has come since
  return gpu_ != nullptr ? gpu_->ranges()->progress(thread) : success();
}

}  // namespace pinrail::grdma
