// SPDX-License-Identifier: BSD-3-Clause
// device.cc - the device of a replay.
#include "contrib/tools/perf/device.h"

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

namespace {

// The registration that the component has made for one of ours.
pinrail_handle_t& inner(const pinrail_registration_t* reg) {
  return *static_cast<pinrail_handle_t*>(pinrail_registration_tail(reg));
}

pinrail_status_t read_device(void*, const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  if (inner(reg).reg == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return pinrail_mpool_device_read(inner(reg), offset, into, length);
}

}  // namespace

pinrail_mpool_options_t keep_nothing() {
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.flags = PINRAIL_POOL_EXACT;
  options.leave_pinned = 0;
  options.size_limit = 0;
  options.count_limit = 0;
  return options;
}

Result Device::open(const std::string& name) {
  table_.size = sizeof(table_);
  table_.context = this;
  table_.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table_.kinds = PINRAIL_KIND_HOST;
  table_.granularity = page_size();
  table_.tail_size = sizeof(pinrail_handle_t);
  table_.register_mem = register_mem;
  table_.deregister_mem = deregister_mem;
  table_.device_read = read_device;
  table_.name = kNone;
  if (name == kNone) return Result::good();
  const pinrail_registrar_choice_t choice = {name.empty() ? nullptr : name.c_str(), nullptr, nullptr};
  const pinrail_mpool_options_t nothing = keep_nothing();
  const pinrail_status_t status = pinrail_mpool_create(nullptr, &choice, "pinrail_perf_device", &nothing, &pool_);
  if (status != PINRAIL_SUCCESS)
    return Result::bad(text("cannot use %s%s: %s", name.empty() ? "any registrar" : "registrar ", name.c_str(),
                            pinrail_status_name(status)));
  table_.name = pinrail_mpool_registrar_name(pool_);
  return Result::good();
}

Result Device::close() {
  const pinrail_status_t status = pool_ == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(pool_, 0);
  if (status != PINRAIL_SUCCESS)
    return Result::bad(text("the pool under test has not given everything back: %s", pinrail_status_name(status)));
  pool_ = nullptr;
  return Result::good();
}

// In that pool everything is referenced, by the pool under test, which can evict: so what lacks room for now lacks
// room.
pinrail_status_t Device::pass_on(const pinrail_register_request_t& request, pinrail_registration_t* reg) {
  if (pool_ == nullptr) return PINRAIL_SUCCESS;
  pinrail_handle_t handle = {};
  const pinrail_status_t status = pinrail_mpool_register(
      pool_, request.addr, request.length, request.rights | request.traits, PINRAIL_FLAG_CACHE_BYPASS, &handle);
  if (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (status != PINRAIL_SUCCESS) return status;
  inner(reg) = handle;
  reg->lkey = handle.reg->lkey;
  reg->rkey = handle.reg->rkey;
  return PINRAIL_SUCCESS;
}

// relaxed throughout: counts, read when the replay has ended.
pinrail_status_t Device::register_mem(void* self, const pinrail_register_request_t* request,
                                      pinrail_registration_t* reg) {
  auto* const device = static_cast<Device*>(self);
  const uint64_t begin = now_ns();
  const pinrail_status_t status = device->pass_on(*request, reg);
  device->register_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  device->calls_.fetch_add(1, std::memory_order_relaxed);
  if (status == PINRAIL_SUCCESS)
    device->pages_.fetch_add(request->length / page_size(), std::memory_order_relaxed);
  else
    device->refused_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

pinrail_status_t Device::deregister_mem(void* self, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* const device = static_cast<Device*>(self);
  if (inner(reg).reg == nullptr) return PINRAIL_SUCCESS;
  const uint64_t begin = now_ns();
  const pinrail_status_t status = pinrail_mpool_deregister(inner(reg));
  device->deregister_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  return status;
}

DeviceCalls Device::calls() const {
  DeviceCalls now;
  now.calls = calls_.load(std::memory_order_relaxed);
  now.refused = refused_.load(std::memory_order_relaxed);
  now.pages = pages_.load(std::memory_order_relaxed);
  now.register_ns = register_ns_.load(std::memory_order_relaxed);
  now.deregister_ns = deregister_ns_.load(std::memory_order_relaxed);
  return now;
}

}  // namespace pinrail::perf
