// SPDX-License-Identifier: BSD-3-Clause
// Stream-ordered memory (cuMemAllocAsync): its pool by a file descriptor, the pointer by the block.
#include <cstring>

#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

constexpr auto kDescriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

// Where it lies it is accessible; for another GPU that has to be asked for.
CUresult allow_access(const Registrar& registrar, const Tail& tail) {
  if (is_where_it_lies(registrar, tail)) return CUDA_SUCCESS;
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = tail.device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return registrar.cuda.cuMemPoolSetAccess(tail.pool, &access, 1);
}

}  // namespace

// A descriptor is asked of none but pools that were made with it: after it refused one, CUDA 13.0 crashes when the
// program destroys the pool. Where the driver does not say how it was made, the pointer comes first: of a pool that
// cannot be exported, which the default one is, that is refused.
Status export_pool(Registrar* registrar, const Found& found, pinrail_gpu_block_t* block, int* descriptor_out) {
  if (registrar->self.pid == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (found.handle_types != 0 && (found.handle_types & kDescriptorType) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  const Library& cuda = registrar->cuda;
  CUmemPoolPtrExportData data{};
  int descriptor = -1;
  CUresult error = cuda.cuMemPoolExportPointer(&data, reinterpret_cast<CUdeviceptr>(found.range.base));
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolExportPointer", error);
  error = cuda.cuMemPoolExportToShareableHandle(&descriptor, found.pool, kDescriptor, 0);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolExportToShareableHandle", error);
  static_assert(sizeof(block->driver) == sizeof(data), "it fits");
  std::memcpy(block->driver, &data, sizeof(data));
  *descriptor_out = descriptor;
  return success();
}

Status open_pool(Registrar* registrar, int descriptor, Tail* tail) {
  const Library& cuda = registrar->cuda;
  CUmemPoolPtrExportData data;
  std::memcpy(&data, tail->block.driver, sizeof(data));
  void* const number = reinterpret_cast<void*>(intptr_t{descriptor});  // NOLINT(performance-no-int-to-ptr): its way
  CUresult error = cuda.cuMemPoolImportFromShareableHandle(&tail->pool, number, kDescriptor, 0);
  if (error != CUDA_SUCCESS) tail->pool = nullptr;
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;  // what came is no pool, or not any more
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolImportFromShareableHandle", error);
  error = allow_access(*registrar, *tail);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemPoolSetAccess", error);
  error = cuda.cuMemPoolImportPointer(&tail->mapped, tail->pool, &data);
  if (error != CUDA_SUCCESS) tail->mapped = 0;
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  return status_of(*registrar, "cuMemPoolImportPointer", error);
}

}  // namespace pinrail::cuda_ipc
