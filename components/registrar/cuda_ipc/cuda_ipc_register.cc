// SPDX-License-Identifier: BSD-3-Clause
// The calls: a handle for what is ours, a mapping of what is a peer's, and bytes in and out.
#include <unistd.h>

#include <cstring>

#include "components/registrar/cuda_ipc/cuda_ipc.h"
#include "framework/registrar/request.h"

namespace pinrail::cuda_ipc {
namespace {

Tail* tail_of(pinrail_registration_t* reg) { return static_cast<Tail*>(registrar_tail(reg)); }
const Tail* tail_of(const pinrail_registration_t* reg) { return static_cast<const Tail*>(registrar_tail(reg)); }

int device_of_pointer(const Registrar& registrar, CUdeviceptr pointer) {
  int device = 0;
  CUpointer_attribute name = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
  void* value = &device;
  const CUresult error = registrar.cuda.cuPointerGetAttributes(1, &name, &value, pointer);
  return error == CUDA_SUCCESS && device >= 0 && device < registrar.device_count ? device : 0;
}

// Where the block's memory shall be mapped.
int device_for(const Registrar& registrar, const pinrail_gpu_handle_t& block) {
  if (registrar.device >= 0) return registrar.device;
  for (int i = 0; i < registrar.device_count; ++i) {
    if (std::memcmp(registrar.uuids[i], block.device, sizeof(block.device)) == 0) return i;
  }
  return 0;
}

// Copies on behalf of the caller do not return before the bytes are there. What refuses it is not harmed.
void make_copies_wait(const Registrar& registrar, CUdeviceptr pointer) {
  const unsigned yes = 1;
  registrar.cuda.cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, pointer);
}

Status get_handle(Registrar* registrar, CUdeviceptr pointer, int device, CUipcMemHandle* handle_out) {
  const Current current(registrar, device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
  make_copies_wait(*registrar, pointer);
  const CUresult error = registrar->cuda.cuIpcGetMemHandle(handle_out, pointer);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;  // memory of a kind that has no such handle
  return status_of(*registrar, "cuIpcGetMemHandle", error);
}

// The id is asked before and after: memory that was replaced meanwhile has another one, and the handle may be of
// either.
Status export_own(Registrar* registrar, const pinrail_register_request_t& request, Tail* tail) {
  const auto pointer = reinterpret_cast<CUdeviceptr>(request.addr);
  pinrail_gpu_range_t before{}, after{};
  before.size = after.size = sizeof(before);
  Status status = identify(registrar, request.addr, &before);
  if (!status.ok()) return status;
  if (before.base != request.addr || before.length != request.length) return PINRAIL_ERR_BAD_PARAM;
  const int device = device_of_pointer(*registrar, pointer);
  CUipcMemHandle handle{};
  status = get_handle(registrar, pointer, device, &handle);
  if (!status.ok()) return status;
  status = identify(registrar, request.addr, &after);
  if (!status.ok()) return status;
  if (after.buffer_id != before.buffer_id) return PINRAIL_ERR_NOT_FOUND;
  pinrail_gpu_handle_t& block = tail->block;
  block.kind = PINRAIL_GPU_IPC;
  block.base = pointer;
  block.length = request.length;
  block.buffer_id = before.buffer_id;
  std::memcpy(block.device, registrar->uuids[device], sizeof(block.device));
  static_assert(sizeof(block.driver) == sizeof(handle), "it fits");
  std::memcpy(block.driver, &handle, sizeof(handle));
  tail->mapped = 0;
  tail->device = device;
  return success();
}

Status open_peer(Registrar* registrar, const pinrail_register_request_t& request, pinrail_registration_t* reg) {
  if (request.handle == nullptr || request.handle_length != sizeof(pinrail_gpu_handle_t)) return PINRAIL_ERR_BAD_PARAM;
  const auto& block = *static_cast<const pinrail_gpu_handle_t*>(request.handle);
  if (block.kind != PINRAIL_GPU_IPC) return PINRAIL_ERR_NOT_SUPPORTED;
  Tail* tail = tail_of(reg);
  CUipcMemHandle handle;
  std::memcpy(&handle, block.driver, sizeof(handle));
  const int device = device_for(*registrar, block);
  CUdeviceptr mapped = 0;
  {
    const Current current(registrar, device);
    if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
    const CUresult error = registrar->cuda.cuIpcOpenMemHandle(&mapped, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (error != CUDA_SUCCESS) return status_of(*registrar, "cuIpcOpenMemHandle", error);
  }
  tail->block = block;
  tail->mapped = mapped;
  tail->device = device;
  reg->base = reinterpret_cast<void*>(mapped);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
  return success();
}

Status close_peer(Registrar* registrar, const Tail& tail) {
  const Current current(registrar, tail.device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
  const CUresult error = registrar->cuda.cuIpcCloseMemHandle(tail.mapped);
  return status_of(*registrar, "cuIpcCloseMemHandle", error);
}

template <typename Copy>
pinrail_status_t transfer(void* context, const pinrail_registration_t* reg, const char* call, Copy&& copy) {
  auto* registrar = static_cast<Registrar*>(context);
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  const Current current(registrar, tail_of(reg)->device);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result()).code();
  return status_of(*registrar, call, copy(registrar->cuda, reinterpret_cast<CUdeviceptr>(reg->base))).code();
}

}  // namespace

pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
  auto* registrar = static_cast<Registrar*>(context);
  if (getpid() != registrar->process) return PINRAIL_ERR_NOT_SUPPORTED;
  const Status checked = check_request(registrar->limits, *request);
  if (!checked.ok()) return checked.code();
  if (request->traits != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (request->kind == PINRAIL_KIND_GPU) return export_own(registrar, *request, tail_of(reg)).code();
  return open_peer(registrar, *request, reg).code();
}

// A close that fails is tried once more: what is not closed keeps the peer's memory for as long as this process lives.
pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* registrar = static_cast<Registrar*>(context);
  Tail* tail = tail_of(reg);
  if (tail->mapped == 0 || getpid() != registrar->process) return PINRAIL_SUCCESS;
  Status status = close_peer(registrar, *tail);
  if (!status.ok()) status = close_peer(registrar, *tail);
  tail->mapped = 0;
  return status.code();
}

pinrail_status_t device_read(void* context, const pinrail_registration_t* reg, size_t offset, void* into,
                             size_t length) {
  if (!within(*reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  return transfer(context, reg, "cuMemcpyDtoH", [&](const Library& cuda, CUdeviceptr base) {
    return cuda.cuMemcpyDtoH(into, base + offset, length);
  });
}

pinrail_status_t device_write(void* context, const pinrail_registration_t* reg, size_t offset, const void* from,
                              size_t length) {
  if (!within(*reg, offset, length)) return PINRAIL_ERR_BAD_PARAM;
  return transfer(context, reg, "cuMemcpyHtoD", [&](const Library& cuda, CUdeviceptr base) {
    return cuda.cuMemcpyHtoD(base + offset, from, length);
  });
}

}  // namespace pinrail::cuda_ipc
