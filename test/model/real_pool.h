// SPDX-License-Identifier: BSD-3-Clause
// real_pool.h - one pool of mpool/grdma over rcache/vma, all of it the real code, between a host and a registrar that
// only keep count. Includes the code under test itself, as real_threads.h does.
#ifndef PINRAIL_TEST_MODEL_REAL_POOL_H
#define PINRAIL_TEST_MODEL_REAL_POOL_H

#include <map>

#include "base/hit/recent.h"
#include "base/hit/start_hints.cc"
#include "components/mpool/grdma/grdma_create.cc"
#include "components/mpool/grdma/grdma_device.cc"
#include "components/mpool/grdma/grdma_extent.cc"
#include "components/mpool/grdma/grdma_invalidate_hook.cc"
#include "components/mpool/grdma/grdma_miss.cc"
#include "components/mpool/grdma/grdma_register.cc"
#include "components/rcache/vma/vma_component.cc"
#include "components/rcache/vma/vma_index.cc"
#include "components/rcache/vma/vma_tree.cc"
#include "test/model/explorer.h"
#include "test/model/real_threads.h"

// Why a request missed is a statistic, and no part of the protocol.
namespace pinrail::grdma {
Status Reasons::start() { return success(); }
void Reasons::ended_hook(const Span&, const Span&) {}
pinrail_miss_reason_t Reasons::why_ended(const Span&) { return PINRAIL_MISS_EVICTED; }
}  // namespace pinrail::grdma

namespace pinrail::model {
namespace {

// What the device knows. The threads of a scenario run one at a time, so plain words will do.
struct Device {
  struct Entry {
    uintptr_t base;
    int registered;
    int given_back;
    int invalidated;  // of those
    int holders;      // handles that a scenario has and did not drop yet
    bool is_stale;    // the last one was registered before the memory had gone
  };
  Entry entries[12] = {};
  std::atomic<bool> has_gone{false};  // the memory of a scenario; something else is there now

  Entry& entry(uintptr_t base) {
    for (Entry& each : entries) {
      if (each.base == base || each.base == 0) {
        each.base = base;
        return each;
      }
    }
    std::abort();
  }
  // Two registrations of different lengths that begin at one address are two entries.
  static uintptr_t name_of(uintptr_t base, size_t length) { return base + length / kPage - 1; }
  Entry& entry(const pinrail_registration_t* reg) {
    return entry(name_of(reinterpret_cast<uintptr_t>(reg->base), reg->length));
  }
  static constexpr size_t kPage = 4096;
};
Device* device = nullptr;

pinrail_status_t no_param(const pinrail_host_t*, const char*, pinrail_param_value_t*) { return PINRAIL_ERR_NOT_FOUND; }
pinrail_status_t param_info(const pinrail_host_t*, const char* name, pinrail_param_info_t* info_out) {
  info_out->typed = {};
  info_out->source = PINRAIL_SOURCE_DEFAULT;
  if (std::string(name) == "mpool_grdma_gc_limit") info_out->typed.u = UINT64_MAX;
  if (std::string(name) == "mpool_grdma_rcache_name") info_out->typed.s = "vma";
  return PINRAIL_SUCCESS;
}
void no_log(const pinrail_host_t*, pinrail_log_level_t, const char*) {}
void no_help(const pinrail_host_t*, const char*, const pinrail_help_arg_t*, size_t) {}
pinrail_status_t alloc(const pinrail_host_t*, size_t tail, size_t area, pinrail_registration_t** out) {
  return arena::allocate(tail, area, out).code();
}
void give_free(const pinrail_host_t*, pinrail_registration_t* reg) { arena::free(reg); }
const void* extension(const pinrail_host_t*, const char*, uint32_t) {
  static pinrail_host_shortcut_t shortcut{};
  shortcut = {sizeof(shortcut), arena::chunks()};
  return &shortcut;
}
pinrail_status_t device_register(pinrail_bound_registrar_t*, pinrail_thread_t*, const pinrail_register_request_t*,
                                 pinrail_registration_t* reg) {
  ++device->entry(reg).registered;
  device->entry(reg).is_stale = !device->has_gone.load();  // seq_cst: a device's locks order what it sees
  return PINRAIL_SUCCESS;
}
pinrail_status_t device_deregister(pinrail_bound_registrar_t*, pinrail_thread_t*, pinrail_registration_t* reg,
                                   pinrail_reason_t reason) {
  Device::Entry& entry = device->entry(reg);
  require(entry.holders == 0, "it was given back while it is held");
  require(entry.given_back < entry.registered, "it was given back twice");
  ++entry.given_back;
  if (reason == PINRAIL_REASON_INVALIDATED) ++entry.invalidated;
  return PINRAIL_SUCCESS;
}
pinrail_status_t make_index(const pinrail_host_t* host, const char*, uint32_t flags, pinrail_rcache_t* out) {
  const auto* ops = static_cast<const pinrail_rcache_ops_t*>(pinrail_component.ops);
  void* context = nullptr;
  if (pinrail_component.open(host, &context) != PINRAIL_SUCCESS) return PINRAIL_ERR_ERROR;
  out->ops = *ops;
  return ops->create(context, flags, &out->module);
}
pinrail_status_t subscribe(const pinrail_host_t*, uint32_t, void (*)(void*, uintptr_t, size_t), void*, void**) {
  return PINRAIL_SUCCESS;
}
void unsubscribe(const pinrail_host_t*, void*) {}
void count_nothing(pinrail_mpool_t*, const pinrail_thread_t*) {}
void record_no_miss(pinrail_mpool_t*, const pinrail_thread_t*, const pinrail_mpool_event_t*) {}
void record_nothing_hook(pinrail_mpool_t*, const pinrail_mpool_event_t*) {}
int monitor_works(const pinrail_host_t*, const char**) { return 1; }
int monitor_covers(const pinrail_host_t*, uintptr_t, size_t) { return 1; }

// Never destroyed: each test case has its own, and they are small.
class RealPool {
 public:
  RealPool() {
    thread::forget_all_threads();
    for (auto& thread : threads) {
      thread = thread::new_thread();
      thread->spare_count = UINT32_MAX;  // what the threads of a scenario free would become the spares of one of them
    }
    device = &known_;
    host_.param = no_param;
    host_.param_info = param_info;
    host_.log = no_log;
    host_.help = no_help;
    registrations_.alloc = alloc;
    registrations_.free = give_free;
    pools_.registrar_register = device_register;
    pools_.registrar_deregister = device_deregister;
    pools_.rcache_create = make_index;
    pools_.count_hit = count_nothing;
    pools_.in_registrar = [](const pinrail_thread_t* thread) { return thread->in_registrar != 0 ? 1 : 0; };
    pools_.record_miss = record_no_miss;
    pools_.record_hook = record_nothing_hook;
    host_.registrations = &registrations_;
    host_.pools = &pools_;
    host_.extension = extension;
    host_.monitor_subscribe = subscribe;
    host_.monitor_unsubscribe = unsubscribe;
    host_.monitor_works = monitor_works;
    host_.monitor_covers = monitor_covers;
    limits_.kinds = PINRAIL_KIND_HOST;
    limits_.granularity = 4096;
  }

  bool create(bool leave_pinned, int64_t count_limit) {
    pinrail_mpool_config_t config{};
    config.pool = face();
    config.cache_name = "model";
    config.limits = &limits_;
    config.leave_pinned = leave_pinned ? 1 : 0;
    config.size_limit = PINRAIL_UNSET;
    config.count_limit = count_limit;
    grdma::Settings settings;
    return grdma::read_settings(&host_, config, &settings).ok() &&
           grdma::Pool::create(&component_, config, settings, &pool_).ok();
  }

  // The API's register, find and deregister (framework/api/api_call.cc), on thread i.
  bool take(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    if (hit(i, base, handle_out)) return true;
    if (!pool_->register_mem(threads[i], Span::of(base, kLength), 0, handle_out).ok()) return false;
    remember(i, base, *handle_out);
    taken(*handle_out, base);
    return true;
  }
  bool find(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    if (hit(i, base, handle_out)) return true;
    if (!pool_->find(threads[i], Span::of(base, kLength), 0, handle_out).ok()) return false;
    taken(*handle_out, base);
    return true;
  }
  // By the thread's recent requests and the hints of starts alone.
  bool hit(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    const RecentRequest& recent = *recent::entry_for(threads[i], face(), base);
    const bool is_recent = recent::matches(recent, face(), base, kLength, 0) && recent::take(recent, handle_out);
    if (!is_recent && !hit_by_start(i, base, handle_out)) return false;
    taken(*handle_out, base);
    return true;
  }
  bool take_two_pages(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    if (!pool_->register_mem(threads[i], Span::of(base, 2 * kLength), 0, handle_out).ok()) return false;
    taken(*handle_out, base);
    return true;
  }
  // What is not in the index.
  bool take_uncached(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    constexpr uint64_t kFlags = uint64_t{PINRAIL_FLAG_CACHE_BYPASS} << PINRAIL_ACCESS_FLAGS_SHIFT;
    if (!pool_->register_mem(threads[i], Span::of(base, kLength), kFlags, handle_out).ok()) return false;
    taken(*handle_out, base);
    return true;
  }
  pinrail_status_t drop(int i, pinrail_handle_t handle) {
    --device->entry(handle.reg).holders;
    return drop_again(i, handle);
  }
  // A handle that is spent, or shared by mistake.
  pinrail_status_t drop_again(int i, pinrail_handle_t handle) {
    if (drop_quick(handle)) return PINRAIL_SUCCESS;
    const uint64_t word = state::load(handle.reg);
    if (state::generation(word) != handle.generation) return PINRAIL_ERR_BAD_PARAM;
    if ((word & state::kOrphan) == 0) return pool_->deregister(threads[i], handle).code();
    const Drop dropped = pinrail::drop(handle);
    if (dropped == Drop::last) arena::free(handle.reg);
    return dropped == Drop::stale ? PINRAIL_ERR_BAD_PARAM : PINRAIL_SUCCESS;
  }
  void invalidate(uintptr_t base) { pool_->invalidate_range_hook(Span::of(base, kLength)); }
  // The caller says so itself: with a store that others may see late.
  void lose(uintptr_t base) {
    device->has_gone.store(true, std::memory_order_release);
    pool_->invalidate_reported_hook(Span::of(base, kLength));
  }
  bool is_stale(uintptr_t base) const { return device->entry(base).is_stale; }
  bool evict(int i) { return pool_->evict(threads[i]).ok(); }
  void progress(int i) { pool_->progress(threads[i]).ignore(); }
  const char* check() { return pool_->check(); }
  Device::Entry& entry(uintptr_t base) { return device->entry(base); }
  Device::Entry& entry_of_two_pages(uintptr_t base) { return entry(Device::name_of(base, 2 * kLength)); }

  static constexpr size_t kLength = Device::kPage;
  pinrail_thread_t* threads[3] = {};

 private:
  // What a registration and a request name as its pool: a name that nothing here looks behind.
  pinrail_mpool_t* face() { return reinterpret_cast<pinrail_mpool_t*>(this); }

  bool hit_by_start(int i, uintptr_t base, pinrail_handle_t* handle_out) {
    const auto drop_other = [&](pinrail_handle_t other) { Status(drop_again(i, other)).ignore(); };
    if (!start_hints::find(face(), base, Span::of(base, kLength), 0, handle_out, drop_other)) return false;
    recent::remember(threads[i], face(), base, 0, *handle_out);
    return true;
  }
  // The same name as api_call.cc's.
  void remember(int i, uintptr_t base, pinrail_handle_t handle) {
    constexpr uint64_t kFound = state::kIndexed | state::kQuick;
    if ((state::load(handle.reg) & kFound) != kFound) return;
    start_hints::remember(handle.reg);
    recent::remember(threads[i], face(), base, 0, handle);
  }

  void taken(pinrail_handle_t handle, uintptr_t base) {
    require(handle.reg->base == reinterpret_cast<void*>(base),
            "a reference was taken to a registration of another range");
    Device::Entry& entry = device->entry(handle.reg);
    require(entry.registered > entry.given_back, "a reference was taken to what was given back");
    ++entry.holders;
    pause();
  }

  pinrail_registration_services_t registrations_{};
  pinrail_pool_services_t pools_{};
  pinrail_host_t host_{};
  pinrail_registrar_t limits_{};
  grdma::Component component_{&host_};
  grdma::Pool* pool_ = nullptr;
  Device known_;
};

}  // namespace
}  // namespace pinrail::model

#endif
