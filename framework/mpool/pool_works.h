// SPDX-License-Identifier: BSD-3-Clause
// pool_works.h - what helper threads do for a pool: registering a large range, or registering ahead of an iterator; and
// which ranges are pinned so.
//
// Owns     the list of a pool's works. A work lives until its owner and every call that uses it are done with it.
// Threads  all functions may run together, except that stop_all() and detach_all() run while the pool is destroyed,
//          which excludes other calls on it. API context, never a hook.
//
// pool_works/W2  A work that is detached uses its pool no more, and has no helper thread.
#ifndef PINRAIL_FRAMEWORK_MPOOL_POOL_WORKS_H
#define PINRAIL_FRAMEWORK_MPOOL_POOL_WORKS_H

#include <pinrail/types.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "base/core/span.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"

namespace pinrail::mpool {

class PoolWork {
 public:
  virtual ~PoolWork() = default;

  // In a forked child that has begun to use Pinrail: whether it was made by the parent, whose threads may have held its
  // lock.
  bool is_inherited() const { return process_ != gate::process_number(); }
  // Whether it still registers, or is going to.
  virtual bool is_unfinished() = 0;
  // Ends it: gives back what it holds if it is unfinished, and waits for its helper threads.
  virtual void stop() = 0;
  // Whether register calls look into it for queued chunks. Constant.
  virtual bool serves_requests() const { return false; }
  // Whether the range lies within one chunk that is not yet registered, with at least that access.
  virtual bool has_queued(const Span& /*span*/, uint32_t /*access*/) { return false; }
  // Registers that chunk now, on this thread, or waits until another thread has registered it.
  virtual void pin_now(const Span& /*span*/) {}

  // Keeps pool_works/W2.
  void detach() {
    stop();
    detached_.store(true);
  }
  bool is_detached() const { return detached_.load(); }

 private:
  const uint32_t process_ = gate::process_number();  // that has made it
  std::atomic<bool> detached_{false};
};

class PoolWorks {
 public:
  using Work = std::shared_ptr<PoolWork>;

  // A hint without a lock: whether register calls must look for queued chunks. relaxed: a call that came first does not
  // wait.
  bool serves_requests() const { return serving_.load(std::memory_order_relaxed) != 0; }

  // May throw bad_alloc; then nothing has changed.
  void add(Work work) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    works_.push_back(std::move(work));
    count_locked();
  }
  void remove(const PoolWork* work) EXCLUDES(mutex_) {
    Work removed;  // destroyed without the lock
    Guard guard(mutex_);
    const auto at = std::find_if(works_.begin(), works_.end(), [=](const Work& each) { return each.get() == work; });
    if (at == works_.end()) return;
    removed.swap(*at);
    works_.erase(at);
    count_locked();
  }

  // The work that has a queued chunk around the range; empty: none.
  Work find_queued(const Span& span, uint32_t access) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    for (const Work& work : works_) {
      if (work->has_queued(span, access)) return work;
    }
    return {};
  }

  bool is_any_unfinished() EXCLUDES(mutex_) {
    Guard guard(mutex_);
    return std::any_of(works_.begin(), works_.end(), [](const Work& work) { return work->is_unfinished(); });
  }
  void stop_all() EXCLUDES(mutex_) {
    for (size_t i = 0;; ++i) {
      Work work;
      {
        Guard guard(mutex_);
        if (i >= works_.size()) return;
        work = works_[i];
      }
      work->stop();
    }
  }
  // For a pool that is being destroyed. Allocates nothing.
  void detach_all() EXCLUDES(mutex_) {
    for (;;) {
      Work work;
      {
        Guard guard(mutex_);
        if (works_.empty()) return;
        work.swap(works_.back());
        works_.pop_back();
        count_locked();
      }
      work->detach();
    }
  }

 private:
  void count_locked() REQUIRES(mutex_) {
    const auto serving =
        std::count_if(works_.begin(), works_.end(), [](const Work& w) { return w->serves_requests(); });
    serving_.store(static_cast<size_t>(serving), std::memory_order_relaxed);
  }

  Mutex mutex_{LockRank::works};
  std::vector<Work> works_ GUARDED_BY(mutex_);
  std::atomic<size_t> serving_{0};
};

// Which ranges of a pool the program has pinned ahead of their use, and how often. PinJob (framework/api/pin_job.h)
// takes, and api_pin.cc drops, the references that the pins hold. All functions may run together; the caller holds no
// lock of a pool. An entry has a count above 0, and a handle for each chunk of its range: all pins of the range hold
// these references together.
class PinTable {
 public:
  struct Key {
    uintptr_t base;
    size_t length;
    uint32_t access;
    bool operator<(const Key& other) const {
      return std::tie(base, length, access) < std::tie(other.base, other.length, other.access);
    }
  };
  using Handles = std::vector<pinrail_handle_t>;
  // All pins of one range.
  struct Pin {
    size_t count = 0;
    Handles handles;
  };
  using Pins = std::map<Key, Pin>;

  // Adds one pin of the range. handles: references to its registrations, which the table takes over. Afterwards it has
  // the references that the caller must drop: the given ones if the entry already holds the same registrations, or if
  // an event has ended some of them and none of the entry's, which are newer then; else the entry's former ones, as
  // when the memory was remapped. is_live(handle) tells whether no event has ended it. May throw bad_alloc; then
  // nothing has changed.
  template <typename IsLive>
  void add(const Key& key, Handles* handles, IsLive&& is_live) EXCLUDES(mutex_) {
    const auto are_live = [&](const Handles& all) { return std::all_of(all.begin(), all.end(), is_live); };
    Guard guard(mutex_);
    const auto before = pins_.find(key);
    if (before != pins_.end() && !are_live(*handles) && are_live(before->second.handles)) {
      ++before->second.count;
      return;
    }
    Pin& pin = pins_[key];
    const bool is_same = std::equal(pin.handles.begin(), pin.handles.end(), handles->begin(), handles->end(),
                                    [](const pinrail_handle_t& a, const pinrail_handle_t& b) {
                                      return a.reg == b.reg && a.generation == b.generation;
                                    });
    ++pin.count;
    if (!is_same) pin.handles.swap(*handles);
  }

  // Removes one pin of each range; removed_out receives what no pin holds any more, for the caller to drop. False, and
  // nothing has changed: a range is not pinned that often. Allocates nothing.
  bool remove(const Key* keys, size_t count, Pins* removed_out) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    for (size_t i = 0; i < count; ++i) {
      const auto at = pins_.find(keys[i]);
      if (at != pins_.end() && at->second.count != 0) {
        --at->second.count;
        continue;
      }
      while (i-- != 0) ++pins_.find(keys[i])->second.count;
      return false;
    }
    for (size_t i = 0; i < count; ++i) {
      const auto at = pins_.find(keys[i]);
      if (at != pins_.end() && at->second.count == 0) removed_out->insert(pins_.extract(at));
    }
    return true;
  }
  // The same of all pins, however often.
  Pins remove_all() EXCLUDES(mutex_) {
    Guard guard(mutex_);
    Pins all;
    all.swap(pins_);
    return all;
  }

 private:
  Mutex mutex_{LockRank::leaf};
  Pins pins_ GUARDED_BY(mutex_);
};

}  // namespace pinrail::mpool

#endif
