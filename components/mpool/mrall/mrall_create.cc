// SPDX-License-Identifier: BSD-3-Clause
// Makes and destroys a pool. API context; the caller holds no lock. The maker and hooks come in from connect() to
// destroy().
#include <unistd.h>

#include <memory>
#include <string>

#include "base/core/on_unwind.h"
#include "base/registration/shortcut.h"
#include "components/mpool/mrall/mrall.h"
#include "framework/mpool/messages.h"
#include "framework/mpool/settings_reader.h"

namespace pinrail::mrall {
namespace {

constexpr size_t kPage = 4096;

uint64_t memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : UINT64_MAX;
}

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_mrall_");
  settings->limits = reader.limits(config);
  settings->max_reg_size = reader.number("max_reg_size");
  settings->rescan_ms = static_cast<uint32_t>(reader.number("rescan"));
  settings->print_stats = reader.flag("print_stats");
  settings->rcache_name = reader.text("rcache_name");
  const uint64_t largest_piece = reader.number("largest_piece");
  if (!reader.is_complete()) return PINRAIL_ERR_ERROR;
  const size_t most = config.limits->max_length;
  settings->largest_piece = most != 0 && most < largest_piece ? most : largest_piece;
  settings->largest_piece -= settings->largest_piece % std::max(kPage, config.limits->granularity);
  return settings->largest_piece == 0 ? PINRAIL_ERR_NOT_SUPPORTED : PINRAIL_SUCCESS;
}

Status refuse(const pinrail_host_t* host, const char* why) {
  const pinrail_help_arg_t args[] = {{"why", why}};
  host->help(host, "cannot register everything", args, 1);
  return PINRAIL_ERR_NOT_SUPPORTED;
}

// E5, and what the creator asked for.
Status check_config(const pinrail_host_t* host, const pinrail_mpool_config_t& config) {
  if (!mpool::options_are_sane(config)) return PINRAIL_ERR_BAD_PARAM;
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (config.limits->thread_mode == PINRAIL_THREAD_CALLER) {
    return refuse(host,
                  "the registrar may be called by its caller only (CALLER), and not by the thread that registers");
  }
  if ((config.flags & PINRAIL_POOL_EXACT) != 0) return refuse(host, "the pool was asked for exact ranges (EXACT)");
  if (config.leave_pinned == 0) return refuse(host, "leave_pinned=no was asked for");
  const char* why = "";
  return host->monitor_works(host, &why) != 0 ? success() : refuse(host, why);
}

}  // namespace

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings, Cache* cache)
    : page_mask_(std::max(kPage, config.limits->granularity) - 1),
      memory_bytes_(memory_bytes()),
      cache_(cache),
      component_(component),
      host_(component->host),
      config_(config),
      limits_of_registrar_(*config.limits),
      settings_(settings),
      work_(HookLocks::of(component->host)) {}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  const pinrail_host_t* const host = component->host;
  Settings settings;
  Status status = check_config(host, config);
  if (status.ok()) status = read_settings(host, config, &settings);
  Cache* cache = nullptr;
  if (status.ok()) status = component->caches.join(host, config.cache_name, settings.limits, &cache);
  if (!status.ok()) return status;
  OnUnwind unwound([&] { component->caches.leave(cache); });
  const auto drop_pool = [](Pool* unused) { delete unused; };
  std::unique_ptr<Pool, decltype(drop_pool)> pool(new Pool(component, config, settings, cache), drop_pool);
  status = pool->connect();
  if (!status.ok()) return status;
  unwound.disarm();
  *pool_out = pool.release();
  Status((*pool_out)->catch_up()).ignore();  // what could not be registered is in the list of what was left out
  return success();
}

// To the index, to the monitors, to the maker's thread. From here on hooks come in.
Status Pool::connect() {
  Status status = host_->pools->rcache_create(host_, settings_.rcache_name.c_str(), 0, &rcache_);
  if (!status.ok()) return status;
  if (rcache_.ops.find_all == nullptr) status = refuse(host_, "the index (mpool_mrall_rcache_name) has no find_all");
  if (status.ok()) status = host_->monitor_subscribe(host_, PINRAIL_KIND_HOST, report_hook, this, &subscription_);
  if (status.ok()) status = host_->pools->gc_join(host_, work_entry, this, settings_.rescan_ms, &gc_member_);
  if (!status.ok()) disconnect();
  return status;
}

// The reverse; nothing is registered any more.
void Pool::disconnect() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
  cache_list::destroy_index(host_, &rcache_);
}

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  work_.pause();  // the maker holds references for moments
  if ((flags & PINRAIL_DESTROY_FORCE) == 0 && !cache_->is_idle_or_reported(host_, this)) {
    work_.resume();
    host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
    return PINRAIL_ERR_BUSY;
  }
  if (settings_.print_stats) {
    pinrail_mpool_stats_t totals{};
    stats(&totals);
    mpool::report_stats(host_, totals);
  }
  host_->pools->gc_leave(host_, gc_member_);
  release_all(thread);
  disconnect();
  component_->caches.leave(cache_);
  delete this;
  return success();
}

size_t Pool::referenced() {
  work_.pause();
  const size_t count = cache_->count_referenced(this, nullptr);
  work_.resume();
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
  return count;
}

// The maker has left; hooks still come in, because a callback of the registrar may unmap memory.
void Pool::release_all(pinrail_thread_t* thread) {
  for (;;) {
    give_back_dead(thread);
    pinrail_registration_t* const reg = cache_->first_of(this);
    if (reg == nullptr) return;
    release_one(thread, reg);
  }
}

// A referenced one becomes an orphan: its handles may still be deregistered.
void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: an event was faster
  uint64_t before;
  const bool is_own = kill(reg, &before);
  const bool is_held = state::references(state::load(reg)) != 0;
  if (!is_own && !is_held) return;  // an event killed it just now: give_back_dead() finds it
  const pinrail_reason_t reason = is_own ? PINRAIL_REASON_FINALIZED : PINRAIL_REASON_INVALIDATED;
  Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason)).ignore();
  cache_->dismiss(reg);
  if (is_held) {
    host_->registrations->orphan(host_, reg);
  } else {
    host_->registrations->free(host_, reg);
  }
}

}  // namespace pinrail::mrall
