// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close; creates and destroys registrars. Start-up or API context, no lock.
#include <dirent.h>

#include <memory>
#include <new>

#include "base/core/kernel.h"
#include "components/registrar/verbs/verbs.h"

namespace pinrail::verbs {
namespace {

const char kHelp[] =
#include "components/registrar/verbs/verbs_help.txt"
    ;

constexpr pinrail_enum_value_t kOdpValues[] = {{static_cast<int64_t>(Odp::off), "off"},
                                               {static_cast<int64_t>(Odp::one_by_one), "explicit"},
                                               {static_cast<int64_t>(Odp::implicit), "implicit"},
                                               {static_cast<int64_t>(Odp::automatic), "auto"},
                                               {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "device", "",
     "Name of the RDMA device, as ibv_devices lists it. Empty: the first one whose port is active. Not looked at when "
     "the pool's creator lends a protection domain.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 2, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "port", "1", "Port of the device, counted from 1.", PINRAIL_TYPE_UNSIGNED,
     PINRAIL_SCOPE_READONLY, 3, nullptr, 1, 255, nullptr},
    {sizeof(pinrail_param_t), "gid_index", "-1",
     "GID that the loopback of device_read and device_write uses on Ethernet. -1: the first one of RoCE v2 over IPv4, "
     "else 0.",
     PINRAIL_TYPE_INT, PINRAIL_SCOPE_READONLY, 6, nullptr, -1, 255, nullptr},
    {sizeof(pinrail_param_t), "odp", "off",
     "Registration on demand, for the pool odp and requests with the trait: the device faults pages in, nothing is "
     "pinned. The device is tried with data first. off: none. explicit: a range at a time. implicit: all memory at "
     "once, too. With these two a device that fails the trial is an error. auto: the best that passes, else none.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 4, kOdpValues, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "odp_page_aligned", "no",
     "Programs transfer on-demand memory only from addresses that are multiples of the page size. Then a device is "
     "accepted that is right there, and wrong elsewhere (soft-RoCE with a path MTU of 4096).",
     PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr}};

// Returns whether the kernel has any RDMA device, without loading the library.
bool any_device() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir("/sys/class/infiniband"), closedir);
  if (folder == nullptr) return false;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  const dirent* entry = readdir(folder.get());
  while (entry != nullptr && entry->d_name[0] == '.') entry = readdir(folder.get());
  return entry != nullptr;
}

Status read_settings(const pinrail_host_t* host, Settings* settings_out) {
  pinrail_param_value_t device{}, port{}, gid_index{}, odp{}, odp_page_aligned{};
  const Status status = read_params(host, {{"device", &device},
                                           {"port", &port},
                                           {"gid_index", &gid_index},
                                           {"odp", &odp},
                                           {"odp_page_aligned", &odp_page_aligned}});
  if (!status.ok()) return status;
  *settings_out = {device.s, static_cast<uint8_t>(port.u), static_cast<int>(gid_index.i), static_cast<Odp>(odp.i),
                   odp_page_aligned.i != 0};
  return success();
}

void fill_table(Registrar* registrar, size_t max_length) {
  pinrail_registrar_t& table = registrar->limits;
  table = make_registrar("verbs", registrar, uint32_t{PINRAIL_KIND_HOST} | uint32_t{PINRAIL_KIND_DMABUF}, page_bytes(),
                         register_mem, deregister_mem);
  table.max_length = max_length & ~(table.granularity - 1);
  table.tail_size = sizeof(Tail);
  table.device_read = device_read;
  table.device_write = device_write;
  table.advise = advise;
}

// The device is searched when a registrar is created, and not by open(), because a protection domain may be lent.
pinrail_status_t create(void* context, void* native, pinrail_registrar_t* registrar_out) {
  const pinrail_host_t* host = static_cast<const pinrail_host_t*>(context);
  if (native == nullptr && !any_device()) {
    return not_available(host, "no RDMA device", "/sys/class/infiniband is missing or empty").code();
  }
  Settings settings{};
  Status status = read_settings(host, &settings);
  if (!status.ok()) return status.code();
  std::unique_ptr<Registrar> registrar(new (std::nothrow) Registrar(host, settings));
  if (registrar == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  size_t max_length = 0;
  status = open_device(registrar.get(), static_cast<ibv_pd*>(native), &max_length);
  if (!status.ok()) return status.code();
  fill_table(registrar.get(), max_length);
  status = guarded([&] { return choose_odp(registrar.get()); });
  if (!status.ok()) {
    close_device(registrar.get());
    return status.code();
  }
  *registrar_out = registrar.release()->limits;
  return PINRAIL_SUCCESS;
}

void destroy(void*, pinrail_registrar_t* registrar) {
  const std::unique_ptr<Registrar> ours(static_cast<Registrar*>(registrar->context));
  close_device(ours.get());
}

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_REGISTRAR_ABI, 60, "registrar", "verbs",
             "Memory regions of an RDMA device, by libibverbs, which is loaded only where there is a device.",
             keep_host, forget_host, &kOps),
    kHelp, kParams);

}  // namespace

// Loads libibverbs at run time. API context, no lock.
Status Library::open(const char** why_out) {
  void* const library = load_library("libibverbs.so.1", why_out);
  if (library == nullptr) return PINRAIL_ERR_NOT_AVAILABLE;
  bool all = true;
#define PINRAIL_VERBS_LOAD(name) all = load_function(library, "ibv_" #name, &(name)) && all;
  PINRAIL_VERBS_FUNCTIONS(PINRAIL_VERBS_LOAD)
#undef PINRAIL_VERBS_LOAD
  load_function(library, "ibv_reg_mr_iova2", &reg_mr_iova2);
  load_function(library, "ibv_reg_dmabuf_mr", &reg_dmabuf_mr);
  load_function(library, "_ibv_query_gid_ex", &query_gid_ex);
  load_function(library, "ibv_cmd_advise_mr", &cmd_advise_mr);
  if (all) return success();
  *why_out = "libibverbs.so.1 lacks a function that is needed";
  return PINRAIL_ERR_NOT_AVAILABLE;
}

}  // namespace pinrail::verbs

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::verbs::kComponent;
