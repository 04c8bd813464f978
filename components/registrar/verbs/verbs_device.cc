// SPDX-License-Identifier: BSD-3-Clause
// Chooses the device: the one of the lent protection domain, the one that the parameter names, or the first with an
// active port. API context, no lock, except close_device(), which takes the transfer lock.
#include <cerrno>
#include <cstring>

#include "base/core/files.h"
#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {

// The library's exported function fills the older, shorter form of the struct.
int query_port(const Registrar& registrar, ibv_context* context, ibv_port_attr* port_out) {
  auto* const old_form = reinterpret_cast<_compat_ibv_port_attr*>(port_out);
  return registrar.library.query_port(context, registrar.settings.port, old_form);
}

namespace {

// Returns the device's context if it is the wanted device, else NULL.
ibv_context* try_device(const Registrar& registrar, ibv_device* device) {
  const char* wanted = registrar.settings.device;
  const char* name = registrar.library.get_device_name(device);
  const bool named = wanted[0] != '\0';
  if (named && (name == nullptr || std::strcmp(name, wanted) != 0)) return nullptr;
  ibv_context* context = registrar.library.open_device(device);
  if (context == nullptr) {
    log_reason(registrar.host, "cannot open a device", ErrnoText(errno).c_str());
    return nullptr;
  }
  ibv_port_attr port{};
  if (named || (query_port(registrar, context, &port) == 0 && port.state == IBV_PORT_ACTIVE)) return context;
  registrar.library.close_device(context);
  return nullptr;
}

// Opens the wanted device. NOT_AVAILABLE: there is none.
Status find_device(Registrar* registrar) {
  int count = 0;
  ibv_device** devices = registrar->library.get_device_list(&count);
  if (devices == nullptr) return not_available(registrar->host, "cannot list RDMA devices", ErrnoText(errno).c_str());
  for (int i = 0; i < count && registrar->context == nullptr; ++i) {
    registrar->context = try_device(*registrar, devices[i]);
  }
  registrar->library.free_device_list(devices);
  if (registrar->context != nullptr) return success();
  const char* const wanted = registrar->settings.device;
  if (wanted[0] == '\0') {
    return not_available(registrar->host, "no RDMA device", "none can be opened with an active port");
  }
  show(registrar->host, "no such device", {{"device", wanted}});
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Opens the wanted device, again if the process forked meanwhile: the child may have its descriptor (F1).
Status open_noted(Registrar* registrar) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t forks = own_file::count_forks();
    const Status status = find_device(registrar);
    if (!status.ok()) return status;
    for (int* const file : {&registrar->context->cmd_fd, &registrar->context->async_fd}) *file = above_standard(*file);
    if (registrar->commands.take(registrar->context->cmd_fd, FileKind::rdma_device, forks)) {
      // Without it nothing is lost: nothing reads the events. Its inode is that of eventfds and epolls, too.
      static_cast<void>(registrar->events.take(registrar->context->async_fd, FileKind::rdma_device, forks));
      return success();
    }
    registrar->library.close_device(registrar->context);
    registrar->context = nullptr;
  }
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Opens the device and makes a protection domain.
Status own_domain(Registrar* registrar) {
  const Status status = open_noted(registrar);
  if (!status.ok()) return status;
  registrar->pd = registrar->library.alloc_pd(registrar->context);
  if (registrar->pd != nullptr) return success();
  const int error = errno;
  log_reason(registrar->host, "cannot have a protection domain", ErrnoText(error).c_str());
  return error == ENOMEM ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_NOT_AVAILABLE;
}

Status use_domain(Registrar* registrar, ibv_pd* lent) {
  if (lent == nullptr) return own_domain(registrar);
  registrar->lent = true;
  registrar->pd = lent;
  registrar->context = lent->context;
  return success();
}

// Returns the largest region in bytes; 0: no maximum.
size_t max_length_of(const Registrar& registrar) {
  ibv_device_attr attributes{};
  if (registrar.library.query_device(registrar.context, &attributes) != 0) return 0;
  return attributes.max_mr_size >= SIZE_MAX / 2 ? 0 : static_cast<size_t>(attributes.max_mr_size);
}

}  // namespace

// Loads the library, and opens the device or uses the lent domain. NOT_AVAILABLE or OUT_OF_RESOURCE; nothing is left
// open then.
Status open_device(Registrar* registrar, ibv_pd* lent, size_t* max_length_out) {
  const char* why = nullptr;
  if (!registrar->library.open(&why).ok()) return not_available(registrar->host, "no libibverbs", why);
  const Status status = use_domain(registrar, lent);
  if (!status.ok()) {
    close_device(registrar);
    return status;
  }
  *max_length_out = max_length_of(*registrar);
  return success();
}

// Takes the transfer lock. Closes everything except what was lent.
void close_device(Registrar* registrar) {
  // libibverbs writes to the numbers that it has, and closes them: not to those that name files of the program's, or of
  // a forked child.
  if (!registrar->lent && registrar->context != nullptr) {
    registrar->context->cmd_fd = registrar->commands.number();
    if (registrar->events.is_taken()) registrar->context->async_fd = registrar->events.number();
  }
  {
    Guard guard(registrar->transfer);
    close_loopback_locked(registrar);
  }
  if (!registrar->lent && registrar->pd != nullptr) registrar->library.dealloc_pd(registrar->pd);
  static_cast<void>(registrar->commands.release());
  static_cast<void>(registrar->events.release());
  if (!registrar->lent && registrar->context != nullptr) registrar->library.close_device(registrar->context);
}

// Registers with ibv_reg_mr and deregisters with ibv_dereg_mr. API context, no lock.

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

// NULL and EOPNOTSUPP: the library lacks the function for it. Relaxed ordering is a hint: with a library that does not
// know it, the region is registered without it.
ibv_mr* register_region(const Registrar& registrar, const pinrail_register_request_t& request) {
  const Library& library = registrar.library;
  const int access = access_of(request.rights, request.traits);
  const bool is_dmabuf = request.kind == PINRAIL_KIND_DMABUF, is_all = is_for_all_memory(registrar.limits, request);
  const bool hints = (access & IBV_ACCESS_OPTIONAL_RANGE) != 0 && !is_all;
  if (is_dmabuf && library.reg_dmabuf_mr != nullptr) {
    return library.reg_dmabuf_mr(registrar.pd, request.fd_offset, request.length, iova_of(request), request.fd, access);
  }
  if (!is_dmabuf && (hints || has_own_iova(request)) && library.reg_mr_iova2 != nullptr) {
    return library.reg_mr_iova2(registrar.pd, request.addr, request.length, iova_of(request),
                                static_cast<unsigned>(access));
  }
  if (is_dmabuf || has_own_iova(request)) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  return library.reg_mr(registrar.pd, is_all ? nullptr : request.addr, is_all ? SIZE_MAX : request.length,
                        access & ~IBV_ACCESS_OPTIONAL_RANGE);
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
  // EINVAL: memory that is not there, too.
  if (region == nullptr)
    return status_of_refusal(registrar->host, request->length, errno == EINVAL ? EFAULT : errno).code();
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
