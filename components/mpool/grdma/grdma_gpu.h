// SPDX-License-Identifier: BSD-3-Clause
// grdma_gpu.h - GPUDirect: the registrations of GPU memory of one pool.
//
// Owns     a pool of its own, which shares the cache's budget and order of eviction, and has whole allocations in an
//          index that nobody else reads; the registrar that knows GPU memory.
// Threads  as Pool.
//
// grdma_gpu/P1  Whether a range is GPU memory is asked of the driver each time that the index of host memory does not
//     answer, and never remembered: "not known" is never taken for "host".
// grdma_gpu/P2  A hit needs the buffer id that the driver says now. What has another one is dead, and is registered
//     anew. So no monitor is needed to keep such registrations; one that sees frees ends them sooner.
// grdma_gpu/P3  Its registrations are never found by the shortcut: they are in no table of starts.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

class Gpu {
 public:
  // With the registrar of that name; what is wrong with it was said.
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
  // Of a restart.
  Status tell_registrar(pinrail_thread_t* thread) const { return host_->registrar_restart(bound_, thread); }
  // Gives everything back; the pool is gone afterwards.
  void end(pinrail_thread_t* thread);
  // The same, where nothing was registered yet.
  void give_up();

 private:
  explicit Gpu(const pinrail_host_t* host) : host_(host) {}
  Status identify(uintptr_t addr, size_t length, uint64_t access_and_flags, Request* request_out) const;
  bool is_of(pinrail_registration_t* reg, uint64_t buffer_id) const;
  void bury(pinrail_thread_t* thread, pinrail_registration_t* reg, const Span& span);

  const pinrail_host_t* const host_;
  pinrail_bound_registrar_t* bound_ = nullptr;
  const pinrail_registrar_t* table_ = nullptr;
  Pool* ranges_ = nullptr;
};

}  // namespace pinrail::grdma

#endif
