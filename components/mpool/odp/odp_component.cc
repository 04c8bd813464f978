// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/odp: forwards to Pool.
#include <algorithm>
#include <memory>

#include "base/core/own_component.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/indexed_pool.h"
#include "framework/mpool/params.h"
#include "framework/registrar/request.h"

namespace pinrail::odp {
namespace {

// One pool of registrations that page on demand: they pin nothing and follow the mappings of their range.
//
// Owns     its index and all its registrations.
// Threads  all functions may run together, but create() and destroy() exclude every other on the same pool.
// Hook     displaced_hook(), invalidate_range_hook().
//
// odp_component/O1  A registration covers whole tiles of the address space, mapped or not, or all of it where the
//     device can. A request that no sequence of tiles can serve gets a registration of its own range.
// odp_component/O2  Memory events end no registration: the device faults in what is mapped when it needs it. So the
//     pool needs no monitor, and E1 holds because a registration shows the device what the process has mapped.
//
// Nothing displaces or evicts a persistent registration, because it is exempt in the index and always held. Its last
// drop ends it (engine/P1). A persistent request hits no other one.

using mpool::Component;
using mpool::handle_of;

struct Settings : mpool::PoolSettings {
  size_t tile_size = 0;  // a power of two
};

Status read_settings(const pinrail_host_t* host, const pinrail_mpool_config_t& config, Settings* settings) {
  mpool::SettingsReader reader(host, "mpool_odp_");
  reader.read(config, settings);
  settings->rcache_name = reader.text("rcache_name");
  const size_t asked = reader.number("tile_size");
  if (!reader.is_complete()) return PINRAIL_ERR_ERROR;
  const size_t most = config.limits->on_demand_max_length;
  const size_t size = most != 0 ? std::min(most, asked) : asked;  // rounded down to a power of two
  settings->tile_size = std::max(config.limits->granularity, size_t{1} << (63 - __builtin_clzll(size)));
  return success();
}

// NULL, or why the registrar cannot serve such a pool.
const char* why_unfit(const pinrail_registrar_t& registrar) {
  if (registrar.on_demand == PINRAIL_ON_DEMAND_NONE) {
    return "the registrar does not register memory on demand (for verbs, see registrar_verbs_odp)";
  }
  return registrar.thread_mode == PINRAIL_THREAD_CALLER
             ? "the registrar may be called by its caller only (CALLER), and pools evict from each other"
             : nullptr;
}

// Find and register: a hit, or a registration of the tiles that the request lies in. API context; the caller holds no
// lock, because a miss calls the registrar. The calling thread may hold references.
class Pool : public mpool::IndexedPool<Pool, Settings> {
 public:
  static Status create(Component* component, const pinrail_mpool_config_t& config, Pool** pool_out) {
    Settings settings;
    Status status = mpool::check_config(component->host, config, "cannot page on demand", why_unfit(*config.limits));
    if (status.ok()) status = read_settings(component->host, config, &settings);
    if (!status.ok()) return status;
    std::unique_ptr<Pool> pool(new Pool(component, config, settings));
    status = pool->join_cache(settings.limits);
    if (status.ok()) status = pool->make_index(0);
    if (status.ok()) *pool_out = pool.release();
    return status;
  }

  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
    const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
    const uint32_t access = static_cast<uint32_t>(access_and_flags) | PINRAIL_TRAIT_ON_DEMAND;
    if (!to_pages(&span)) return PINRAIL_ERR_BAD_PARAM;
    drain(thread, SIZE_MAX);
    const bool is_own = (flags & PINRAIL_FLAG_CACHE_BYPASS) != 0;
    const uint32_t kept = flags & PINRAIL_FLAG_PERSISTENT;
    pinrail_registration_t* reg = nullptr;
    Status status = success();
    if (is_own || kept != 0 || !hit(thread, span, access, &reg)) {
      // A thread that is inside its own registrar call would wait for itself: it gets an uncached registration (R5).
      status = is_own || thread->in_registrar != 0
                   ? register_own(thread, {span, access & PINRAIL_RIGHTS_MASK, access & PINRAIL_TRAITS_MASK, 0}, &reg)
                   : miss(thread, span, access, kept, &reg);
      drain(thread, SIZE_MAX);
    }
    if (status.ok()) *handle_out = handle_of(reg);
    return status;
  }
  Status find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
    const uint32_t access = static_cast<uint32_t>(access_and_flags) | PINRAIL_TRAIT_ON_DEMAND;
    pinrail_registration_t* reg;
    if (!to_pages(&span)) return PINRAIL_ERR_BAD_PARAM;
    if (!hit(thread, span, access, &reg)) return PINRAIL_ERR_NOT_FOUND;
    *handle_out = handle_of(reg);
    return success();
  }
  // Memory events end no registration (odp_component/O2).
  static void invalidate_range_hook(const Span&) {}
  // One registration of all memory takes nothing of the limit.
  void counters(pinrail_mpool_stats_t* stats_out) const {
    Base::counters(stats_out);
    if (has_all_memory()) stats_out->size_limit = UINT64_MAX;
  }

 private:
  friend class mpool::Engine<Pool, Settings>;
  using Base = mpool::IndexedPool<Pool, Settings>;
  // What is registered: the range, its rights, traits and flags (PINRAIL_FLAG_PERSISTENT).
  struct Wanted {
    Span span;
    uint32_t rights, traits, flags;
  };

  Pool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
      : Base(component, config, settings, config.limits->granularity, PINRAIL_TRAIT_ON_DEMAND) {}

  bool has_all_memory() const { return limits_of_registrar_.on_demand == PINRAIL_ON_DEMAND_IMPLICIT; }
  bool hit(pinrail_thread_t* thread, const Span& span, uint32_t access, pinrail_registration_t** reg_out) {
    const bool is_hit = find_indexed(thread, span, access, reg_out);
    if (is_hit) count_hit(thread, *reg_out);
    return is_hit;
  }
  // The tiles that the range lies in, or all memory; the range itself where these do not fit (odp_component/O1).
  Span tiles_of(const Span& span) const {
    const uintptr_t page = page_mask_ + 1;
    if (has_all_memory()) return {page, UINTPTR_MAX & ~page_mask_};
    Span tiles = span;
    if (!round_out(&tiles, settings_.tile_size)) return span;
    if (tiles.base == 0) tiles.base = page;  // no registration begins at address 0
    const size_t most = limits_of_registrar_.on_demand_max_length;
    const bool fits_device = most == 0 || tiles.length() <= most;
    return fits_device && tiles.length() <= cache_->limits().bytes ? tiles : span;
  }
  // Registers the tiles of the range, unless another thread does. What the device refuses of tiles, it may accept of
  // the range alone: then that is registered for the caller. The outcome is a reference.
  Status miss(pinrail_thread_t* thread, const Span& span, uint32_t access, uint32_t flags,
              pinrail_registration_t** reg_out) {
    const Span tiles = tiles_of(span);
    const uint32_t rights = access & PINRAIL_RIGHTS_MASK, traits = access & PINRAIL_TRAITS_MASK;
    pinrail_announcement_t announcement{};
    announcement.base = tiles.base;
    announcement.length = tiles.length();
    announcement.access = access;
    announcement.flags = flags;
    announcement.marks = state::kQuick | (flags != 0 ? state::kTransient : 0);
    Status status = find_or_announce(thread, &announcement, reg_out);
    if (status.ok()) count_hit(thread, *reg_out);
    if (!status.is(PINRAIL_ERR_NOT_FOUND)) return status;
    status = make(thread, {tiles, rights, traits, flags}, reg_out);
    if (status.ok()) {
      const Status published =
          rcache_.ops.publish(rcache_.module, thread, &announcement, *reg_out, displaced_hook, this);
      if (published.ok()) {
        wake_waiters();
        return published;
      }
      state::publish(*reg_out, state::kDead);  // for the caller alone; its last drop gives it back
    } else if (tiles.length() != span.length()) {
      status = register_own(thread, {span, rights, traits, 0}, reg_out);
    }
    withdraw(&announcement);
    return status;
  }
  // For the caller alone: it is not in the index, and its last drop gives it back.
  Status register_own(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out) {
    const Status status = make(thread, wanted, reg_out);
    if (status.ok()) state::publish(*reg_out, state::kDead);
    return status;
  }
  // A registration that only the calling thread knows.
  Status make(pinrail_thread_t* thread, const Wanted& wanted, pinrail_registration_t** reg_out) {
    count_relaxed(&misses_);
    pinrail_registration_t* reg;
    const Status status = alloc(wanted.span, wanted.rights, wanted.traits, limits_of_registrar_.tail_size, &reg);
    if (!status.ok()) return status;
    reg->flags = wanted.flags;
    const Status made = admit_and_open(thread, reg, [&] {
      return call_registrar(thread, device_request(reg, PINRAIL_KIND_HOST), reg, mpool::Room::made);
    });
    if (made.ok()) *reg_out = reg;
    return made;
  }
  // An insert has made them superfluous. The index calls it under its lock.
  static void displaced_hook(void* pool, pinrail_registration_t* const* regs, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (kill(regs[i]) == Killed::owned)
        static_cast<Pool*>(pool)->push_hook(regs[i], regs[i], mpool::charge_of(regs[i]));
    }
  }

  // The device's state is lost.
  static Status restart(pinrail_thread_t*) { return PINRAIL_ERR_NOT_SUPPORTED; }
  // The device faults pages in.
  static uint64_t pinned_bytes() { return 0; }
};

constexpr char kHelp[] =
#include "components/mpool/odp/odp_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    mpool::size_limit_param(
        "Most bytes that the pools of one cache register on demand, whole tiles. 0: no limit. Nothing of it is pinned; "
        "limits of other pools do not count it."),
    mpool::count_limit_param("Most registrations of the pools of one cache. 0: no limit."),
    mpool::max_reg_size_param("Piece in bytes of the chunk iterator."),
    mpool::param("tile_size", "64M",
                 "Bytes of the address space that one registration covers, a power of two. Larger: fewer misses; the "
                 "device's tables and what a key opens to peers grow with it. The device's page size: a registration "
                 "covers what was asked for, and no more.",
                 PINRAIL_TYPE_SIZE, 5, nullptr, 4096, INT64_MAX),
    mpool::kRcacheName,
    mpool::kPrintStats,
};

using Forward = mpool::Forward<Component, Pool>;

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.traits = PINRAIL_TRAIT_ON_DEMAND;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent = with_params(
    describe(
        PINRAIL_MPOOL_ABI, 5, "mpool", "odp",
        "Host memory that is not pinned: the device faults pages in. For working sets larger than what may be pinned.",
        Forward::open, Forward::close, &kOps),
    kHelp, kParams);

}  // namespace
}  // namespace pinrail::odp

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::odp::kComponent;
