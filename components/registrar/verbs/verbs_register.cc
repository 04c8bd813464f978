// SPDX-License-Identifier: BSD-3-Clause
// Registers with ibv_reg_mr and deregisters with ibv_dereg_mr. API context, no lock.
#include <cerrno>

#include "base/core/own_component.h"
#include "components/registrar/verbs/verbs.h"
#include "framework/registrar/request.h"

namespace pinrail::verbs {
namespace {

// Translates rights and traits to the library's access flags.
int access_of(uint32_t rights, uint32_t traits) {
  constexpr uint32_t kNeedsLocalWrite =
      PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_REMOTE_ATOMIC;
  int access = 0;
  if ((rights & kNeedsLocalWrite) != 0) access |= IBV_ACCESS_LOCAL_WRITE;
  if ((rights & PINRAIL_ACCESS_REMOTE_READ) != 0) access |= IBV_ACCESS_REMOTE_READ;
  if ((rights & PINRAIL_ACCESS_REMOTE_WRITE) != 0) access |= IBV_ACCESS_REMOTE_WRITE;
  if ((rights & PINRAIL_ACCESS_REMOTE_ATOMIC) != 0) access |= IBV_ACCESS_REMOTE_ATOMIC;
  if ((traits & PINRAIL_TRAIT_RELAXED_ORDERING) != 0) access |= IBV_ACCESS_RELAXED_ORDERING;
  if ((traits & PINRAIL_TRAIT_ON_DEMAND) != 0) access |= IBV_ACCESS_ON_DEMAND;
  return access;
}

// The address by which the device addresses the region.
uint64_t iova_of(const pinrail_register_request_t& request) {
  return request.iova != 0 ? request.iova : reinterpret_cast<uintptr_t>(request.addr);
}

ibv_mr* register_dmabuf(const Registrar& registrar, const pinrail_register_request_t& request) {
  if (registrar.library.reg_dmabuf_mr == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return registrar.library.reg_dmabuf_mr(registrar.pd, request.fd_offset, request.length, iova_of(request), request.fd,
                                         access_of(request.rights, request.traits));
}

// Relaxed ordering is a hint: with a library that does not know it, the region is registered without it.
ibv_mr* register_region(const Registrar& registrar, const pinrail_register_request_t& request) {
  if (request.kind == PINRAIL_KIND_DMABUF) return register_dmabuf(registrar, request);
  const int access = access_of(request.rights, request.traits);
  const bool hints = (access & IBV_ACCESS_OPTIONAL_RANGE) != 0;
  if (((hints && !is_for_all_memory(registrar.limits, request)) || has_own_iova(request)) &&
      registrar.library.reg_mr_iova2 != nullptr) {
    return registrar.library.reg_mr_iova2(registrar.pd, request.addr, request.length, iova_of(request),
                                          static_cast<unsigned>(access));
  }
  if (has_own_iova(request)) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const int needed = access & ~IBV_ACCESS_OPTIONAL_RANGE;
  if (is_for_all_memory(registrar.limits, request)) {
    return registrar.library.reg_mr(registrar.pd, nullptr, SIZE_MAX, needed);
  }
  return registrar.library.reg_mr(registrar.pd, request.addr, request.length, needed);
}

// Translates an errno of the library; prints a message for an unexpected one.
Status status_of(const Registrar& registrar, size_t bytes, int error) {
  switch (error) {
    case ENOMEM:
    case ENOSPC:
    case EAGAIN: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case EFAULT:
    case EINVAL: return PINRAIL_ERR_BAD_PARAM;
    case EOPNOTSUPP: return PINRAIL_ERR_NOT_SUPPORTED;
    case EPERM:
    case EACCES: return PINRAIL_ERR_PERM;
    default: show_errno(registrar.host, "register failed", bytes, error); return PINRAIL_ERR_ERROR;
  }
}

Tail& tail_of(pinrail_registration_t* reg) { return *static_cast<Tail*>(registrar_tail(reg)); }

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  const Status status = check_request(registrar->limits, *request);
  if (!status.ok()) return status.code();
  const bool on_demand = (request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0;
  if (on_demand && (registrar->limits.on_demand == PINRAIL_ON_DEMAND_NONE || request->kind != PINRAIL_KIND_HOST)) {
    return PINRAIL_ERR_NOT_SUPPORTED;
  }
  if (!is_device_open(registrar)) return PINRAIL_ERR_ERROR;
  errno = 0;
  ibv_mr* region = register_region(*registrar, *request);
  if (region == nullptr) return status_of(*registrar, request->length, errno).code();
  tail_of(reg) = {region, iova_of(*request)};
  reg->lkey = region->lkey;
  reg->rkey = region->rkey;
  return PINRAIL_SUCCESS;
}

// The reason does not matter: the device holds pages, not addresses.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  if (!is_device_open(registrar)) return PINRAIL_SUCCESS;  // reported
  const int error = registrar->library.dereg_mr(tail_of(reg).region);
  if (error == 0) {
    tail_of(reg).region = nullptr;
    return PINRAIL_SUCCESS;
  }
  show_errno(registrar->host, "deregister failed", reg->length, error);
  return PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::verbs
