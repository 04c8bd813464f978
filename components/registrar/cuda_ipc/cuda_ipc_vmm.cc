// SPDX-License-Identifier: BSD-3-Clause
// Physical memory of virtual memory management (cuMemCreate), exported as a file descriptor or a fabric handle; and
// closing a peer's memory of every kind. API context, no lock; a context is current.
#include <cstring>

#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

constexpr auto kFabricType = CU_MEM_HANDLE_TYPE_FABRIC;

// The memory is mapped from its beginning on: the driver supports no other offset yet.
Status export_physical(const Registrar& registrar, const Found& found, CUmemGenericAllocationHandle physical,
                       pinrail_gpu_block_t* block, int* descriptor_out) {
  int descriptor = -1;
  const bool by_fabric = found.kind == PINRAIL_GPU_FABRIC;
  void* const into = by_fabric ? static_cast<void*>(block->driver) : &descriptor;
  const auto type = by_fabric ? kFabricType : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  const CUresult error = registrar.cuda.cuMemExportToShareableHandle(into, physical, type, 0);
  if (error != CUDA_SUCCESS) return status_of(registrar, "cuMemExportToShareableHandle", error);
  *descriptor_out = descriptor;
  return success();
}

CUresult import_physical(const Registrar& registrar, int descriptor, Tail* tail) {
  if (tail->block.kind == PINRAIL_GPU_FABRIC) {
    return registrar.cuda.cuMemImportFromShareableHandle(&tail->imported, tail->block.driver, kFabricType);
  }
  void* const number = reinterpret_cast<void*>(intptr_t{descriptor});  // NOLINT(performance-no-int-to-ptr): its way
  return registrar.cuda.cuMemImportFromShareableHandle(&tail->imported, number,
                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

// Reserves addresses, maps the memory and permits access; records in the tail what was done.
CUresult map_physical(const Registrar& registrar, Tail* tail, const char** call_out) {
  const Library& cuda = registrar.cuda;
  const size_t length = tail->block.length;
  *call_out = "cuMemAddressReserve";
  CUresult error = cuda.cuMemAddressReserve(&tail->reserved, length, 0, 0, 0);
  if (error != CUDA_SUCCESS) {
    tail->reserved = 0;
    return error;
  }
  *call_out = "cuMemMap";
  error = cuda.cuMemMap(tail->reserved, length, 0, tail->imported, 0);
  if (error != CUDA_SUCCESS) return error;
  tail->mapped = tail->reserved;
  *call_out = "cuMemSetAccess";
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = tail->device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return cuda.cuMemSetAccess(tail->mapped, length, &access, 1);
}

CUresult unmap(const Registrar& registrar, const Tail& tail, const char** call_out) {
  const Library& cuda = registrar.cuda;
  switch (tail.block.kind) {
    case PINRAIL_GPU_IPC: *call_out = "cuIpcCloseMemHandle"; return cuda.cuIpcCloseMemHandle(tail.mapped);
    case PINRAIL_GPU_POOL:
      *call_out = "cuMemFree";
      return registrar.component->pool_imports.free_pointer(cuda, &registrar, {tail.mapped, tail.mapping_id});
    default: *call_out = "cuMemUnmap"; return cuda.cuMemUnmap(tail.mapped, tail.block.length);
  }
}

// Undoes the last step that is still in the tail. Returns the driver's error.
CUresult release_last(const Registrar& registrar, Tail* tail, const char** call_out) {
  const Library& cuda = registrar.cuda;
  CUresult error = CUDA_SUCCESS;
  if (tail->mapped != 0) {
    error = unmap(registrar, *tail, call_out);
    if (error == CUDA_SUCCESS) tail->mapped = 0;
  } else if (tail->reserved != 0) {
    *call_out = "cuMemAddressFree";
    error = cuda.cuMemAddressFree(tail->reserved, tail->block.length);
    if (error == CUDA_SUCCESS) tail->reserved = 0;
  } else if (tail->imported != 0) {
    *call_out = "cuMemRelease";
    error = cuda.cuMemRelease(tail->imported);
    if (error == CUDA_SUCCESS) tail->imported = 0;
  } else if (tail->pool != nullptr) {
    *call_out = "cuMemPoolDestroy";
    error = registrar.component->pool_imports.destroy_pool(cuda, &registrar, tail->pool);
    if (error == CUDA_SUCCESS) tail->pool = nullptr;
  }
  return error;
}

bool has_anything(const Tail& tail) {
  return tail.mapped != 0 || tail.reserved != 0 || tail.imported != 0 || tail.pool != nullptr;
}

// Keeps cuda_ipc/I5. Whatever belonged to a destroyed context is gone with it.
bool is_gone(const Registrar& registrar, const Tail& tail) {
  uint64_t now = 0;
  return tail.mapped != 0 && tail.mapping_id != 0 && id_at(registrar, tail.mapped, &now) && now != tail.mapping_id;
}

}  // namespace

Status export_vmm(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out) {
  if (found.kind == PINRAIL_GPU_VMM && registrar->self.pid == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const Library& cuda = registrar->cuda;
  CUmemGenericAllocationHandle physical = 0;
  CUresult error = cuda.cuMemRetainAllocationHandle(&physical, found.range.base);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;  // it was unmapped meanwhile
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemRetainAllocationHandle", error);
  const Status status = export_physical(*registrar, found, physical, block, descriptor_out);
  release_with_retry(*registrar, "cuMemRelease", [&] { return cuda.cuMemRelease(physical); });
  return status;
}

// After the memory is mapped its handle is not needed. If releasing it fails here, close_peer() releases it.
Status open_vmm(Registrar* registrar, int descriptor, Tail* tail) {
  CUresult error = import_physical(*registrar, descriptor, tail);
  // The received descriptor is no memory, or the memory is gone.
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemImportFromShareableHandle", error);
  const char* call = "";
  error = map_physical(*registrar, tail, &call);
  if (error != CUDA_SUCCESS) return status_of(*registrar, call, error);
  if (registrar->cuda.cuMemRelease(tail->imported) == CUDA_SUCCESS) tail->imported = 0;
  return success();
}

// What the tail has of a peer's memory is not this registration's to give back any more.
Status forget_peer(const Registrar& registrar, Tail* tail) {
  PoolImports& imports = registrar.component->pool_imports;
  if (tail->pool != nullptr && tail->mapped != 0) imports.forget_pointer(&registrar, {tail->mapped, tail->mapping_id});
  if (tail->pool != nullptr) imports.forget_pool(&registrar, tail->pool);
  tail->mapped = tail->reserved = 0;
  tail->imported = 0;
  tail->pool = nullptr;
  return success();
}

// Gives back, in reverse order, what the tail has of a peer's memory. After an error the rest stays in the tail.
Status close_peer(Registrar* registrar, Tail* tail) {
  if (!has_anything(*tail)) return success();
  const CurrentContext current(registrar, tail->device);
  if (has_ended(current.result())) return forget_peer(*registrar, tail);
  if (current.result() != CUDA_SUCCESS) return status_of(*registrar, "cuCtxPushCurrent", current.result());
  if (is_gone(*registrar, *tail)) return forget_peer(*registrar, tail);
  while (has_anything(*tail)) {
    const char* call = "";
    const CUresult error = release_last(*registrar, tail, &call);
    if (has_ended(error)) return forget_peer(*registrar, tail);
    if (error != CUDA_SUCCESS) return status_of(*registrar, call, error);
  }
  return success();
}

}  // namespace pinrail::cuda_ipc
