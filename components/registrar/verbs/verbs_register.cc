// SPDX-License-Identifier: BSD-3-Clause
// Registers with ibv_reg_mr and deregisters with ibv_dereg_mr. API context, no lock.
#include <cerrno>

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
  return access;
}

// The region gets the addresses that the range has in this process.
ibv_mr* register_dmabuf(const Registrar& registrar, const pinrail_register_request_t& request) {
  if (registrar.library.reg_dmabuf_mr == nullptr) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  const auto iova = reinterpret_cast<uintptr_t>(request.addr);
  return registrar.library.reg_dmabuf_mr(registrar.pd, request.fd_offset, request.length, iova, request.fd,
                                         access_of(request.rights, request.traits));
}

// Relaxed ordering is a hint: with a library that does not know it, the region is registered without it.
ibv_mr* register_region(const Registrar& registrar, const pinrail_register_request_t& request) {
  if (request.kind == PINRAIL_KIND_DMABUF) return register_dmabuf(registrar, request);
  const int access = access_of(request.rights, request.traits);
  const bool hints = (access & IBV_ACCESS_OPTIONAL_RANGE) != 0;
  if (hints && registrar.library.reg_mr_iova2 != nullptr) {
    const auto iova = reinterpret_cast<uintptr_t>(request.addr);
    return registrar.library.reg_mr_iova2(registrar.pd, request.addr, request.length, iova,
                                          static_cast<unsigned>(access));
  }
  return registrar.library.reg_mr(registrar.pd, request.addr, request.length, access & ~IBV_ACCESS_OPTIONAL_RANGE);
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
    default: report(registrar, "register failed", bytes, error); return PINRAIL_ERR_ERROR;
  }
}

ibv_mr*& region_of(pinrail_registration_t* reg) { return static_cast<Tail*>(registrar_tail(reg))->region; }

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  const Status status = check_request(registrar->limits, *request);
  if (!status.ok()) return status.code();
  if ((request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  errno = 0;
  ibv_mr* region = register_region(*registrar, *request);
  if (region == nullptr) return status_of(*registrar, request->length, errno).code();
  region_of(reg) = region;
  reg->lkey = region->lkey;
  reg->rkey = region->rkey;
  return PINRAIL_SUCCESS;
}

// The reason does not matter: the device holds pages, not addresses.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  const int error = registrar->library.dereg_mr(region_of(reg));
  if (error == 0) {
    region_of(reg) = nullptr;
    return PINRAIL_SUCCESS;
  }
  report(*registrar, "deregister failed", reg->length, error);
  return PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::verbs
