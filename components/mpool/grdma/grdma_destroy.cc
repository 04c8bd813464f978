// SPDX-License-Identifier: BSD-3-Clause
// R10: without references everything goes back to the device; with references only if the caller insists.
#include <string>
#include <thread>

#include "components/mpool/grdma/grdma_gpu.h"
#include "framework/mpool/say.h"

namespace pinrail::grdma {

Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  const bool force = (flags & PINRAIL_DESTROY_FORCE) != 0;
  if (gpu_ != nullptr && !gpu_->ranges()->close_if_idle(force)) return PINRAIL_ERR_BUSY;
  if (!close_if_idle(force)) {
    if (gpu_ != nullptr) gpu_->ranges()->open_again();
    return PINRAIL_ERR_BUSY;
  }
  if (settings_.print_stats) {
    pinrail_mpool_stats_t figures{};
    stats(&figures);
    mpool::say_stats(host_, figures);
  }
  if (gpu_ != nullptr) gpu_->end(thread);
  gpu_.reset();
  end_all(thread);
  return success();
}

void Pool::open_again() {
  Guard guard(cache_->mutex);
  closing_ = false;
}

// Closed: ends with `delete this`.
void Pool::end_all(pinrail_thread_t* thread) {
  leave_gc_thread();
  settle(thread, UINT64_MAX);
  forget_displaced();
  release_all(thread, Device::knows);
  host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  if (start_table_ != nullptr) host_->forget_notes(host_, start_table_);
  rcache_.ops->destroy(rcache_.module);
  leave_cache();
  delete this;
}

size_t Pool::referenced() { return (gpu_ != nullptr ? gpu_->ranges()->referenced() : 0) + count_referenced(nullptr); }

// list_out: the first few, in words. Nobody else is in a call on this pool (R10); but the gc thread moves some from
// all_ to limbo_, and one that does so meanwhile is counted twice at worst.
size_t Pool::count_referenced(std::string* list_out) {
  mpool::Referenced referenced(list_out);
  for (List* list : {&all_, &limbo_}) count_referenced_in(list, &referenced);
  return referenced.count();
}

// The lock is not held all the time, for others of the cache wait for it.
void Pool::count_referenced_in(List* list, mpool::Referenced* referenced) {
  for (bool begins = true, more = true; more; begins = false) {
    pinrail_registration_t* batch[kQuietBatch];
    int64_t references[kQuietBatch];
    if (!begins) std::this_thread::sleep_for(std::chrono::microseconds(1));  // else the lock is taken again at once
    Guard guard(cache_->mutex);
    if (begins) list->places[List::counting] = list->first;
    const size_t count = list->next_batch(List::counting, batch, kQuietBatch);
    host_->count_references(host_, batch, count, PINRAIL_SUM_QUIET, references);
    for (size_t i = 0; i < count; ++i) referenced->look_at(batch[i], references[i]);
    more = list->places[List::counting] != nullptr;
  }
}

// Whether anything but `own` is referenced or under way. Under the cache lock. What cannot be summed counts as held.
bool Pool::is_anything_held(const pinrail_registration_t* own) const {
  if (limbo_.first != nullptr) return true;
  for (pinrail_registration_t* reg = all_.first; reg != nullptr;) {
    pinrail_registration_t* batch[kBatch];
    int64_t references[kBatch];
    size_t count = 0;
    for (; reg != nullptr && count < kBatch; reg = area_of(reg).next) {
      if (reg == own) continue;
      if ((state::load(reg) & (state::kIndexed | state::kDead)) == 0) return true;  // pending
      batch[count++] = reg;
    }
    host_->count_references(host_, batch, count, PINRAIL_SUM_NOW, references);
    for (size_t i = 0; i < count; ++i) {
      if (references[i] > 0) return true;
    }
  }
  return false;
}

// From now on other pools of the cache leave this one alone. False, with nothing changed, if something is referenced.
bool Pool::close_if_idle(bool force) {
  {
    Guard guard(cache_->mutex);
    closing_ = true;
  }
  if (force) return true;
  std::string list;
  const size_t referenced = count_referenced(&list);
  if (referenced == 0) return true;
  open_again();
  mpool::say_busy(host_, referenced, list);
  return false;
}

// What other threads are giving back, or draining, of this pool comes to its end; or so many rounds of 200 us pass.
void Pool::settle(pinrail_thread_t* thread, uint64_t rounds) {
  for (; rounds != 0; --rounds) {
    drain_own(thread, SIZE_MAX);
    // acquire: pairs with the release decrements of give_back() and drain_all().
    const uint64_t busy = visitors_.load(std::memory_order_acquire) + to_release_.load(std::memory_order_acquire) +
                          draining_.load(std::memory_order_acquire);
    if (busy == 0) return;
    Guard guard(cache_->mutex);
    cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
  }
}

// Nobody but hooks is at this pool any more, from here on. What a callback's event touches is told so (R12), so each
// one leaves the index when it is its turn.
void Pool::release_all(pinrail_thread_t* thread, Device device) {
  pinrail_registration_t* batch[kQuietBatch];
  int64_t references[kQuietBatch];
  while (const size_t count = next_to_release(batch)) {
    host_->count_references(host_, batch, count, PINRAIL_SUM_QUIET, references);
    for (size_t i = 0; i < count; ++i) {
      Status(rcache_.ops->remove(rcache_.module, batch[i])).ignore();  // NOT_FOUND: it was not indexed
      release_one(thread, batch[i], references[i], device);
    }
  }
}

size_t Pool::next_to_release(pinrail_registration_t** regs_out) {
  Guard guard(cache_->mutex);
  List& list = limbo_.first != nullptr ? limbo_ : all_;
  list.places[List::counting] = list.first;
  return list.next_batch(List::counting, regs_out, kQuietBatch);
}

// A referenced one is made an orphan: its handles may still be deregistered, and their drops are counted as they come.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg, int64_t references, Device device) {
  const uint64_t kept = state::load(reg) & (state::kPerThread | state::kSummed);
  to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only this thread is left
  state::set(reg, kept | state::kDead);
  tell_device_off(thread, reg, PINRAIL_REASON_FINALIZED, device);
  cache_->dismiss(this, reg);
  if (references <= 0) {
    references::discard_excess_drops(reg, references);
    end(reg, this);
    return;
  }
  if ((kept & state::kPerThread) != 0) host_->settle_dead(host_, {reg, generation_of(reg)}, PINRAIL_DEAD_HELD);
  state::set(reg, (state::load(reg) & state::kFlags) | state::kOrphan);
  to_release_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace pinrail::grdma
