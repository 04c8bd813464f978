// SPDX-License-Identifier: BSD-3-Clause
// grdma_both.h - a pool as its creator sees it: one of host memory, and beside it, if GPU memory is asked for, one of
// that. Says which of the two serves a call; both are of one cache, with one budget and one order of eviction.
//
// Owns     both pools.
// Threads  as Pool.
// Hook     invalidate_range_hook().
//
// A range that the index of host memory does not answer is GPU memory if the driver says so now, and host memory only
// if the driver knows it not.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_BOTH_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_BOTH_H

#include <memory>

#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

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
    if (gpu_ != nullptr) std::exchange(gpu_, nullptr)->destroy_closed(thread);
    host_->destroy_closed(thread);
    delete this;
    return success();
  }

  // A hit of host memory does not ask the driver.
  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out) {
    if (gpu_ != nullptr) {
      const Request request{Span::of(addr, length), access_and_flags};
      if (request.may_hit() && host_->find(thread, addr, length, access_and_flags, handle_out).ok()) {
        return success();
      }
      const Status status = gpu_->register_mem(thread, addr, length, access_and_flags, handle_out);
      if (!status.is(PINRAIL_ERR_NOT_FOUND)) return status;
    }
    return host_->register_mem(thread, addr, length, access_and_flags, handle_out);
  }
  Status register_with(pinrail_thread_t* thread, const Span& span, uint64_t access_and_flags,
                       const pinrail_register_options_t& options, pinrail_handle_t* handle_out) {
    return host_->register_with(thread, span, access_and_flags, options, handle_out);
  }
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out) {
    const Status found = host_->find(thread, addr, length, access_and_flags, handle_out);
    if (found.ok() || gpu_ == nullptr) return found;
    return gpu_->find(thread, addr, length, access_and_flags, handle_out);
  }
  Status query(pinrail_thread_t* thread, const Span& span, uint32_t access, Pool::QueryVisit visit, void* arg) {
    return host_->query(thread, span, access, visit, arg);
  }
  static pinrail_status_t deregister_entry(void* both, pinrail_thread_t* thread, pinrail_handle_t handle) {
    return guarded([&] { return static_cast<Both*>(both)->deregister(thread, handle); });
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
  // The thread that ends a registration owns it, so that nothing else changes its owner meanwhile.
  Status deregister(pinrail_thread_t* thread, pinrail_handle_t handle) {
    const Drop dropped = drop(handle);
    const bool is_of_gpu = gpu_ != nullptr && dropped == Drop::last && mpool::area_of(handle.reg).owner == gpu_->number;
    return (is_of_gpu ? gpu_ : host_)->after_drop(thread, handle, dropped);
  }
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

}  // namespace pinrail::grdma

#endif
