// SPDX-License-Identifier: BSD-3-Clause
// Identifies a pointer: which allocation it is in, with which id and of which kind. API context, no lock.
#include "components/registrar/cuda_ipc/cuda_ipc.h"

namespace pinrail::cuda_ipc {
namespace {

constexpr uint64_t kFabricType = CU_MEM_HANDLE_TYPE_FABRIC;

struct PointerInfo {
  unsigned type = 0;
  CUdeviceptr base = 0;
  size_t length = 0;
  unsigned long long id = 0;
  int is_legacy = 0;
};

// Asks everything about memory of cuMemAlloc in one call, because each hit of an owner asks.
Status query_plain(const Registrar& registrar, CUdeviceptr pointer, PointerInfo* info_out) {
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE, CU_POINTER_ATTRIBUTE_BUFFER_ID,
                                 CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
  void* values[] = {&info_out->type, &info_out->base, &info_out->length, &info_out->id, &info_out->is_legacy};
  const CUresult error = registrar.cuda.cuPointerGetAttributes(5, names, values, pointer);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(registrar, "cuPointerGetAttributes", error);
  const bool is_gpu = info_out->type == CU_MEMORYTYPE_DEVICE && info_out->base != 0 && info_out->length != 0;
  return is_gpu ? success() : Status(PINRAIL_ERR_NOT_FOUND);
}

// Drivers may need a current context for this, and the calling thread may have none.
CUresult address_range(Registrar* registrar, CUdeviceptr pointer, PointerInfo* info) {
  const CUresult error = registrar->cuda.cuMemGetAddressRange(&info->base, &info->length, pointer);
  if (error != CUDA_ERROR_INVALID_CONTEXT) return error;
  const CurrentContext current(registrar, device_of_pointer(*registrar, pointer));
  if (current.result() != CUDA_SUCCESS) return current.result();
  return registrar->cuda.cuMemGetAddressRange(&info->base, &info->length, pointer);
}

// Finds the range that is mapped at the address, not the reservation around it. The id of a reservation does not change
// when other physical memory is mapped there, so the id of that memory is mixed in.
Status query_mapping(Registrar* registrar, CUdeviceptr pointer, PointerInfo* info) {
  unsigned long long block = 0;
  CUresult error = address_range(registrar, pointer, info);
  if (error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_FOUND;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuMemGetAddressRange", error);
  error = registrar->cuda.cuPointerGetAttribute(&block, CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, pointer);
  if (error == CUDA_ERROR_INVALID_VALUE) return PINRAIL_ERR_NOT_SUPPORTED;
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuPointerGetAttribute", error);
  info->id ^= block * 0x9E3779B97F4A7C15u;
  return success();
}

// For an allocation from a pool the attributes may give the addresses that are reserved for the pool, as they give the
// reservation around a mapping. If the driver does not know a range for pool memory, the attributes are used.
Status query_pool_memory(Registrar* registrar, CUdeviceptr pointer, PointerInfo* info) {
  PointerInfo reported = *info;
  const CUresult error = address_range(registrar, pointer, &reported);
  const bool is_known = error == CUDA_SUCCESS && reported.base != 0 && reported.length != 0;
  if (is_known) *info = reported;
  const bool is_unknown = error == CUDA_SUCCESS || error == CUDA_ERROR_NOT_FOUND || error == CUDA_ERROR_INVALID_VALUE ||
                          error == CUDA_ERROR_NOT_SUPPORTED;
  return is_unknown ? success() : status_of(*registrar, "cuMemGetAddressRange", error);
}

// Memory that is not cuMemAlloc's, or of a driver without IPC. What the driver says when a handle is requested decides.
// Managed memory has the attributes of GPU memory, but it moves: no other process and no device can use it.
Status query_other(Registrar* registrar, CUdeviceptr pointer, PointerInfo* info, Found* found) {
  unsigned managed = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                 CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&found->pool, &found->handle_types, &managed};
  const CUresult error = registrar->cuda.cuPointerGetAttributes(3, names, values, pointer);
  if (error != CUDA_SUCCESS) return status_of(*registrar, "cuPointerGetAttributes", error);
  if (managed != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (found->pool != nullptr) {
    found->kind = PINRAIL_GPU_POOL;
    return query_pool_memory(registrar, pointer, info);
  }
  if ((found->handle_types & kFabricType) != 0) found->kind = PINRAIL_GPU_FABRIC;
  // Descriptors are preferred: blocks do not leave the machine.
  if ((found->handle_types & kDescriptorType) != 0) found->kind = PINRAIL_GPU_VMM;
  return query_mapping(registrar, pointer, info);
}

// Reads one attribute of a pointer. False: the driver does not tell.
template <typename Value>
bool query_attribute(const Registrar& registrar, CUdeviceptr pointer, CUpointer_attribute name, Value* value_out) {
  void* value = value_out;
  return registrar.cuda.cuPointerGetAttributes(1, &name, &value, pointer) == CUDA_SUCCESS;
}

}  // namespace

bool id_at(const Registrar& registrar, CUdeviceptr pointer, uint64_t* id_out) {
  unsigned long long id = 0;
  if (!query_attribute(registrar, pointer, CU_POINTER_ATTRIBUTE_BUFFER_ID, &id)) return false;
  *id_out = id;
  return true;
}

Mapping mapping_at(const Registrar& registrar, CUdeviceptr pointer) {
  unsigned long long id = 0;
  CUdeviceptr start = 0;
  size_t bytes = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_BUFFER_ID, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
                                 CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  void* values[] = {&id, &start, &bytes};
  if (registrar.cuda.cuPointerGetAttributes(3, names, values, pointer) != CUDA_SUCCESS) return {};
  const bool is_inside = bytes != 0 && pointer - start <= bytes;
  return {id, is_inside ? bytes - (pointer - start) : SIZE_MAX};
}

int device_of_pointer(const Registrar& registrar, CUdeviceptr pointer) {
  int device = 0;
  const bool is_known = query_attribute(registrar, pointer, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, &device);
  return is_known && device >= 0 && device < registrar.device_count ? device : 0;
}

bool is_managed(const Registrar& registrar, CUdeviceptr pointer) {
  unsigned managed = 0;
  return query_attribute(registrar, pointer, CU_POINTER_ATTRIBUTE_IS_MANAGED, &managed) && managed != 0;
}

Status look_up(Registrar* registrar, const void* addr, Found* found_out) {
  const auto pointer = reinterpret_cast<CUdeviceptr>(addr);
  PointerInfo info;
  Found found{};
  found.kind = PINRAIL_GPU_IPC;
  Status status = query_plain(*registrar, pointer, &info);
  if (status.ok() && info.is_legacy == 0 && registrar->cuda.has_optional) {
    status = query_other(registrar, pointer, &info, &found);
  }
  if (!status.ok()) return status;
  found.range.size = sizeof(found.range);
  found.range.base = reinterpret_cast<void*>(info.base);  // NOLINT(performance-no-int-to-ptr): the driver's addresses
  found.range.length = info.length;
  found.range.buffer_id = info.id;
  *found_out = found;
  return success();
}

pinrail_status_t identify(void* context, const void* addr, pinrail_gpu_range_t* range_out) {
  if (range_out->size < sizeof(*range_out)) return PINRAIL_ERR_VERSION;
  Found found{};
  const Status status = look_up(static_cast<Registrar*>(context), addr, &found);
  if (status.ok()) *range_out = found.range;
  return status.code();
}

}  // namespace pinrail::cuda_ipc
