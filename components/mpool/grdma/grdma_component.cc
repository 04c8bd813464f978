// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/grdma: forwards to Both.
#include <memory>

#include "base/core/own_component.h"
#include "components/mpool/grdma/grdma_gpu.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::grdma {

// A pool as its creator sees it: one of host memory, and beside it, if GPU memory is asked for, one of that. Says which
// of the two serves a call; both are of one cache, with one budget and one order of eviction.
//
// Owns     both pools.
// Threads  as Pool.
// Hook     invalidate_range_hook().
//
// A range that the index of host memory does not answer is GPU memory if the driver says so now, and host memory only
// if the driver knows it not.
class Both {
 public:
  // NOT_SUPPORTED: the registrar does not take host memory.
  static Status create(Component* component, const pinrail_mpool_config_t& config, Both** both_out) {
    if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
    Settings settings;
    Status status = read_settings(component->host, config, &settings);
    auto both = std::make_unique<Both>();
    if (status.ok() && !settings.gpu_registrar.empty()) {
      status = GpuPool::create(component, config, settings, &both->gpu_);
    }
    if (status.ok()) status = Pool::create(component, config, settings, &both->host_);
    if (status.ok()) *both_out = both.release();
    return status;
  }
  // A pool that create() could not use has no registrations yet.
  ~Both() {
    if (gpu_ != nullptr) gpu_->destroy_closed(nullptr);
  }
  // BUSY, with nothing changed: something is referenced, and flags has no FORCE. Otherwise both pools are deleted.
  Status destroy(pinrail_thread_t* thread, uint32_t flags) {
    if (gpu_ != nullptr && !gpu_->close_if_idle(flags)) return PINRAIL_ERR_BUSY;
    if (!host_->close_if_idle(flags)) {
      if (gpu_ != nullptr) gpu_->set_closing(false);
      return PINRAIL_ERR_BUSY;
    }
    if (host_->settings_.print_stats) mpool::report_last_stats(host_->host_, this);
    if (gpu_ != nullptr) gpu_->destroy_closed(thread);
    gpu_ = nullptr;  // not before: its registrar's functions may drop what is held
    host_->destroy_closed(thread);
    delete this;
    return success();
  }

  // A hit of host memory does not ask the driver.
  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
    if (gpu_ != nullptr) {
      const Request request{span, access_and_flags};
      if (request.may_hit() && host_->find(thread, span, access_and_flags, handle_out).ok()) return success();
      const Status status = gpu_->register_mem(thread, span, access_and_flags, handle_out);
      if (!status.is(PINRAIL_ERR_NOT_FOUND)) return status;
    }
    return host_->register_mem(thread, span, access_and_flags, handle_out);
  }
  Status register_with(pinrail_thread_t* thread, Span span, uint64_t access_and_flags,
                       const pinrail_register_options_t* options, pinrail_handle_t* handle_out) {
    return host_->register_with(thread, span, access_and_flags, *options, handle_out);
  }
  Status find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
    const Status found = host_->find(thread, span, access_and_flags, handle_out);
    if (found.ok() || gpu_ == nullptr) return found;
    return gpu_->find(thread, span, access_and_flags, handle_out);
  }
  Status query(pinrail_thread_t* thread, Span span, uint32_t access, Pool::QueryVisit visit, void* arg) {
    return host_->query(thread, span, access, visit, arg);
  }
  // The thread that ends a registration owns it, so that nothing else changes its owner meanwhile.
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
    const Drop dropped = drop(handle);
    const bool is_of_gpu = gpu_ != nullptr && dropped == Drop::last && mpool::area_of(handle.reg).owner == gpu_->number;
    return (is_of_gpu ? gpu_ : host_)->after_drop(thread, handle, dropped);
  }
  void invalidate_range_hook(const Span& span) {
    host_->invalidate_reported_hook(span);
    if (gpu_ != nullptr) gpu_->invalidate_range_hook(span);
  }

  Status evict(pinrail_thread_t* thread) { return host_->evict(thread); }  // of the cache, so of both
  Status progress(pinrail_thread_t* thread) {
    host_->progress(thread).ignore();
    return gpu_ != nullptr ? gpu_->progress(thread) : success();
  }
  Status ft_event(pinrail_thread_t* thread, pinrail_ft_state_t state) {
    if (state == PINRAIL_FT_CONTINUE) return success();
    if (state == PINRAIL_FT_RESTART) return restart(thread);
    if (gpu_ != nullptr) gpu_->release_idle(thread);
    host_->release_idle(thread);
    return success();
  }

  // For a forked child: no lock and no list.
  void counters(pinrail_mpool_stats_t* stats_out) const {
    host_->counters(stats_out);
    if (gpu_ != nullptr) gpu_->add_own_counts(stats_out);
  }
  void stats(pinrail_mpool_stats_t* stats_out) {
    host_->stats(stats_out);
    if (gpu_ == nullptr) return;
    pinrail_mpool_stats_t more{};
    gpu_->stats(&more);
    gpu_->add_own_counts(stats_out);
    stats_out->indexed += more.indexed;
    stats_out->held_bytes += more.held_bytes;
    stats_out->held_count += more.held_count;
    stats_out->dead_bytes += more.dead_bytes;
    stats_out->dead_count += more.dead_count;
  }
  size_t referenced() const { return host_->referenced() + (gpu_ != nullptr ? gpu_->referenced() : 0); }
  size_t max_reg_size() const { return host_->max_reg_size(); }
  const char* check() const {
    const char* const in_gpu = gpu_ != nullptr ? gpu_->check() : nullptr;
    return in_gpu != nullptr ? in_gpu : host_->check();
  }

 private:
  // The registrars come first, because they may refuse.
  Status restart(pinrail_thread_t* thread) {
    Status told = host_->restart_registrar(thread);
    if (told.ok() && gpu_ != nullptr) told = gpu_->tell_registrar(thread);
    if (!told.ok()) return told;
    if (gpu_ != nullptr) gpu_->release_all(thread, Device::restarted);
    host_->release_all(thread, Device::restarted);
    return success();
  }

  Pool* host_ = nullptr;
  GpuPool* gpu_ = nullptr;  // NULL: all memory is taken for host memory
};

namespace {

constexpr char kHelp[] =
#include "components/mpool/grdma/grdma_help.txt"
    ;

constexpr pinrail_enum_value_t kGcThread[] = {{-1, "auto"}, {0, "never"}, {1, "always"}, {0, nullptr}};

constexpr pinrail_enum_value_t kRights[] = {{0, "asked"}, {1, "all"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param(
        "auto",
        "Whether memory stays registered when it is released. auto: yes if a memory monitor works here. no: every "
        "transfer pays a registration. yes: refused without a monitor, for stale registrations corrupt data."),
    mpool::size_limit_param(
        "Most bytes kept registered by the pools of one cache, in use or not. 0: no limit. Too low: transfers pay for "
        "registrations again, or fail while everything is in use. The default is derived from the machine "
        "(mpool_default_limits); unlike a value that is set, it evicts what is idle and refuses nothing."),
    mpool::count_limit_param("Most registrations kept by the pools of one cache, in use or not. 0: no limit."),
    mpool::param("gc_limit", "64M",
                 "Bytes of dead registrations that may wait for a later call; above that the next call deregisters "
                 "them first.",
                 PINRAIL_TYPE_SIZE, 6),
    mpool::param(
        "gc_thread", "auto",
        "Whether a thread deregisters dead memory even if no call does: when gc_limit is exceeded, and 100 ms "
        "after the first. auto: for pools that keep memory registered. always: for all. never: only calls do, and a "
        "program that makes none keeps dead memory pinned. A pool whose registrar only its owner may call (CALLER) "
        "never has it: there the bound holds only after pinrail_mpool_progress.",
        PINRAIL_TYPE_ENUM, 6, nullptr, 0, 0, kGcThread),
    mpool::max_reg_size_param(
        "Largest piece in bytes that the chunk iterator cuts a buffer into, so that transfers pipeline and little is "
        "pinned needlessly. Registrations themselves are not cut."),
    mpool::param(
        "rights", "all",
        "Rights that a miss registers with. all: every right, or those of the request where the memory or the "
        "device refuses more; so one registration answers all later requests of its range, and a peer that has "
        "its key may read and write it. asked: those of the request. EXACT pools always do as with asked.",
        PINRAIL_TYPE_ENUM, 5, nullptr, 0, 0, kRights),
    mpool::param("extent", "2M",
                 "Bytes of the aligned window around a request that a miss registers as well, as far as the pages are "
                 "the process's own, in the same mapping and present already; rounded down to a power of two. Windows "
                 "become smaller where memory events make this useless. Not done in EXACT pools, where a size_limit is "
                 "set, with registrar mlock, and in mappings of files. 0: exactly the pages of the request.",
                 PINRAIL_TYPE_SIZE, 5, nullptr, 0, INT64_MAX),
    mpool::kRcacheName,
    mpool::param(
        "gpu_registrar", "",
        "Registrar that knows GPU memory (cuda_ipc): with it, GPU memory is recognised and registered whole, by dmabuf "
        "or peer memory (GPUDirect). Starts the GPU's driver with the first pool. Empty: all memory is taken for "
        "the "
        "host's.",
        PINRAIL_TYPE_STRING, 3),
    mpool::kEmptyCache,
    mpool::kCheck,
    mpool::kPrintStats,
};

constexpr const char* kSynonymPrefixes[] = {"rcache_grdma_", nullptr};

using Forward = mpool::Forward<Component, Both>;

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.register_with = Forward::call_on_span<&Both::register_with>;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 50, "mpool", "grdma", "RDMA: caches registrations of host memory.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::grdma

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::grdma::kComponent;
