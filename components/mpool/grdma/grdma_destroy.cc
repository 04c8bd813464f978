// SPDX-License-Identifier: BSD-3-Clause
// R10: without references everything goes back to the device; with references only if the caller insists.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {
namespace {

constexpr size_t kNamed = 4;  // how many referenced registrations a refusal lists

// What one referenced registration looks like in a message.
std::string describe(const pinrail_registration_t* reg) {
  char line[96];
  std::snprintf(line, sizeof(line), "[%p, +%zu) with %u reference(s)", reg->base, reg->length,
                static_cast<unsigned>(state::references(state::load(reg))));
  return line;
}

}  // namespace

Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  if (!close_if_idle((flags & PINRAIL_DESTROY_FORCE) != 0)) return PINRAIL_ERR_BUSY;
  host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  settle(thread);
  release_all(thread);
  if (settings_.print_stats) say_stats();
  rcache_.ops->destroy(rcache_.module);
  leave_cache();
  delete this;
  return success();
}

size_t Pool::referenced() const {
  Guard guard(cache_->mutex);
  return count_referenced(nullptr);
}

// list_out: the first few, in words.
size_t Pool::count_referenced(std::string* list_out) const {
  size_t referenced = 0;
  for (const pinrail_registration_t* reg = all_; reg != nullptr; reg = area_of(reg).next) {
    if (state::references(state::load(reg)) == 0) continue;
    if (++referenced <= kNamed && list_out != nullptr) *list_out += (list_out->empty() ? "" : ", ") + describe(reg);
  }
  return referenced;
}

// From now on other pools of the cache leave this one alone. False, with nothing changed, if something is referenced.
bool Pool::close_if_idle(bool force) {
  std::string list;
  size_t referenced = 0;
  {
    Guard guard(cache_->mutex);
    if (!force) referenced = count_referenced(&list);
    closing_ = referenced == 0;
    if (closing_) return true;
  }
  const std::string count = std::to_string(referenced);
  const pinrail_help_arg_t args[] = {{"count", count.c_str()}, {"list", list.c_str()}};
  host_->help(host_, "pool is busy", args, 2);
  return false;
}

// What other threads are giving back, or draining, of this pool comes to its end.
void Pool::settle(pinrail_thread_t* thread) {
  for (;;) {
    drain_own(thread);
    // acquire: pairs with the release decrements of give_back() and drain_all().
    if (visitors_.load(std::memory_order_acquire) == 0 && to_release_.load(std::memory_order_acquire) == 0) return;
    Guard guard(cache_->mutex);
    cache_->released.wait_for(cache_->mutex, std::chrono::microseconds(200));
  }
}

void Pool::release_all(pinrail_thread_t* thread) {
  for (;;) {
    pinrail_registration_t* reg;
    {
      Guard guard(cache_->mutex);
      reg = all_;
    }
    if (reg == nullptr) return;
    release_one(thread, reg);
  }
}

// Nobody else is at this pool any more. A referenced one is made an orphan: its handles may still be deregistered.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  Status(rcache_.ops->remove(rcache_.module, reg)).ignore();  // NOT_FOUND: it was not indexed
  const uint64_t word = state::load(reg);
  to_release_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only this thread is left
  if (state::references(word) == 0) {
    state::publish(reg, (word & ~state::kIndexed) | state::kDead);
    give_back(thread, reg, PINRAIL_REASON_FINALIZED);
    return;
  }
  Status(host_->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_FINALIZED)).ignore();
  cache_->dismiss(this, reg);
  to_release_.fetch_sub(1, std::memory_order_relaxed);
  state::publish(reg, (word & ~state::kIndexed) | state::kDead | state::kOrphan);
}

void Pool::say_stats() const {
  pinrail_mpool_stats_t figures{};
  stats(&figures);
  char line[256];
  std::snprintf(line, sizeof(line),
                "stats: %llu hits, %llu misses, %llu evictions, %llu invalidations, peak %llu bytes registered",
                static_cast<unsigned long long>(figures.hits), static_cast<unsigned long long>(figures.misses),
                static_cast<unsigned long long>(figures.evictions),
                static_cast<unsigned long long>(figures.invalidations),
                static_cast<unsigned long long>(figures.peak_registered_bytes));
  host_->log(host_, PINRAIL_LOG_WARN, line);
}

}  // namespace pinrail::grdma
