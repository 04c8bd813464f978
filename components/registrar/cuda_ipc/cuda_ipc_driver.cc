// SPDX-License-Identifier: BSD-3-Clause
// Contexts and errors of the driver. API context, no lock.
#include <cstdio>
#include <iterator>

#include "components/registrar/cuda_ipc/cuda_ipc.h"

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
  char number[16];
  std::snprintf(number, sizeof(number), "%d", static_cast<int>(error));
  const pinrail_help_arg_t args[] = {{"call", call}, {"error", number}};
  registrar.component->host->help(registrar.component->host, "driver failed", args, std::size(args));
  return status;
}

}  // namespace pinrail::cuda_ipc
