// SPDX-License-Identifier: BSD-3-Clause
// Asks the driver, then the index. API context. The caller holds no lock, because
// registrar and driver are called. The calling thread may hold references.
#include <unistd.h>

#include <memory>

#include "base/core/own_component.h"
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

Status GpuPool::bind(const Settings& settings) {
  const Status opened = host_->pools->registrar_open(host_, settings.gpu_registrar.c_str(), &bound_, &table_);
  if (!opened.ok()) return opened;
  if ((table_->kinds & PINRAIL_KIND_GPU) != 0 && table_->identify != nullptr) return success();
  show(host_, "knows no GPU memory", {{"name", settings.gpu_registrar.c_str()}});
  return PINRAIL_ERR_NOT_SUPPORTED;
}

Status GpuPool::create(Component* component, const pinrail_mpool_config_t& config, const Settings& settings,
                       GpuPool** pool_out) {
  pinrail_mpool_config_t own = config;
  own.flags |= PINRAIL_POOL_EXACT;
  Settings kept = settings;
  kept.leave_pinned = settings.gpu_leave_pinned;
  kept.print_stats = false;
  kept.all_rights = false;  // in an EXACT pool a registration with more rights answers no request
  kept.extent = 0;
  std::unique_ptr<GpuPool> pool(new GpuPool(component, own, kept));
  Status status = pool->bind(settings);
  if (status.ok()) status = pool->start(PINRAIL_KIND_GPU);
  if (status.ok()) *pool_out = pool.release();
  return status;
}

GpuPool::~GpuPool() {
  if (bound_ != nullptr) host_->pools->registrar_close(host_, bound_);
}

// Asks the driver for the allocation that the range lies in, and for its present buffer id.
Status GpuPool::identify(const Span& asked, uint64_t access_and_flags, Request* request_out) const {
  pinrail_gpu_range_t range{};
  const Status status = pinrail::identify(*table_, asked, &range);
  if (!status.ok()) return status;
  Span span = Span::of(range.base, range.length);
  if (!round_out(&span, page_mask_ + 1)) return PINRAIL_ERR_BAD_PARAM;
  *request_out = {span, access_and_flags, range.buffer_id};
  return success();
}

// Other memory is at its address by now: it dies, and so does whatever overlaps it. Drops the caller's reference to it.
void GpuPool::drop_and_invalidate(pinrail_thread_t* thread, pinrail_registration_t* reg, const Span& span) {
  deregister(thread, handle_of(reg)).ignore();
  invalidate_range_hook(span);
}

Status GpuPool::register_mem(pinrail_thread_t* thread, Span span, uint64_t access_and_flags,
                             pinrail_handle_t* handle_out) {
  constexpr int kTries = 4;  // memory that is replaced while it is being registered is registered again
  for (int tries = 0; tries < kTries; ++tries) {
    Request request{}, after{};
    Status status = identify(span, access_and_flags, &request);
    if (!status.ok()) return status;
    pinrail_registration_t* reg = nullptr;
    const bool is_hit = request.may_hit() && find_answer(thread, request, &reg);
    if (!is_hit) status = acquire(thread, request, &reg);
    if (!status.ok()) return status;
    bool current = is_of(reg, request.buffer_id);
    // The memory of a new registration may have been freed while it was made: the driver is asked once more.
    if (current && !is_hit)
      current = identify(span, access_and_flags, &after).ok() && after.buffer_id == request.buffer_id;
    if (current) {
      *handle_out = handle_of(reg);
      return success();
    }
    drop_and_invalidate(thread, reg, request.span);
  }
  return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

Status GpuPool::find(pinrail_thread_t* thread, Span span, uint64_t access_and_flags, pinrail_handle_t* handle_out) {
  Request request{};
  const Status status = identify(span, access_and_flags, &request);
  if (!status.ok()) return PINRAIL_ERR_NOT_FOUND;
  pinrail_handle_t handle{};
  const Status found = Pool::find(thread, request.span, access_and_flags, &handle);
  if (!found.ok()) return found;
  if (is_of(handle.reg, request.buffer_id)) {
    *handle_out = handle;
    return success();
  }
  drop_and_invalidate(thread, handle.reg, request.span);
  return PINRAIL_ERR_NOT_FOUND;
}

// By dmabuf. If the driver or the device has none, as if it were host memory, which a kernel with peer memory takes.
Status GpuPool::call_device(pinrail_thread_t* thread, const Request& request, pinrail_register_request_t* wanted,
                            pinrail_registration_t* reg, Room room) {
  buffer_id_of(reg) = request.buffer_id;
  const bool takes_dmabuf = (limits_of_registrar_.kinds & PINRAIL_KIND_DMABUF) != 0;
  Status status = PINRAIL_ERR_NOT_SUPPORTED;
  if (takes_dmabuf && table_->export_dmabuf != nullptr) {
    status = answer_of_foreign([&] {
      return table_->export_dmabuf(table_->context, wanted->addr, wanted->length, &wanted->fd, &wanted->fd_offset);
    });
    if (status.ok()) {
      wanted->kind = PINRAIL_KIND_DMABUF;
      status = call_registrar(thread, *wanted, reg, room);
      close(wanted->fd);
    }
  }
  if (!status.is(PINRAIL_ERR_NOT_SUPPORTED)) return status;
  wanted->kind = PINRAIL_KIND_HOST;
  wanted->fd = -1;
  wanted->fd_offset = 0;
  const Status as_host = call_registrar(thread, *wanted, reg, room);
  return as_host.ok() ? as_host : status;
}

}  // namespace pinrail::grdma
