// SPDX-License-Identifier: BSD-3-Clause
// Chooses the device: the one of the lent protection domain, the one that the parameter names, or the first with an
// active port. API context, no lock, except close_device(), which takes the transfer lock.
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/core/own_component.h"
#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {
namespace {

bool port_active(const Registrar& registrar, ibv_context* context) {
  ibv_port_attr port{};
  // The library's exported function fills the older, shorter form of the struct, which contains `state`.
  auto* old_form = reinterpret_cast<_compat_ibv_port_attr*>(&port);
  return registrar.library.query_port(context, registrar.settings.port, old_form) == 0 && port.state == IBV_PORT_ACTIVE;
}

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
  if (named || port_active(registrar, context)) return context;
  registrar.library.close_device(context);
  return nullptr;
}

void report_missing(const Registrar& registrar) {
  if (registrar.settings.device[0] == '\0') {
    return log_reason(registrar.host, "no RDMA device", "none can be opened with an active port");
  }
  show(registrar.host, "no such device", {{"device", registrar.settings.device}});
}

// Opens the wanted device. NOT_AVAILABLE: there is none.
Status find_device(Registrar* registrar) {
  int count = 0;
  ibv_device** devices = registrar->library.get_device_list(&count);
  if (devices == nullptr) {
    log_reason(registrar->host, "cannot list RDMA devices", ErrnoText(errno).c_str());
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  for (int i = 0; i < count && registrar->context == nullptr; ++i) {
    registrar->context = try_device(*registrar, devices[i]);
  }
  registrar->library.free_device_list(devices);
  if (registrar->context != nullptr) return success();
  report_missing(*registrar);
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Opens the wanted device, again if the process forked meanwhile: the child may have its descriptor (F1).
Status open_noted(Registrar* registrar) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    const uint64_t forks = own_file::count_forks();
    const Status status = find_device(registrar);
    if (!status.ok()) return status;
    if (registrar->commands.take(registrar->context->cmd_fd, FileKind::rdma_device, forks)) {
      // Without it nothing is lost: nothing reads the events.
      if (registrar->context->async_fd > STDERR_FILENO) {
        static_cast<void>(registrar->events.take(registrar->context->async_fd, FileKind::has_inode, forks));
      }
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
  Status status = registrar->library.open(&why);
  if (!status.ok()) {
    log_reason(registrar->host, "no libibverbs", why);
    return status;
  }
  status = use_domain(registrar, lent);
  if (!status.ok()) {
    close_device(registrar);
    return status;
  }
  *max_length_out = max_length_of(*registrar);
  return success();
}

// Takes the transfer lock. Closes everything except what was lent.
void close_device(Registrar* registrar) {
  {
    Guard guard(registrar->transfer);
    close_loopback_locked(registrar);
  }
  // libibverbs closes the numbers that it has: not those that name files of the program's, or of a forked child.
  if (!registrar->lent && registrar->context != nullptr) {
    registrar->context->cmd_fd = registrar->commands.number();
    if (registrar->events.is_taken()) registrar->context->async_fd = registrar->events.number();
  }
  if (!registrar->lent && registrar->pd != nullptr) registrar->library.dealloc_pd(registrar->pd);
  static_cast<void>(registrar->commands.release());
  static_cast<void>(registrar->events.release());
  if (!registrar->lent && registrar->context != nullptr) registrar->library.close_device(registrar->context);
  registrar->library.close();
}

}  // namespace pinrail::verbs
