// SPDX-License-Identifier: BSD-3-Clause
// GPUDirect: asks the driver, then uses the pool of GPU memory. API context. The caller holds no lock, because
// registrar and driver are called. The calling thread may hold references.
#include <iterator>

#include "components/mpool/grdma/grdma_gpu.h"

#include "framework/registrar/request.h"

namespace pinrail::grdma {
namespace {

// Memory that is replaced while it is being registered is registered again, this often in all.
constexpr int kTries = 4;

}  // namespace

Status Gpu::create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                   std::unique_ptr<Gpu>* gpu_out) {
  std::unique_ptr<Gpu> gpu(new Gpu(component->host));
  Status status =
      gpu->host_->pools->registrar_open(gpu->host_, settings.gpu_registrar.c_str(), &gpu->bound_, &gpu->table_);
  if (!status.ok()) return status;
  const bool knows_gpu = (gpu->table_->kinds & PINRAIL_KIND_GPU) != 0 && gpu->table_->identify != nullptr;
  if (!knows_gpu) {
    const pinrail_help_arg_t args[] = {{"name", settings.gpu_registrar.c_str()}};
    gpu->host_->help(gpu->host_, "knows no GPU memory", args, std::size(args));
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  pinrail_mpool_config_t own = config;
  own.flags |= PINRAIL_POOL_EXACT;
  Settings kept = settings;
  kept.leave_pinned = settings.gpu_leave_pinned;
  kept.print_stats = false;
  kept.all_rights = false;  // in an EXACT pool a registration with more rights answers no request
  kept.extent = 0;
  status = Pool::create_one(component, own, kept, gpu->table_, &gpu->ranges_);
  if (status.ok()) *gpu_out = std::move(gpu);
  return status;
}

// A pool that create() could not use has no registrations yet.
Gpu::~Gpu() {
  if (ranges_ != nullptr) ranges_->destroy_closed(nullptr);
  if (bound_ != nullptr) host_->pools->registrar_close(host_, bound_);
}

void Gpu::destroy_ranges(pinrail_thread_t* thread) {
  ranges_->destroy_closed(thread);
  ranges_ = nullptr;
}

// Asks the driver for the allocation that the range lies in, and for its present buffer id.
Status Gpu::identify(uintptr_t addr, size_t length, uint64_t access_and_flags, Request* request_out) const {
  pinrail_gpu_range_t range{};
  const Status status = pinrail::identify(*table_, Span::of(addr, length), &range);
  if (!status.ok()) return status;
  Span span = Span::of(range.base, range.length);
  if (!round_out(&span, ranges_->page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  *request_out = {span, access_and_flags, range.buffer_id};
  return success();
}

bool Gpu::is_of(pinrail_registration_t* reg, uint64_t buffer_id) const {
  return ranges_->buffer_id_of(reg) == buffer_id;
}

// Other memory is at its address by now: it dies, and so does whatever overlaps it. Drops the caller's reference to it.
void Gpu::drop_and_invalidate(pinrail_thread_t* thread, pinrail_registration_t* reg, const Span& span) {
  Status(Pool::deregister_entry(ranges_, thread, handle_of(reg))).ignore();
  ranges_->invalidate_range_hook(span);
}

Status Gpu::register_mem(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                         pinrail_handle_t* handle_out) {
  for (int tries = 0; tries < kTries; ++tries) {
    Request request{}, after{};
    Status status = identify(addr, length, access_and_flags, &request);
    if (!status.ok()) return status;
    bool is_hit = false;
    pinrail_registration_t* reg = nullptr;
    status = ranges_->register_gpu_range(thread, request, &is_hit, &reg);
    if (!status.ok()) return status;
    bool current = is_of(reg, request.buffer_id);
    // The memory of a new registration may have been freed while it was made: the driver is asked once more.
    if (current && !is_hit)
      current = identify(addr, length, access_and_flags, &after).ok() && after.buffer_id == request.buffer_id;
    if (current) {
      *handle_out = handle_of(reg);
      return success();
    }
    drop_and_invalidate(thread, reg, request.span);
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

Status Gpu::find(pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t access_and_flags,
                 pinrail_handle_t* handle_out) {
  Request request{};
  const Status status = identify(addr, length, access_and_flags, &request);
  if (!status.ok()) return PINRAIL_ERR_NOT_FOUND;
  pinrail_handle_t handle{};
  const Status found = ranges_->find(thread, request.span.base, request.span.length(), access_and_flags, &handle);
  if (!found.ok()) return found;
  if (is_of(handle.reg, request.buffer_id)) {
    *handle_out = handle;
    return success();
  }
  drop_and_invalidate(thread, handle.reg, request.span);
  return PINRAIL_ERR_NOT_FOUND;
}

}  // namespace pinrail::grdma
