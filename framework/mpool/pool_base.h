// SPDX-License-Identifier: BSD-3-Clause
// pool_base.h - the part of the engine of pools (engine.h) that is the same code for all of them, because it calls
// neither the pool nor the registrar.
//
// Owns     its membership in a cache.
// Threads  as Engine.
// Hook     push_hook().
#ifndef PINRAIL_FRAMEWORK_MPOOL_POOL_BASE_H
#define PINRAIL_FRAMEWORK_MPOOL_POOL_BASE_H

#include <map>
#include <memory>

#include "base/registration/shortcut.h"
#include "framework/mpool/pool_cache.h"

namespace pinrail::mpool {

// The caches of one component, by cache_name: each as long as a pool has joined it. No lock of the rank `caches` or
// above is held.
class Caches {
 public:
  // BAD_PARAM: the limits differ, which the component's help says. May throw bad_alloc.
  Status join(const pinrail_host_t* host, const char* cache_name, const WantedLimits& wanted,
              std::shared_ptr<Cache>* cache_out) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    for (auto at = by_name_.begin(); at != by_name_.end();) {
      at = at->second.expired() ? by_name_.erase(at) : std::next(at);
    }
    std::weak_ptr<Cache>& known = by_name_[cache_name];
    std::shared_ptr<Cache> cache = known.lock();
    if (cache == nullptr) known = cache = std::make_shared<Cache>(wanted, shortcut::of(host)->chunks);
    if (wanted.differ_from(cache->limits())) {
      show(host, "limits differ", {{"cache", cache_name}});
      return PINRAIL_ERR_BAD_PARAM;
    }
    cache_out->swap(cache);
    return success();
  }

 private:
  Mutex mutex_{LockRank::caches};
  std::map<std::string, std::weak_ptr<Cache>> by_name_ GUARDED_BY(mutex_);
};

// One opened component.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  Caches caches;
};

class PoolBase : public Member {
 public:
  size_t referenced() const {
    Referenced referenced(nullptr);
    cache_->count_referenced(this, &referenced);
    return referenced.count();
  }
  // For tests: NULL, or what is broken.
  const char* check() const { return cache_->check(this, config_.pool); }

 protected:
  PoolBase(Component* component, const pinrail_mpool_config_t& config, uint64_t gc_limit)
      : Member(gc_limit, config.limits->thread_mode == PINRAIL_THREAD_CALLER),
        component_(component),
        host_(component->host),
        config_(config),
        limits_of_registrar_(*config.limits) {}
  // The pool has no registration any more, and no hook comes in.
  ~PoolBase() {
    if (cache_ != nullptr) cache_->remove_pool(this);
  }

  // Joins the cache of the configuration's name. BAD_PARAM: it has other limits.
  Status join_cache(const WantedLimits& limits) {
    Status status = component_->caches.join(host_, config_.cache_name, limits, &joined_);
    if (status.ok()) status = guarded([&] { return joined_->add_pool(this); });
    if (status.ok()) cache_ = joined_.get();
    return status;
  }
  // What a new registration has in its area.
  void mark_own(pinrail_registration_t* reg) const {
    Area& area = area_of(reg);
    area.owner = number;
    area.place = Registrations::kNowhere;
  }

  // The device has refused it.
  void dismiss(pinrail_registration_t* reg) {
    cache_->begin_release(1);
    cache_->dismiss(&reg, 1);
  }

  Status restart_registrar(pinrail_thread_t* thread) const {
    return host_->pools->registrar_restart(config_.registrar, thread);
  }
  // A thread that is inside a registrar call or a fork does not wait: the others may wait for that.
  bool wait_for_release(const pinrail_thread_t* thread) {
    return host_->pools->in_registrar(thread) == 0 && cache_->wait_for_release();
  }

  // Puts a chain onto the gc list, and wakes the gc thread (E4).
  void push_hook(pinrail_registration_t* first, pinrail_registration_t* last, uint64_t bytes) {
    const GcList::Growth growth = gc_list.push(first, last, bytes);
    if (gc_member_ == nullptr) return;
    if (growth.was_empty) host_->pools->gc_wake_hook(host_, PINRAIL_GC_SOON);
    if (growth.exceeds_limit) host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
  }

  // From now on calls into other pools of the cache leave this one alone. False, with nothing changed, if something is
  // referenced and flags has no FORCE.
  bool close_if_idle(uint32_t flags) {
    set_closing(true);
    if ((flags & PINRAIL_DESTROY_FORCE) != 0) return true;
    std::string list;
    Referenced referenced(&list);
    cache_->count_referenced(this, &referenced);
    if (referenced.count() == 0) return true;
    set_closing(false);
    show(host_, "pool is busy", {{"count", NumberText(referenced.count()).c_str()}, {"list", list.c_str()}});
    return false;
  }
  void set_closing(bool closes) {
    Guard guard(cache_->mutex);
    is_closing = closes;
  }
  // The statistics that this object counts itself. relaxed throughout: each is right by itself.
  void add_own_counts(pinrail_mpool_stats_t* stats) const {
    stats->misses += misses_.load(std::memory_order_relaxed);
    stats->evictions += evictions.load(std::memory_order_relaxed);
    stats->invalidations += invalidations_.load(std::memory_order_relaxed);
    stats->races += races_.load(std::memory_order_relaxed);
    stats->retries += retries_.load(std::memory_order_relaxed);
    stats->uncovered += uncovered_.load(std::memory_order_relaxed);
  }
  void count_hit(const pinrail_thread_t* thread, pinrail_registration_t* reg) {
    mark_used(reg);
    host_->pools->count_hit(config_.pool, thread);
  }
  static void count_relaxed(std::atomic<uint64_t>* counter) {
    counter->fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  }

  // Says that a request could never fit, with the limit and its source. Each limit is named once, whatever the sizes
  // are. The message is left out if there is no memory for it: other threads wait for the request, so nothing may be
  // thrown.
  void report_limit(const pinrail_registration_t* reg, const PoolSettings& settings) {
    const Limits& limits = cache_->limits();
    const bool by_bytes = charge_of(reg) > limits.bytes && !limits.bounds_idle_only;
    if (!by_bytes && limits.count != 0) return;
    if ((by_bytes ? said_bytes_ : said_count_).exchange(true)) return;
    (void)guarded([&] {
      const std::string parameter = std::string(settings.prefix) + (by_bytes ? "size_limit" : "count_limit");
      const bool by_creator = by_bytes ? settings.limits.explicit_bytes : settings.limits.explicit_count;
      const std::string source = by_creator ? "the pool's creator" : source_of(host_, parameter.c_str());
      show(host_, "never fits",
           {{"bytes", NumberText(reg->length).c_str()},
            {"limit", NumberText(by_bytes ? limits.bytes : limits.count).c_str()},
            {"parameter", parameter.c_str()},
            {"source", source.c_str()}});
    });
  }

  Component* const component_;
  const pinrail_host_t* const host_;
  std::shared_ptr<Cache> joined_;
  Cache* cache_ = nullptr;  // the same, once it knows the pool
  const pinrail_mpool_config_t config_;
  const pinrail_registrar_t limits_of_registrar_;
  void* gc_member_ = nullptr;  // in the gc thread; NULL: only calls drain the pool
  std::atomic<uint64_t> misses_{0}, invalidations_{0}, races_{0}, retries_{0}, uncovered_{0};
  std::atomic<bool> said_bytes_{false}, said_count_{false};  // that something can never fit
};

}  // namespace pinrail::mpool

#endif
