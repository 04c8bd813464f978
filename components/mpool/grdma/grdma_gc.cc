// SPDX-License-Identifier: BSD-3-Clause
// Deferred deregistration, API context only: what events killed goes back to the device, once nobody holds it.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {
namespace {

constexpr size_t kBatch = 64;  // sums at a time, for one barrier

}  // namespace

// Gives back what is dead and unreferenced; returns how many.
size_t Pool::drain_own(pinrail_thread_t* thread) {
  // relaxed: only whether it is worth the way; who pushed or kicked and needs the answer comes by itself.
  const bool nothing = gc_list_.load(std::memory_order_relaxed) == nullptr &&
                       kicks_.load(std::memory_order_relaxed) == kicks_served_.load(std::memory_order_relaxed);
  if (nothing) return 0;
  draining_.fetch_add(1, std::memory_order_relaxed);
  size_t given_back = 0;
  uint64_t seen;
  do {
    seen = kicks_.load();
    given_back += drain_once(thread);
    kicks_served_.store(seen, std::memory_order_relaxed);
    // seq_cst: a drop that saw "dead" either kicked before this look, and we sum again, or comes to a limbo that has
    // it.
  } while (kicks_.load() != seen);
  // relaxed: the bound of the gc list need not be exact.
  if (gc_bytes_.load(std::memory_order_relaxed) <= settings_.gc_limit) gc_due_.store(false, std::memory_order_relaxed);
  draining_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  return given_back;
}

// Takes gc list and limbo, and puts back into limbo what is still held.
size_t Pool::drain_once(pinrail_thread_t* thread) {
  pinrail_registration_t* lists[2];
  {
    Guard guard(cache_->mutex);
    lists[0] = limbo_;
    limbo_ = nullptr;
  }
  // acquire: pairs with the release push in die_hook().
  lists[1] = gc_list_.exchange(nullptr, std::memory_order_acquire);
  pinrail_registration_t* batch[kBatch];
  size_t count = 0, given_back = 0;
  for (int i = 0; i < 2; ++i) {
    for (pinrail_registration_t* reg = lists[i]; reg != nullptr;) {
      pinrail_registration_t* next = area_of(reg).gc_next;
      if (i == 1) gc_bytes_.fetch_sub(reg->length, std::memory_order_relaxed);  // relaxed: a bound, not exact
      batch[count++] = reg;
      reg = next;
      if (count < kBatch) continue;
      given_back += sum_and_give_back(thread, batch, count);
      count = 0;
    }
  }
  return given_back + sum_and_give_back(thread, batch, count);
}

size_t Pool::sum_and_give_back(pinrail_thread_t* thread, pinrail_registration_t** regs, size_t count) {
  if (count == 0) return 0;
  int64_t references[kBatch];
  host_->count_references(host_, regs, count, references);
  size_t given_back = 0;
  for (size_t i = 0; i < count; ++i) {
    if (references[i] > 0) {
      put_in_limbo(regs[i]);
      continue;
    }
    references::forgive(regs[i], references[i]);
    to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: dismiss() takes the lock
    give_back(thread, regs[i], PINRAIL_REASON_RELEASED);
    ++given_back;
  }
  return given_back;
}

void Pool::put_in_limbo(pinrail_registration_t* reg) {
  Guard guard(cache_->mutex);
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
    given_back += pools[i]->drain_own(thread);
    pools[i]->visitors_.fetch_sub(1, std::memory_order_release);  // pairs with the acquire load in destroy()
  }
  return given_back;
}

void Pool::drain_if_due(pinrail_thread_t* thread) {
  // relaxed: a hint; the list itself is taken with an acquire.
  if (gc_due_.load(std::memory_order_relaxed)) drain_own(thread);
}

Status Pool::progress(pinrail_thread_t* thread) {
  drain_own(thread);
  return success();
}

}  // namespace pinrail::grdma
