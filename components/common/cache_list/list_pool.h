// SPDX-License-Identifier: BSD-3-Clause
// list_pool.h - what the pools of mrall and odp have in common: one index, registrations that are listed in a cache,
// and statistics.
//
// Owns     its index and all its registrations.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool. API
//          context; the caller holds no lock.
//
// list_pool/P1  Whose exchange of the state word sets `last` owns the registration and gives it back: the last drop of
// a
//     dead or persistent one, or the function that killed it. A hook puts it on the list of the dead instead.
#ifndef PINRAIL_COMPONENTS_COMMON_CACHE_LIST_LIST_POOL_H
#define PINRAIL_COMPONENTS_COMMON_CACHE_LIST_LIST_POOL_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string>
#include <vector>

#include "base/core/guarded.h"
#include "base/core/span.h"
#include "base/hit/hit_counts.h"
#include "components/common/cache_list/cache_list.h"
#include "framework/mpool/caches.h"
#include "framework/mpool/settings_reader.h"

namespace pinrail::cache_list {

// One opened component.
template <typename Cache>
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  mpool::Caches<Cache> caches;
};

struct Settings {
  mpool::WantedLimits limits;
  size_t max_reg_size = 0;
  bool print_stats = false;
  std::string rcache_name;

  void read(mpool::SettingsReader* reader, const pinrail_mpool_config_t& config) {
    limits = reader->limits(config);
    max_reg_size = reader->number("max_reg_size");
    print_stats = reader->flag("print_stats");
    rcache_name = reader->text("rcache_name");
  }
};

// Reports why there can be no pool, under that topic of the component's messages.
inline Status refuse(const pinrail_host_t* host, const char* topic, const char* why) {
  const pinrail_help_arg_t args[] = {{"why", why}};
  host->help(host, topic, args, std::size(args));
  return PINRAIL_ERR_NOT_SUPPORTED;
}

// What the creator asked for. unfit: NULL, or why the registrar cannot serve such a pool.
inline Status check_config(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* topic,
                           const char* unfit) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (unfit != nullptr) return refuse(host, topic, unfit);
  if ((config.flags & PINRAIL_POOL_EXACT) != 0) {
    return refuse(host, topic, "the pool was asked for exact ranges (EXACT)");
  }
  return config.leave_pinned != 0 ? success() : refuse(host, topic, "leave_pinned=no was asked for");
}

template <typename OfCache>
class Pool {
 public:
  using Cache = OfCache;
  using QueryVisit = void (*)(void* arg, uintptr_t base, size_t length);

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  // Leaves the cache. The pool has no registration any more.
  virtual ~Pool() {
    if (rcache_.ops.destroy != nullptr) rcache_.ops.destroy(rcache_.module);
    if (cache_ != nullptr) component_->caches.leave(cache_);
  }

  static pinrail_status_t deregister_entry(void* pool, pinrail_thread_t* thread, pinrail_handle_t handle) {
    return static_cast<Pool*>(pool)->drop(thread, handle);
  }

  // Visits the range of each registration in the index that overlaps the span and has the access.
  Status query(pinrail_thread_t* thread, const Span& span, uint32_t access, QueryVisit visit, void* arg) {
    if (rcache_.ops.find_all == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    std::vector<Span> spans;
    {
      Held held;
      const DropAtEnd at_end{this, thread, &held};
      find_all(thread, span, &held);
      for (const pinrail_registration_t* reg : held) {
        const bool serves = (access & PINRAIL_RIGHTS_MASK & ~reg->rights) == 0;
        if (serves && reg->traits == ((access & PINRAIL_TRAITS_MASK) | own_traits_)) spans.push_back(span_of(reg));
      }
    }
    for (const Span& each : spans) visit(arg, each.base, each.length());
    return success();
  }

  // For a forked child: no lock and no list.
  void counters(pinrail_mpool_stats_t* stats_out) const { *stats_out = happened(); }
  void stats(pinrail_mpool_stats_t* stats_out) const {
    pinrail_mpool_stats_t totals = happened();
    totals.indexed = rcache_.ops.count(rcache_.module);
    totals.dead_bytes = dead_bytes_.load(std::memory_order_relaxed);  // relaxed: a statistic
    const mpool::Usage usage = cache_->usage();
    totals.registered_bytes = usage.bytes;
    totals.registered_count = usage.count;
    totals.peak_registered_bytes = usage.peak_bytes;
    totals.pinned_bytes = cache_->pinned_bytes();
    *stats_out = totals;
  }
  size_t max_reg_size() const { return settings_.max_reg_size; }
  // For tests: NULL, or what is broken.
  const char* check() const {
    return rcache_.ops.check(rcache_.module) != PINRAIL_SUCCESS ? "the index is broken" : cache_->check();
  }

 protected:
  using Held = std::vector<pinrail_registration_t*>;
  // Drops what is held when its scope ends, also for want of memory.
  struct DropAtEnd {
    Pool* pool;
    pinrail_thread_t* thread;
    Held* held;
    ~DropAtEnd() { pool->drop_all(thread, held); }
  };

  // page: what is registered is whole pages of so many bytes. own_traits: those of all registrations.
  Pool(Component<Cache>* component, const pinrail_mpool_config_t& config, const Settings& settings, size_t page,
       uint32_t own_traits)
      : page_mask_(page - 1),
        own_traits_(own_traits),
        component_(component),
        host_(component->host),
        config_(config),
        limits_of_registrar_(*config.limits),
        settings_(settings) {}

  // Joins the cache of the configuration's name and makes the index, before all other functions.
  Status join() {
    const Status joined = component_->caches.join(host_, config_.cache_name, settings_.limits, &cache_);
    if (!joined.ok()) return joined;
    return host_->pools->rcache_create(host_, settings_.rcache_name.c_str(), 0, &rcache_);
  }

  // Gives a registration back that the calling thread owns, and that is not in the index.
  virtual void give_back(pinrail_thread_t* thread, pinrail_registration_t* reg) = 0;
  void give_back_dead(pinrail_thread_t* thread) {
    dead_.drain([&](pinrail_registration_t* reg) { give_back(thread, reg); });
  }
  pinrail_status_t drop(pinrail_thread_t* thread, pinrail_handle_t handle) {
    const Drop dropped = pinrail::drop(handle);
    if (dropped == Drop::stale) return PINRAIL_ERR_BAD_PARAM;
    if (dropped == Drop::last) {
      Status(rcache_.ops.remove(rcache_.module, handle.reg)).ignore();  // NOT_FOUND: it was taken out when it died
      give_back(thread, handle.reg);
    }
    return PINRAIL_SUCCESS;
  }

  // The whole pages of a request. False: they begin at address 0 or end above the last one.
  bool pages_of(uintptr_t addr, size_t length, Span* span_out) const {
    *span_out = Span::of(addr, length);
    return round_out(span_out, page_mask_ + 1) && span_out->base != 0;
  }
  bool find_indexed(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out) {
    pinrail_registration_t* reg = nullptr;
    if (rcache_.ops.find(rcache_.module, thread, span.base, span.length(), access, &reg) != PINRAIL_SUCCESS) {
      return false;
    }
    *handle_out = {reg, generation_of(reg)};
    return true;
  }
  // All that is in the index and overlaps the span, each with a reference. May throw bad_alloc, without references.
  void find_all(pinrail_thread_t* thread, const Span& span, Held* held_out) {
    held_out->resize(std::max(held_out->capacity(), size_t{64}));
    for (;;) {
      const size_t count =
          rcache_.ops.find_all(rcache_.module, thread, span.base, span.length(), held_out->data(), held_out->size());
      const bool is_whole = count <= held_out->size();
      if (is_whole) held_out->resize(count);
      if (is_whole) return;
      drop_all(thread, held_out);
      held_out->resize(count + 64);
    }
  }
  void drop_all(pinrail_thread_t* thread, Held* held) {
    for (pinrail_registration_t* reg : *held) Status(drop(thread, {reg, generation_of(reg)})).ignore();
    held->clear();
  }

  // A registration that the device and the index do not know yet.
  Status alloc(const Span& span, uint32_t rights, uint32_t traits, pinrail_registration_t** reg_out) {
    pinrail_registration_t* reg;
    const Status status = host_->registrations->alloc(host_, limits_of_registrar_.tail_size, sizeof(Area), &reg);
    if (!status.ok()) return status;
    set_range(reg, span, config_.pool, traits);
    reg->rights = rights;
    area_of(reg).owner = this;
    area_of(reg).charge = reg->length;
    *reg_out = reg;
    return status;
  }
  void deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
    Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason))
        .ignore();  // the framework has reported it
  }
  // The device does not know it any more.
  void dismiss_and_free(pinrail_registration_t* reg) {
    cache_->dismiss(reg);
    host_->registrations->free(host_, reg);
  }
  void deregister_and_free(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
    deregister_from_device(thread, reg, reason);
    dismiss_and_free(reg);
  }

  size_t count_referenced() const { return cache_->count_referenced(this, nullptr); }
  bool is_idle_or_reported() const { return cache_->is_idle_or_reported(host_, this); }
  void print_stats_if_asked() const {
    if (settings_.print_stats) mpool::report_last_stats(host_, this);
  }

  const uintptr_t page_mask_;
  const uint32_t own_traits_;
  Cache* cache_ = nullptr;
  Component<Cache>* const component_;
  const pinrail_host_t* const host_;
  const pinrail_mpool_config_t config_;
  const pinrail_registrar_t limits_of_registrar_;
  const Settings settings_;
  pinrail_rcache_t rcache_{};
  DeadList dead_;

  std::atomic<uint64_t> misses_{0}, evictions_{0}, invalidations_{0}, races_{0}, retries_{0}, uncovered_{0};
  std::atomic<uint64_t> dead_bytes_{0};
  HitCounts hits_;

 private:
  // relaxed throughout: statistics, each right by itself.
  pinrail_mpool_stats_t happened() const {
    pinrail_mpool_stats_t totals{};
    totals.size = sizeof(totals);
    totals.hits = hits_.sum() + host_->pools->quick_hits(config_.pool);
    totals.misses = misses_.load(std::memory_order_relaxed);
    totals.evictions = evictions_.load(std::memory_order_relaxed);
    totals.invalidations = invalidations_.load(std::memory_order_relaxed);
    totals.races = races_.load(std::memory_order_relaxed);
    totals.retries = retries_.load(std::memory_order_relaxed);
    totals.uncovered = uncovered_.load(std::memory_order_relaxed);
    // One registration of all memory takes nothing of the limit.
    const bool has_all = own_traits_ != 0 && limits_of_registrar_.on_demand == PINRAIL_ON_DEMAND_IMPLICIT;
    totals.size_limit = has_all ? UINT64_MAX : cache_->limits().bytes;
    totals.count_limit = cache_->limits().count;
    totals.leave_pinned = 1;
    return totals;
  }
};

}  // namespace pinrail::cache_list

#endif
