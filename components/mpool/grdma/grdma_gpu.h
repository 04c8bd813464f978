// SPDX-License-Identifier: BSD-3-Clause
// grdma_gpu.h - GPUDirect: the registrations of GPU memory of one pool.
//
// Owns     a pool of its own, which shares the cache's budget and order of eviction, and has whole allocations in an
//          index that nothing else reads; the registrar that knows GPU memory.
// Threads  as Pool.
// Hook     ranges().
//
// grdma_gpu/P1  The driver is asked whether a range is GPU memory each time that the index of host memory does not
//     answer. The answer is not cached, and "not known" is never taken for "host memory".
// grdma_gpu/P2  A hit needs the buffer id that the driver returns now. A registration with another one is dead, and the
//     range is registered anew. So no monitor is needed to keep such registrations; a monitor that sees frees ends them
//     sooner.
// grdma_gpu/P3  The C face never answers by its registrations: their state words are not kQuick.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

class Gpu {
 public:
  // With the registrar that the settings name. Errors of that registrar were reported.
  static Status create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                       std::unique_ptr<Gpu>* gpu_out);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  // NOT_FOUND: that is no GPU memory; BAD_PARAM: it is not all in one allocation.
  Status register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                      pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
              pinrail_handle_t* handle_out);
  Pool* ranges() const { return ranges_; }
  // Tells the registrar of a restart.
  Status tell_registrar(pinrail_thread_t* thread) const { return host_->pools->registrar_restart(bound_, thread); }
  // Gives everything back and deletes the pool, which is closed.
  void destroy_ranges(pinrail_thread_t* thread);

 private:
  explicit Gpu(const pinrail_host_t* host) : host_(host) {}
  Status identify(uintptr_t addr, size_t length, uint64_t access_and_flags, Request* request_out) const;
  bool is_of(pinrail_registration_t* reg, uint64_t buffer_id) const;
  void drop_and_invalidate(pinrail_thread_t* thread, pinrail_registration_t* reg, const Span& span);

  const pinrail_host_t* const host_;
  pinrail_bound_registrar_t* bound_ = nullptr;
  const pinrail_registrar_t* table_ = nullptr;
  Pool* ranges_ = nullptr;
};

}  // namespace pinrail::grdma

#endif
