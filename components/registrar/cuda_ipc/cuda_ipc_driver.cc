// SPDX-License-Identifier: BSD-3-Clause
// Contexts and errors.
#include <cstdio>

#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

// Retained once and for all: a device's primary context costs hundreds of megabytes only if nobody has it yet.
CUresult primary_context(Registrar* registrar, int device, CUcontext* context_out) {
  {
    Guard guard(registrar->mutex);
    *context_out = registrar->contexts[device];
  }
  if (*context_out != nullptr) return CUDA_SUCCESS;
  const CUresult error = registrar->cuda.cuDevicePrimaryCtxRetain(context_out, device);
  if (error != CUDA_SUCCESS) return error;
  bool spare = false;
  {
    Guard guard(registrar->mutex);
    spare = registrar->contexts[device] != nullptr;  // another thread was faster
    registrar->contexts[device] = *context_out;
  }
  if (spare) registrar->cuda.cuDevicePrimaryCtxRelease(device);
  return CUDA_SUCCESS;
}

// What the caller is told without a word of ours: he, or the pool, knows what to do about it.
pinrail_status_t everyday(CUresult error) {
  switch (error) {
    case CUDA_SUCCESS: return PINRAIL_SUCCESS;
    case CUDA_ERROR_ALREADY_MAPPED: return PINRAIL_ERR_WOULD_BLOCK;
    case CUDA_ERROR_OUT_OF_MEMORY:
    case CUDA_ERROR_MAP_FAILED:
    case CUDA_ERROR_TOO_MANY_PEERS: return PINRAIL_ERR_OUT_OF_RESOURCE;
    case CUDA_ERROR_INVALID_HANDLE: return PINRAIL_ERR_NOT_FOUND;
    case CUDA_ERROR_INVALID_CONTEXT: return PINRAIL_ERR_NOT_SUPPORTED;
    case CUDA_ERROR_NOT_SUPPORTED:
    case CUDA_ERROR_PEER_ACCESS_UNSUPPORTED: return PINRAIL_ERR_NOT_SUPPORTED;
    case CUDA_ERROR_NOT_PERMITTED: return PINRAIL_ERR_PERM;
    default: return PINRAIL_ERR_ERROR;
  }
}

}  // namespace

Current::Current(Registrar* registrar, int device) : registrar_(registrar) {
  CUcontext context = nullptr;
  result_ = primary_context(registrar, device, &context);
  if (result_ == CUDA_SUCCESS) result_ = registrar->cuda.cuCtxPushCurrent(context);
}

// A pop that fails is tried once more: the caller's context must be current again.
Current::~Current() {
  if (result_ != CUDA_SUCCESS) return;
  CUresult error = registrar_->cuda.cuCtxPopCurrent(nullptr);
  if (error != CUDA_SUCCESS) error = registrar_->cuda.cuCtxPopCurrent(nullptr);
  if (error != CUDA_SUCCESS) status_of(*registrar_, "cuCtxPopCurrent", error).ignore();
}

Status status_of(const Registrar& registrar, const char* call, CUresult error) {
  const pinrail_status_t status = everyday(error);
  if (status != PINRAIL_ERR_ERROR) return status;
  char number[16];
  std::snprintf(number, sizeof(number), "%d", static_cast<int>(error));
  const pinrail_help_arg_t args[] = {{"call", call}, {"error", number}};
  registrar.component->host->help(registrar.component->host, "driver failed", args, 2);
  return status;
}

}  // namespace pinrail::cuda_ipc
