// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration, API context only: what events killed goes back to the device, once nobody holds it.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// Gives back what is dead and unreferenced, of what events killed at most so many; returns how many.
size_t Pool::drain_own(pinrail_thread_t* thread, size_t most) {
  if (!has_dead(thread)) return 0;
  draining_.fetch_add(1, std::memory_order_relaxed);
  size_t given_back = 0;
  uint64_t seen;
  do {
    seen = kicks_.load();
    given_back += drain_once(thread, most);
    kicks_served_.store(seen, std::memory_order_relaxed);
    // seq_cst: a drop that saw "dead" either kicked before this look, and we sum again, or comes to a limbo that has
    // it.
  } while (kicks_.load() != seen);
  // relaxed: the bound of the gc list need not be exact.
  if (gc_bytes_.load(std::memory_order_relaxed) <= settings_.gc_limit) gc_due_.store(false, std::memory_order_relaxed);
  draining_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  return given_back;
}

// Takes limbo and gc list, and puts back into limbo what is still held, into gc_rest_ what was too much.
size_t Pool::drain_once(pinrail_thread_t* thread, size_t most) {
  // seq_cst, before the sums: what a failed find takes back after this raises it.
  const uint64_t undone = __atomic_load_n(thread->undone, __ATOMIC_SEQ_CST);
  pinrail_registration_t *limbo, *dead;
  {
    Guard guard(cache_->mutex);
    limbo = limbo_;
    limbo_ = nullptr;
    limbo_undone_.store(kNoLimbo, std::memory_order_relaxed);  // relaxed: read for good under the lock only
    dead = gc_rest_.load(std::memory_order_relaxed);           // as above
    gc_rest_.store(nullptr, std::memory_order_relaxed);
  }
  // acquire: pairs with the release push in die_hook().
  if (dead == nullptr) dead = gc_list_.exchange(nullptr, std::memory_order_acquire);
  size_t given_back = sum_list(thread, &limbo, SIZE_MAX, undone, false);
  given_back += sum_list(thread, &dead, most, undone, true);
  if (dead != nullptr) put_rest_back(dead);
  return given_back;
}

// Sums the first so many of the list, one barrier for each batch; from_hook: their bytes are counted as dead.
size_t Pool::sum_list(pinrail_thread_t* thread, pinrail_registration_t** list, size_t most, uint64_t undone,
                      bool from_hook) {
  pinrail_registration_t* batch[kBatch];
  size_t given_back = 0;
  while (*list != nullptr && most != 0) {
    size_t count = 0;
    for (; *list != nullptr && count < std::min(kBatch, most); *list = area_of(*list).gc_next) {
      batch[count++] = *list;
      if (from_hook) gc_bytes_.fetch_sub((*list)->length, std::memory_order_relaxed);  // relaxed: a bound, not exact
    }
    if (from_hook) gc_count_.fetch_sub(count, std::memory_order_relaxed);  // as above
    most -= count;
    given_back += sum_and_give_back(thread, batch, count, undone);
  }
  return given_back;
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

// undone: of before the sum.
size_t Pool::sum_and_give_back(pinrail_thread_t* thread, pinrail_registration_t** regs, size_t count, uint64_t undone) {
  int64_t references[kBatch];
  host_->count_references(host_, regs, count, references);
  size_t given_back = 0;
  for (size_t i = 0; i < count; ++i) {
    if (references[i] > 0) {
      put_in_limbo(regs[i], undone);
      continue;
    }
    references::forgive(regs[i], references[i]);
    to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
    give_back(thread, regs[i], PINRAIL_REASON_RELEASED);
    ++given_back;
  }
  return given_back;
}

void Pool::put_in_limbo(pinrail_registration_t* reg, uint64_t undone) {
  Guard guard(cache_->mutex);
  // relaxed: under the lock. The oldest one counts.
  limbo_undone_.store(std::min(undone, limbo_undone_.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  area_of(reg).gc_next = limbo_;
  limbo_ = reg;
}

// The same for every pool of the cache that a call into this one may touch.
size_t Pool::drain_all(pinrail_thread_t* thread) {
  constexpr size_t kPools = 64;
  Pool* pools[kPools];
  const size_t count = cache_->reachable_pools(this, pools, kPools);
  size_t given_back = 0;
  for (size_t i = 0; i < count; ++i) {
    given_back += pools[i]->drain_own(thread, kSome);
    pools[i]->visitors_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  }
  return given_back;
}

// For the gc thread: everything. 1: some of it is held still, and how its holder drops it, nobody may hear.
int Pool::drain_entry(void* pool_pointer, pinrail_thread_t* thread) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  const Status drained = guarded([&] {
    do {  // what an earlier call left over first, then what has come since
      pool->drain_own(thread, SIZE_MAX);
    } while (pool->gc_rest_.load(std::memory_order_relaxed) != nullptr ||
             pool->gc_list_.load(std::memory_order_relaxed) != nullptr);
    return success();
  });
  const bool is_held = pool->limbo_undone_.load(std::memory_order_relaxed) != kNoLimbo;
  return !drained.ok() || is_held ? 1 : 0;
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
