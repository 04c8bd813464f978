// SPDX-License-Identifier: BSD-3-Clause
// Makes and destroys a pool. API context; the caller holds no lock. The maker and hooks come in from connect() to
// destroy().
#include <unistd.h>

#include <memory>

#include "components/mpool/mrall/mrall.h"

namespace pinrail::mrall {
namespace {

constexpr size_t kPage = 4096;
constexpr char kTopic[] = "cannot register everything";

uint64_t memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : UINT64_MAX;
}

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_mrall_");
  settings->read(&reader, config);
  settings->rescan_ms = static_cast<uint32_t>(reader.number("rescan"));
  const uint64_t largest_piece = reader.number("largest_piece");
  if (!reader.is_complete()) return PINRAIL_ERR_ERROR;
  const size_t most = config.limits->max_length;
  settings->largest_piece = most != 0 && most < largest_piece ? most : largest_piece;
  settings->largest_piece -= settings->largest_piece % std::max(kPage, config.limits->granularity);
  return settings->largest_piece == 0 ? PINRAIL_ERR_NOT_SUPPORTED : PINRAIL_SUCCESS;
}

// E5, and what the creator asked for.
Status check_config(const pinrail_host_t* host, const pinrail_mpool_config_t& config) {
  const char* const unfit =
      config.limits->thread_mode == PINRAIL_THREAD_CALLER
          ? "the registrar may be called by its caller only (CALLER), and not by the thread that registers"
          : nullptr;
  const Status status = cache_list::check_config(host, config, kTopic, unfit);
  const char* why = "";
  return !status.ok() || host->monitor_works(host, &why) != 0 ? status : cache_list::refuse(host, kTopic, why);
}

}  // namespace

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
    : Common(component, config, settings, std::max(kPage, config.limits->granularity), 0),
      memory_bytes_(memory_bytes()),
      largest_piece_(settings.largest_piece),
      rescan_ms_(settings.rescan_ms),
      work_(HookLocks::of(component->host)) {}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Common** pool_out) {
  Settings settings;
  Status status = check_config(component->host, config);
  if (status.ok()) status = read_settings(component->host, config, &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool> pool(new Pool(component, config, settings));
  status = pool->connect();
  if (!status.ok()) return status;
  Pool* const connected = pool.release();
  *pool_out = connected;
  // What could not be registered is in the list of what was left out. The maker may wait for the registrar's function
  // that this thread is in, or be this thread.
  if (component->host->pools->in_registrar(nullptr) == 0) Status(connected->catch_up()).ignore();
  return success();
}

// To the cache and the index, to the monitors, to the maker's thread. From here on hooks come in.
Status Pool::connect() {
  Status status = join();
  if (!status.ok()) return status;
  if (rcache_.ops.find_all == nullptr)
    status = cache_list::refuse(host_, kTopic, "the index (mpool_mrall_rcache_name) has no find_all");
  if (status.ok()) status = host_->monitor_subscribe(host_, PINRAIL_KIND_HOST, report_hook, this, &subscription_);
  if (status.ok()) status = host_->pools->gc_join(host_, work_entry, this, rescan_ms_, &gc_member_);
  return status;
}

// Nothing is registered any more.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);  // waits for hooks in flight
}

// BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise the pool is deleted.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  work_.pause();  // the maker holds references for moments
  if ((flags & PINRAIL_DESTROY_FORCE) == 0 && !is_idle_or_reported()) {
    work_.resume();
    host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
    return PINRAIL_ERR_BUSY;
  }
  print_stats_if_asked();
  host_->pools->gc_leave(host_, gc_member_);
  release_all(thread);
  delete this;
  return success();
}

size_t Pool::referenced() {
  work_.pause();
  const size_t count = count_referenced();
  work_.resume();
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
  return count;
}

// The maker has left; hooks still come in, because a callback of the registrar may unmap memory.
void Pool::release_all(pinrail_thread_t* thread) {
  for (;;) {
    give_back_dead(thread);
    pinrail_registration_t* const reg = cache_->first_of(static_cast<Common*>(this));
    if (reg == nullptr) return;
    release_one(thread, reg);
  }
}

void Pool::release_one(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: an event was faster
  const Killed killed = kill(reg);
  if ((state::load(reg) & state::kLast) != 0 && killed != Killed::owned) return;  // an event's: give_back_dead() has it
  const pinrail_reason_t reason = killed == Killed::no ? PINRAIL_REASON_INVALIDATED : PINRAIL_REASON_FINALIZED;
  deregister_from_device(thread, reg, reason);
  cache_->dismiss(reg);
  const bool is_own = killed == Killed::owned || orphan(reg) == Killed::owned;
  if (is_own) host_->registrations->free(host_, reg);  // else its last drop does
}

}  // namespace pinrail::mrall
