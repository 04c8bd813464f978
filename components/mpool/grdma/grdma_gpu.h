// SPDX-License-Identifier: BSD-3-Clause
// grdma_gpu.h - GPUDirect: a pool of GPU memory, which has whole allocations. It shares the budget and the order of
// eviction with the pool of host memory beside it (Both, grdma_component.cc).
//
// Owns     as Pool, and the registrar that knows GPU memory.
// Threads  as Pool.
// Hook     what ends in _hook, alone.
//
// The driver is asked whether a range is GPU memory at each call. The answer is not cached, and "not known" is never
// taken for "host memory". A hit needs the buffer id that the driver returns now. A registration with another one is
// dead, and the range is registered anew. So no monitor is needed to keep such registrations; a monitor that sees frees
// ends them sooner. The API never answers by them: the pool is EXACT, so their state words are not kQuick.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_GPU_H

#include "components/mpool/grdma/grdma.h"
#include "framework/registrar/request.h"

namespace pinrail::grdma {

class GpuPool final : public Pool {
 public:
  // With the registrar that the settings name. Errors of that registrar were reported.
  static Status create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                       GpuPool** pool_out);
  ~GpuPool() override;

  // NOT_FOUND: that is no GPU memory; BAD_PARAM: it is not all in one allocation.
  Status register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  Status find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out);
  // Tells the registrar that knows GPU memory of a restart.
  Status tell_registrar(pinrail_thread_t* thread) const { return host_->pools->registrar_restart(bound_, thread); }

 private:
  GpuPool(Component* component, const pinrail_mpool_config_t& config, const Settings& settings)
      : Pool(component, config, settings, sizeof(uint64_t)) {}
  Status bind(const Settings& settings);
  Status identify(const Span& asked, uint64_t access_and_flags, Request* request_out) const;
  bool is_of(pinrail_registration_t* reg, uint64_t buffer_id) const { return buffer_id_of(reg) == buffer_id; }
  void drop_and_invalidate(pinrail_thread_t* thread, pinrail_registration_t* reg, const Span& span);
  // The allocation that a registration is of. It lies behind the registrar's tail and not in the area, so that
  // registrations of host memory, which are many, do not pay eight bytes for it.
  uint64_t& buffer_id_of(pinrail_registration_t* reg) const {
    return *reinterpret_cast<uint64_t*>(static_cast<char*>(registrar_tail(reg)) + tail_of_registrar());
  }

  bool is_covered(const Span&) const override { return true; }  // by its buffer id
  Status call_device(pinrail_thread_t* thread, const Request& request, pinrail_register_request_t* wanted,
                     pinrail_registration_t* reg, Room room) override;

  pinrail_bound_registrar_t* bound_ = nullptr;
  const pinrail_registrar_t* table_ = nullptr;
};

}  // namespace pinrail::grdma

#endif
