// SPDX-License-Identifier: BSD-3-Clause
// Stream-ordered memory (cuMemAllocAsync): the pool is exported as a file descriptor, the pointer in the block. API
// context, no lock; a context is current.
#include <unistd.h>

#include <cstring>

#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// On the GPU where it lies the memory is accessible; for another GPU access must be requested.
CUresult allow_access(const Registrar& registrar, const Tail& tail) {
  if (is_current_device(registrar, tail)) return CUDA_SUCCESS;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = tail.device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return registrar.cuda.cuMemPoolSetAccess(tail.pool, &access, 1);
}

}  // namespace

// The pool is exported before the pointer, which some drivers require. A descriptor is requested only from pools that
// were made with descriptors: if it refuses one, CUDA 13.0 crashes when the program destroys the pool. If the driver
// does not tell how the pool was made, the pointer is exported before, too, which fails for a pool that cannot be
// exported, such as the default one.
Status export_pool(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out) {
  if (registrar->self.pid == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (found.handle_types != 0 && (found.handle_types & kDescriptorType) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const Library& cuda = registrar->cuda;
  CUmemPoolPtrExportData data{};
  const auto export_pointer = [&] {
    return cuda.cuMemPoolExportPointer(&data, reinterpret_cast<CUdeviceptr>(found.range.base));
  };
  CUresult error = found.handle_types == 0 ? export_pointer() : CUDA_SUCCESS;
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolExportPointer", error);
  int descriptor = -1;
  error = cuda.cuMemPoolExportToShareableHandle(&descriptor, found.pool, kDescriptor, 0);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolExportToShareableHandle", error);
  error = export_pointer();
  if (error != CUDA_SUCCESS) {
    close(descriptor);
    return status_of(*registrar, "cuMemPoolExportPointer", error);
  }
  static_assert(sizeof(block->driver) == sizeof(data), "it fits");
  std::memcpy(block->driver, &data, sizeof(data));
  *descriptor_out = descriptor;
  return success();
}

Status open_pool(Registrar* registrar, int descriptor, Tail* tail) {
  PoolImports& imports = registrar->component->pool_imports;
  CUmemPoolPtrExportData data;
  std::memcpy(&data, tail->block.driver, sizeof(data));
  CUresult error = imports.import_pool(registrar->cuda, registrar, descriptor, &tail->pool);
  // The received descriptor is no pool, or the pool is gone.
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolImportFromShareableHandle", error);
  error = allow_access(*registrar, *tail);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolSetAccess", error);
  PoolImports::Pointer pointer;
  error = imports.import_pointer(registrar->cuda, registrar, tail->pool, &data, &pointer);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolImportPointer", error);
  tail->mapped = pointer.first;
  tail->mapping_id = pointer.second;
  return success();
}

}  // namespace pinrail::cuda_ipc
