// SPDX-License-Identifier: BSD-3-Clause
// Contexts and errors of the driver. API context, no lock.
#include <dlfcn.h>

#include <cstdio>

#include "base/core/own_component.h"
#include "base/core/trust.h"
#include "components/registrar/cuda_ipc/cuda_ipc.h"
#include "components/registrar/cuda_ipc/cuda_library.h"

namespace pinrail::cuda_ipc {
namespace {

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

// The context is retained each time, because the device may have been reset since the last call: retaining starts it
// again. The first reference is kept, because the last release would destroy the context with all mappings.
CurrentContext::CurrentContext(Registrar* registrar, int device) : registrar_(registrar), device_(device) {
  CUcontext context = nullptr;
  result_ = registrar->cuda.cuDevicePrimaryCtxRetain(&context, device);
  if (result_ != CUDA_SUCCESS) return;
  is_spare_ = registrar->has_context[device].exchange(true);
  result_ = registrar->cuda.cuCtxPushCurrent(context);
  if (result_ != CUDA_SUCCESS) release();
}

// The caller's context must be current again, and no reference may stay.
CurrentContext::~CurrentContext() {
  if (result_ != CUDA_SUCCESS) return;
  release_with_retry(*registrar_, "cuCtxPopCurrent", [&] { return registrar_->cuda.cuCtxPopCurrent(nullptr); });
  release();
}

void CurrentContext::release() {
  if (!is_spare_) return;
  release_with_retry(*registrar_, "cuDevicePrimaryCtxRelease",
                     [&] { return registrar_->cuda.cuDevicePrimaryCtxRelease(device_); });
}

Status status_of(const Registrar& registrar, const char* call, CUresult error) {
  const pinrail_status_t status = status_of_expected(error);
  if (status != PINRAIL_ERR_ERROR) return status;
  show(registrar.component->host, "driver failed",
       {{"call", call}, {"error", NumberText(static_cast<size_t>(error)).c_str()}});
  return status;
}

// Loads the CUDA driver library at run time. API context, no lock.

namespace {

template <typename Function>
bool load(void* handle, const char* name, Function* function_out) {
  *function_out = reinterpret_cast<Function>(dlsym(handle, name));
  return *function_out != nullptr;
}

}  // namespace

Status Library::open(const char* file, const char** why_out) {
  if (!trust::in_environment()) {
    *why_out = "the program has more rights than its caller, and the driver reads the environment";
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  bool all = true;
  has_optional = has_events = true;
#define PINRAIL_CUDA_NAME(name) #name
#define PINRAIL_CUDA_LOAD(name) all = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && all;
  PINRAIL_CUDA_FUNCTIONS(PINRAIL_CUDA_LOAD)
#define PINRAIL_CUDA_TRY(name) has_optional = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && has_optional;
  PINRAIL_CUDA_OPTIONAL_FUNCTIONS(PINRAIL_CUDA_TRY)
#undef PINRAIL_CUDA_TRY
#define PINRAIL_CUDA_TRY(name) has_events = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && has_events;
  PINRAIL_CUDA_EVENT_FUNCTIONS(PINRAIL_CUDA_TRY)
#undef PINRAIL_CUDA_TRY
#undef PINRAIL_CUDA_LOAD
#undef PINRAIL_CUDA_NAME
  dlclose(handle);  // RTLD_NODELETE: the library stays loaded
  if (all) return success();
  *why_out = "it lacks a function that is needed; the driver is too old";
  return PINRAIL_ERR_NOT_AVAILABLE;
}

}  // namespace pinrail::cuda_ipc
