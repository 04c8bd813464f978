// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <unistd.h>

#include <new>
#include <utility>

#include "base/core/own_component.h"
#include "components/registrar/iouring/iouring.h"

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
