// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/mrall: forwards to Pool.
#include <unistd.h>

#include <memory>

#include "base/core/own_component.h"
#include "base/registration/shortcut.h"
#include "components/mpool/mrall/mrall.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::mrall {
namespace {

constexpr char kHelp[] =
#include "components/mpool/mrall/mrall_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    mpool::size_limit_param(
        "Most bytes that the pools of one cache register. 0: no limit. What does not fit is left out: requests for it "
        "fail. Without a limit, a process that maps more memory than the machine has is killed."),
    mpool::count_limit_param(
        "Most registrations of the pools of one cache. 0: no limit. What does not fit is left out."),
    mpool::max_reg_size_param(
        "Piece in bytes of the chunk iterator. A request that lies in two registrations gets one of its own that ends "
        "at multiples of this size."),
    mpool::param(
        "largest_piece", "64M",
        "A mapping is registered in pieces of at most so many bytes. Larger: an event in a piece makes more to "
        "register again. Smaller: more requests lie in two pieces.",
        PINRAIL_TYPE_SIZE, 6, nullptr, 4096, INT64_MAX),
    mpool::param("rescan", "1000",
                 "Milliseconds between two looks at all mappings, for changes that no monitor reports: mprotect, and "
                 "system calls without the C library. A request for such memory does not wait for that. 0: never.",
                 PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, 3600000),
    mpool::kRcacheName,
    mpool::kPrintStats,
};

using Forward = mpool::Forward<Component, Pool>;

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.left_out = Forward::call<&Pool::left_out>;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 10, "mpool", "mrall",
                         "Host memory, all of it: whatever the process maps is registered, before it is asked for.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams);

constexpr size_t kPage = 4096;
constexpr int kTries = 100;  // each fails only if an event touches the range between the maker's insert and the find
constexpr char kTopic[] = "cannot register everything";

uint64_t memory_bytes() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page) : UINT64_MAX;
}

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_mrall_");
  reader.read(config, settings);
  settings->rcache_name = reader.text("rcache_name");
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
  const Status status = mpool::check_config(host, config, kTopic, unfit);
  const char* why = "";
  if (!status.ok()) return status;
  if (host->monitor_works(host, &why) == 0) return mpool::refuse(host, kTopic, why);
  if (shortcut::of(host)->is_told_afterwards()) return status;
  return mpool::refuse(
      host, kTopic, "a monitor reports memory before it goes away alone, as external does, and uffd without patcher");
}

}  // namespace

// Makes and destroys a pool. API context; the caller holds no lock. The maker and hooks come in from connect() to
// destroy().

Pool::Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
    : Base(component, config, settings, std::max(kPage, config.limits->granularity), 0),
      memory_bytes_(memory_bytes()),
      work_(HookLocks::of(component->host)) {}

Status Pool::create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
  Settings settings;
  Status status = check_config(component->host, config);
  if (status.ok()) status = read_settings(component->host, config, &settings);
  if (!status.ok()) return status;
  std::unique_ptr<Pool> pool(new Pool(component, config, settings));
  status = pool->connect();
  if (!status.ok()) return status;
  *pool_out = pool.release();
  // What could not be registered is in the list of what was left out. The maker may wait for the registrar's function
  // that this thread is in, or be this thread.
  if (component->host->pools->in_registrar(nullptr) == 0) (*pool_out)->catch_up().ignore();
  return status;
}

// To the cache and the index, to the monitors, to the maker's thread. From here on hooks come in.
Status Pool::connect() {
  Status status = join_cache(settings_.limits);
  if (status.ok()) status = make_index(0);
  if (!status.ok()) return status;
  if (rcache_.ops.visit_all == nullptr)
    status = mpool::refuse(host_, kTopic, "the index (mpool_mrall_rcache_name) has no visit_all");
  if (status.ok()) status = host_->monitor_subscribe(host_, PINRAIL_KIND_HOST, report_hook, this, &subscription_);
  return status.ok() ? join_gc_thread(work_entry, settings_.rescan_ms) : status;
}

// Waits for hooks in flight: a callback of the registrar may unmap memory until all is given back.
Pool::~Pool() {
  if (subscription_ != nullptr) host_->monitor_unsubscribe(host_, subscription_);
}

// The maker holds references for moments.
Status Pool::destroy(pinrail_thread_t* thread, uint32_t flags) {
  work_.pause();
  const Status status = Base::destroy(thread, flags);
  if (!status.ok()) resume();
  return status;
}

size_t Pool::referenced() {
  work_.pause();
  const size_t count = Base::referenced();
  resume();
  return count;
}

void Pool::resume() {
  work_.resume();
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
}

// Find, register and deregister: hits, and waiting for the maker; events. API context but for what ends in _hook; the
// caller holds no lock, because it may wait, and a drop may call the registrar. The calling thread may hold references.

// Makes the demand and waits until a round has answered it.
Status Pool::demand(Demand* demand) {
  work_.ask(demand);
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
  work_.wait(*demand);
  return demand->status;
}

// A hit, or what the maker registers meanwhile (mrall/A1).
Status Pool::find_or_wait(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_handle_t* handle_out) {
  pinrail_registration_t* reg = nullptr;
  if (find_indexed(thread, span, access, &reg)) {
    count_hit(thread, reg);
    *handle_out = handle_of(reg);
    return success();
  }
  // The maker may wait for the registrar's function that this thread is in.
  if (host_->pools->in_registrar(thread) != 0) return PINRAIL_ERR_BUSY;
  count_relaxed(&misses_);
  for (int tries = 0; tries < kTries; ++tries) {
    Demand own;
    own.span = span;
    own.rights = access & PINRAIL_RIGHTS_MASK;
    own.is_exact = tries != 0;
    const Status status = demand(&own);
    if (!status.ok()) return status;
    if (!find_indexed(thread, span, access, &reg)) continue;
    *handle_out = handle_of(reg);
    return success();
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

Status Pool::register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags,
                          pinrail_handle_t* handle_out) {
  const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  const auto access = static_cast<uint32_t>(access_and_flags);
  if (!to_pages(&span)) return PINRAIL_ERR_BAD_PARAM;
  if ((flags & PINRAIL_FLAG_CACHE_BYPASS) != 0 || (access & PINRAIL_TRAITS_MASK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const size_t most = limits_of_registrar_.max_length;
  if (most != 0 && span.length() > most) return PINRAIL_ERR_NOT_SUPPORTED;
  return find_or_wait(thread, span, access, handle_out);
}

// Only memory that a register call would get is found, but what is not registered is NOT_FOUND.
Status Pool::find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  const auto access = static_cast<uint32_t>(access_and_flags);
  const Status status = register_mem(thread, span, access, handle_out);
  const bool is_refusal = !status.ok() && !status.is(PINRAIL_ERR_BAD_PARAM) && !status.is(PINRAIL_ERR_BUSY);
  return is_refusal ? Status(PINRAIL_ERR_NOT_FOUND) : status;
}

// For pinrail_mpool_progress(): waits until the maker has registered what is mapped by now. BUSY: inside a registrar's
// function, for which the maker may be waiting.
Status Pool::progress(pinrail_thread_t* thread) {
  return host_->pools->in_registrar(thread) != 0 ? Status(PINRAIL_ERR_BUSY) : catch_up();
}

// Everything is looked at once, and then what events have touched meanwhile.
Status Pool::catch_up() {
  Demand everything;
  everything.span = kEverything;
  Status status = demand(&everything);
  for (int i = 0; i < kTries && status.ok() && work_.is_behind(); ++i) {
    Demand nothing;
    status = demand(&nothing);
  }
  return status;
}

// Hook context: hides what an event touches, and queues it for the maker. The interrupted thread may hold references;
// it holds none of the locks that are taken here (HookMutex).

// Marks it as dead. Without references the maker gives it back, otherwise its last drop does (engine/P1).
void Pool::kill_hook(pinrail_registration_t* reg) {
  const size_t length = reg->length;  // if it is held, another thread may end it as soon as it is dead
  if (kill(reg) == Killed::owned) gc_list.push(reg, reg, length);
}

// The index calls it under its lock; the caller holds the lock of the work. What remains of their ranges is registered
// again, so all of it is queued.
void Pool::invalidated_hook(void* pool_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* pool = static_cast<Pool*>(pool_pointer);
  assert_held(pool->work_.mutex, LockRank::pending);
  for (size_t i = 0; i < count; ++i) {
    pool->work_.touch_locked_hook(span_of(regs[i]));
    mpool::mark_invalidated_hook(regs[i]);
    pool->kill_hook(regs[i]);
    mpool::count_one_hook(&pool->invalidations_);
  }
}

// An insert has made them superfluous.
void Pool::displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
  for (size_t i = 0; i < count; ++i) static_cast<Pool*>(pool)->give_up_hook(regs[i], 0);
}

// As kill_hook(), of what no event has ended. If others hold it, an event may come before the last drop, and finds it
// no more: it counts as ended by that one. own_references: the caller's.
void Pool::give_up_hook(pinrail_registration_t* reg, uint64_t own_references) {
  uint64_t word = state::load(reg);
  const size_t length = reg->length;
  const bool is_idle = (word & state::kIndexed) != 0 && state::references(word) == own_references;
  if (!is_idle || !state::exchange(reg, &word, state::dead(word))) {
    mpool::mark_invalidated_hook(reg);
    kill_hook(reg);
  } else if (own_references == 0) {
    gc_list.push(reg, reg, length);
  }
}

// mrall/A2. Monitors report what is new in the same way as what goes away: either way the maker looks at the range, in
// whole pages, because it registers whole pages.
void Pool::invalidate_range_hook(const Span& span) {
  Span pages = span;
  if (!round_out(&pages, page_mask_ + 1)) pages.base &= ~page_mask_;
  {
    Guard guard(work_.mutex);
    rcache_.ops.invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, this);
    work_.touch_locked_hook(pages);
  }
  host_->pools->gc_wake_hook(host_, PINRAIL_GC_NOW);
}

}  // namespace pinrail::mrall

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::mrall::kComponent;
