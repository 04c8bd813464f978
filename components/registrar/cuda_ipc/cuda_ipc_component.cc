// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters, open, close; creates and destroys registrars. Start-up or API context, no lock, except
// forget_events() and destroy_events().
#include <unistd.h>

#include <cstdio>
#include <new>

#include "base/core/own_component.h"
#include "components/registrar/cuda_ipc/cuda_ipc.h"
#include "framework/registrar/request.h"

namespace pinrail::cuda_ipc {
namespace {

const char kHelp[] =
#include "components/registrar/cuda_ipc/cuda_ipc_help.txt"
    ;

constexpr pinrail_enum_value_t kWays[] = {{0, "auto"}, {1, "socket"}, {2, "pidfd"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "library", "libcuda.so.1",
     "File name of the CUDA driver library, as dlopen takes it. For sites that keep it where the loader does not look.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 6, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "device", "-1",
     "Number of the GPU in whose context the memory of peers is mapped. -1: the GPU where it lies if this process sees "
     "that one, else GPU 0.",
     PINRAIL_TYPE_INT, PINRAIL_SCOPE_READONLY, 3, nullptr, -1, kMaxDevices - 1, nullptr},
    {sizeof(pinrail_param_t), "fds", "auto",
     "How the file descriptors of peers' memory (cuMemCreate, stream-ordered pools) are fetched. socket: the peer is "
     "asked. pidfd: they are taken without its help, which the kernel may bar. auto: pidfd, else socket.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 7, kWays, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "fd_timeout", "1000",
     "Milliseconds within which a peer must answer a request for a descriptor.", PINRAIL_TYPE_UNSIGNED,
     PINRAIL_SCOPE_READONLY, 6, nullptr, 1, 3600000, nullptr},
    {sizeof(pinrail_param_t), "events", "false",
     "Whether blocks of local allocations carry an event, which pinrail_mpool_record() records and for which peers "
     "wait by pinrail_mpool_wait(). Costs an event of the driver for each allocation that is registered at a time.",
     PINRAIL_TYPE_BOOL, PINRAIL_SCOPE_READONLY, 5, nullptr, 0, 0, nullptr}};

// Loads the library but does not start the driver, which takes a good part of a second: the program may need no GPU.
pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t file{};
  const Status found = host->param(host, "library", &file);
  if (!found.ok()) return found.code();
  std::unique_ptr<Component> component(new (std::nothrow) Component{host, {}, {}});
  if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  const char* why = "";
  if (!component->library.open(file.s, &why).ok()) return not_available(host, "no CUDA driver", why).code();
  *context_out = component.release();
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Component*>(context); }

// The driver's error as a number; its names would need a newer driver.
pinrail_status_t refused(const pinrail_host_t* host, const char* what, CUresult error) {
  char why[48];
  std::snprintf(why, sizeof(why), "the driver says %d", static_cast<int>(error));
  return not_available(host, what, why).code();
}

pinrail_status_t find_devices(Registrar* registrar) {
  const Library& cuda = registrar->cuda;
  const pinrail_host_t* host = registrar->component->host;
  CUresult error = cuda.cuInit(0);
  if (error != CUDA_SUCCESS) return refused(host, "the CUDA driver does not start", error);
  error = cuda.cuDeviceGetCount(&registrar->device_count);
  if (error != CUDA_SUCCESS || registrar->device_count == 0) return refused(host, "no GPU", error);
  if (registrar->device_count > kMaxDevices) registrar->device_count = kMaxDevices;
  for (int i = 0; i < registrar->device_count; ++i) {
    CUdevice device = 0;
    CUuuid uuid{};
    error = cuda.cuDeviceGet(&device, i);
    if (error == CUDA_SUCCESS) error = cuda.cuDeviceGetUuid(&uuid, device);
    if (error != CUDA_SUCCESS) return refused(host, "a GPU does not answer", error);
    std::memcpy(registrar->uuids[i], uuid.bytes, sizeof(registrar->uuids[i]));
  }
  return PINRAIL_SUCCESS;
}

pinrail_status_t read_settings(Registrar* registrar) {
  const pinrail_host_t* host = registrar->component->host;
  pinrail_param_value_t device{}, way{}, timeout{}, events{};
  const Status status =
      read_params(host, {{"device", &device}, {"fds", &way}, {"fd_timeout", &timeout}, {"events", &events}});
  if (!status.ok()) return status.code();
  registrar->way = static_cast<descriptors::Way>(way.i);
  registrar->fd_timeout_ms = static_cast<uint32_t>(timeout.u);
  registrar->has_events = events.i != 0 && registrar->cuda.has_events;
  if (events.i != 0 && !registrar->has_events) report_no_events(registrar, "it lacks a function");
  registrar->device = static_cast<int>(device.i);
  if (registrar->device < registrar->device_count) return PINRAIL_SUCCESS;
  show(host, "no such device",
       {{"device", NumberText(static_cast<size_t>(registrar->device)).c_str()},
        {"count", NumberText(static_cast<size_t>(registrar->device_count)).c_str()}});
  return PINRAIL_ERR_NOT_AVAILABLE;
}

// Records which process the registrar belongs to, and makes a server for it. The descriptors of the former server are
// closed.
pinrail_status_t start_session(Registrar* registrar) {
  std::unique_ptr<descriptors::Server> server(new (std::nothrow) descriptors::Server);
  if (server == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  registrar->process = getpid();
  if (!slots::this_process(&registrar->self).ok()) registrar->self = {};
  registrar->server = std::move(server);
  forget_events(registrar);
  return PINRAIL_SUCCESS;
}

// The checkpointer restores the driver's own state.
pinrail_status_t restart(void* context) {
  auto* registrar = static_cast<Registrar*>(context);
  const pinrail_status_t status = start_session(registrar);
  if (status == PINRAIL_SUCCESS) registrar->component->pool_imports.forget_all_of(*registrar);
  return status;
}

pinrail_status_t create(void* context, void*, pinrail_registrar_t* registrar_out) {
  std::unique_ptr<Registrar> registrar(new (std::nothrow) Registrar(static_cast<Component*>(context)));
  if (registrar == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  pinrail_status_t status = find_devices(registrar.get());
  if (status == PINRAIL_SUCCESS) status = read_settings(registrar.get());
  if (status == PINRAIL_SUCCESS) status = start_session(registrar.get());
  if (status != PINRAIL_SUCCESS) return status;
  fill_table(registrar.get());
  registrar->limits.restart = restart;
  *registrar_out = registrar.release()->limits;
  return PINRAIL_SUCCESS;
}

void destroy(void*, pinrail_registrar_t* table) {
  const std::unique_ptr<Registrar> registrar(static_cast<Registrar*>(table->context));
  if (getpid() != registrar->process) {  // cuda_ipc/I2
    registrar->server->disown();
    return;
  }
  destroy_events(registrar.get());
  for (int i = 0; i < registrar->device_count; ++i) {
    if (registrar->has_context[i]) registrar->cuda.cuDevicePrimaryCtxRelease(i);
  }
}

constexpr pinrail_registrar_ops_t kOps = {sizeof(pinrail_registrar_ops_t), create, destroy};

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_REGISTRAR_ABI, 5, "registrar", "cuda_ipc",
             "GPU memory across processes, by the CUDA driver, which is loaded at run time.", open, close, &kOps),
    kHelp, kParams);

// Translates the errors that the caller or the pool handles; these print no message.
pinrail_status_t status_of_expected(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS: return PINRAIL_SUCCESS;
    case CUDA_ERROR_ALREADY_MAPPED: return PINRAIL_ERR_WOULD_BLOCK;
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_MAP_FAILED:
    case CUDA_ERROR_TOO_MANY_PEERS: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case CUDA_ERROR_INVALID_HANDLE: return PINRAIL_ERR_NOT_FOUND;
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: return PINRAIL_ERR_NOT_SUPPORTED;
    case CUDA_ERROR_NOT_PERMITTED: return PINRAIL_ERR_PERM;
    case CUDA_ERROR_DEINITIALIZED: return PINRAIL_ERR_NOT_AVAILABLE;
    default: return PINRAIL_ERR_ERROR;
  }
}

}  // namespace

// Contexts and errors of the driver. API context, no lock.

// The context is retained each time, because the device may have been reset since the last call: retaining starts it
// again. The first reference is kept, because the last release would destroy the context with all mappings.
CurrentContext::CurrentContext(Registrar* registrar, int device) : registrar_(registrar), device_(device) {
  CUcontext context = nullptr;
  is_relaxed_ = registrar->cuda.cuThreadExchangeStreamCaptureMode(&capture_mode_) == CUDA_SUCCESS;
  result_ = registrar->cuda.cuDevicePrimaryCtxRetain(&context, device);
  if (result_ != CUDA_SUCCESS) return;
  is_spare_ = registrar->has_context[device].exchange(true);
  result_ = registrar->cuda.cuCtxPushCurrent(context);
  if (result_ != CUDA_SUCCESS) release();
}

// The caller's context must be current again, and no reference may stay.
CurrentContext::~CurrentContext() {
  if (result_ == CUDA_SUCCESS) {
    release_with_retry(*registrar_, "cuCtxPopCurrent", [&] { return registrar_->cuda.cuCtxPopCurrent(nullptr); });
    release();
  }
  if (is_relaxed_) registrar_->cuda.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

void CurrentContext::release() {
  if (!is_spare_) return;
  release_with_retry(*registrar_, "cuDevicePrimaryCtxRelease",
                     [&] { return registrar_->cuda.cuDevicePrimaryCtxRelease(device_); });
}

Status status_of(const Registrar& registrar, const char* call, CUresult error, pinrail_status_t of_invalid) {
  const pinrail_status_t status = error == CUDA_ERROR_INVALID_VALUE ? of_invalid : status_of_expected(error);
  if (status != PINRAIL_ERR_ERROR) return status;
  show(registrar.component->host, "driver failed",
       {{"call", call}, {"error", NumberText(static_cast<size_t>(error)).c_str()}});
  return status;
}

Status Library::open(const char* file, const char** why_out) {
  void* const library = load_library(file, why_out);
  if (library == nullptr) return PINRAIL_ERR_NOT_AVAILABLE;
#define PINRAIL_CUDA_NAME(name) #name
#define PINRAIL_CUDA_LOAD(flag, name) flag = load_function(library, PINRAIL_CUDA_NAME(name), &(name)) && flag;
  PINRAIL_CUDA_FUNCTIONS(PINRAIL_CUDA_LOAD)
#undef PINRAIL_CUDA_LOAD
#undef PINRAIL_CUDA_NAME
  if (has_needed) return success();
  *why_out = "it lacks a function that is needed; the driver is too old";
  return PINRAIL_ERR_NOT_AVAILABLE;
}

}  // namespace pinrail::cuda_ipc

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::cuda_ipc::kComponent;
