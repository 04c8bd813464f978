// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <unistd.h>

#include <cerrno>
#include <new>
#include <utility>

#include "base/core/own_component.h"
#include "components/registrar/iouring/iouring.h"
#include "framework/registrar/request.h"

namespace pinrail::iouring {
namespace {

const char kHelp[] =
#include "components/registrar/iouring/iouring_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "max_rings", "64",
     "Most io_urings of one registrar; each serves 16384 registrations and costs one descriptor and about 200 KiB. "
     "Too low: registrations are evicted for want of slots.",
     PINRAIL_TYPE_UNSIGNED, PINRAIL_SCOPE_READONLY, 6, nullptr, 1, 4096, nullptr}};

void fill_table(Registrar* registrar) {
  pinrail_registrar_t& table = registrar->limits;
  table.size = sizeof(table);
  table.name = "iouring";
  table.context = registrar;
  table.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table.kinds = PINRAIL_KIND_HOST;
  table.granularity = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  table.max_length = kMaxLength;
  table.register_mem = register_mem;
  table.deregister_mem = deregister_mem;
  table.device_read = device_read;
  table.device_write = device_write;
}

pinrail_status_t create(void* component, void*, pinrail_registrar_t* registrar_out) {
  const pinrail_host_t* host = static_cast<const pinrail_host_t*>(component);
  pinrail_param_value_t max_rings{};
  const pinrail_status_t found = host->param(host, "max_rings", &max_rings);
  if (found != PINRAIL_SUCCESS) return found;
  std::unique_ptr<Registrar> registrar;
  const Status status = open_registrar(host, static_cast<uint32_t>(max_rings.u), &registrar);
  if (!status.ok()) return status.code();
  fill_table(registrar.get());
  *registrar_out = registrar.release()->limits;
  return PINRAIL_SUCCESS;
}

void destroy(void*, pinrail_registrar_t* registrar) {
  const std::unique_ptr<Registrar> ours(static_cast<Registrar*>(registrar->context));
  close_registrar(ours.get());
}

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_REGISTRAR_ABI, 40, "registrar", "iouring",
                         "Pins with io_uring's registered buffers: for machines without an RDMA device, and for tests.",
                         keep_host, forget_host, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::iouring

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::iouring::kComponent;

namespace pinrail::iouring {

// Registers: takes a slot of a ring and puts the buffer into it. Deregisters: clears and frees the slot. API context;
// no lock is held across the system call.

namespace {

// Translates an errno of io_uring; prints a message for an unexpected one.
Status status_of(const Registrar& registrar, size_t bytes, int error) {
  switch (error) {
    case 0: return success();
    case ENOMEM:
    case EAGAIN: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case EFAULT:  // a hole, or memory that is not writable
    case EOVERFLOW: return PINRAIL_ERR_BAD_PARAM;
    case EOPNOTSUPP: return PINRAIL_ERR_NOT_SUPPORTED;  // pages of a file, on kernels before 6.5
    case EPERM:
    case EACCES: return PINRAIL_ERR_PERM;
    default: show_errno(registrar.host, "register failed", bytes, error); return PINRAIL_ERR_ERROR;
  }
}

// Returns 0 or an errno.
int fill_slot(Registrar* registrar, uint32_t key, iovec buffer) {
  Ring* ring = ring_of(*registrar, key);
  const int error = -update_slot(ring, slot_of(key), buffer, 0);
  if (error != ENOMEM || !registrar->releases_late) return error;
  settle(registrar);
  return -update_slot(ring, slot_of(key), buffer, 0);
}

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  Status status = check_request(registrar->limits, *request);
  if (!status.ok()) return status.code();
  if ((request->traits & PINRAIL_TRAIT_ON_DEMAND) != 0 || has_own_iova(*request)) return PINRAIL_ERR_NOT_SUPPORTED;
  for (;;) {
    uint32_t key = 0;
    status = take_slot(registrar, &key);
    if (!status.ok()) return status.code();
    const int error = fill_slot(registrar, key, {request->addr, request->length});
    if (error == EBADF) {
      lose_ring(registrar, ring_of(*registrar, key));
      continue;  // another ring
    }
    if (error != 0) {
      give_slot(registrar, key);
      return status_of(*registrar, request->length, error).code();
    }
    reg->lkey = reg->rkey = key;
    return PINRAIL_SUCCESS;
  }
}

// The reason does not matter: a slot holds pages, not addresses.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  Ring* ring = ring_of(*registrar, reg->lkey);
  const int error = -update_slot(ring, slot_of(reg->lkey), {nullptr, 0}, 0);
  if (error == EBADF) {
    lose_ring(registrar, ring);  // with which the kernel unpins it
    return PINRAIL_SUCCESS;
  }
  if (registrar->releases_late) ring->unsettled = true;
  // The slot is freed even after an error: the next buffer in it replaces the old one.
  give_slot(registrar, reg->lkey);
  if (error == 0) return PINRAIL_SUCCESS;
  show_errno(registrar->host, "deregister failed", reg->length, error);
  return PINRAIL_ERR_ERROR;
}

}  // namespace pinrail::iouring
