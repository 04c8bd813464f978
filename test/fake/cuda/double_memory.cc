// SPDX-License-Identifier: BSD-3-Clause
// Memory of the device, what a pointer is, and copies.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/double_transport.h"
#include "test/fake/cuda/patchable.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

namespace {

void* bytes_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

bool is_narrow(CUpointer_attribute attribute) {
  return attribute == CU_POINTER_ATTRIBUTE_MEMORY_TYPE || attribute == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
         attribute == CU_POINTER_ATTRIBUTE_IS_MANAGED || attribute == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
}

bool is_pooled(const Range& range) { return range.own != nullptr && range.own->pool != nullptr; }
bool is_managed(const Range& range) { return range.own != nullptr && range.own->managed; }

// Of physical memory and pools: what it may be exported as. Memory of cuMemAlloc has no such handle.
uint64_t handle_types(const Range& range) {
  if (is_pooled(range)) return uint64_t{range.own->pool->properties.handleTypes};
  return range.physical != nullptr ? uint64_t{range.physical->properties.requestedHandleTypes} : 0;
}

bool is_legacy(const State& in, const Range& range) {
  return in.has_ipc && range.physical == nullptr && !is_pooled(range) && !is_managed(range);
}

// What the documentation calls the mappable range: of pools' memory, more than the allocation.
uintptr_t mappable_from(const Range& range) { return is_pooled(range) ? range.base & ~(kGranularity - 1) : range.base; }
size_t mappable_bytes(const Range& range) {
  const uintptr_t end = range.base + range.bytes;
  return (is_pooled(range) ? (end + kGranularity - 1) & ~(kGranularity - 1) : end) - mappable_from(range);
}

CUresult attribute_of(State* in, const Range& range, CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(data) = &in->primary[range.device]; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(data) = range.id; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(data) = range.device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = mappable_from(range); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(data) = mappable_bytes(range); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data) = is_managed(range) ? 1 : 0; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<int*>(data) = is_legacy(*in, range); break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *static_cast<uint64_t*>(data) = handle_types(range); break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      *static_cast<CUmemoryPool*>(data) = range.own != nullptr ? range.own->pool : nullptr;
      break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      *static_cast<uint64_t*>(data) = range.physical != nullptr ? range.physical->id : range.id;
      break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// Whether it lies in one range that the device may use.
bool reaches(CUdeviceptr address, size_t bytes) {
  Range range;
  if (!state().find_range(address, &range)) return false;
  if (range.mapping == nullptr) return bytes <= range.base + range.bytes - address;
  return range.mapping->accessible && bytes <= range.mapped_at + range.mapping->bytes - address;
}

// The caller waits until the stream is done.
CUresult copy(const char* function, CUstream stream, CUdeviceptr device, size_t bytes, void* into, const void* from) {
  Lock lock(state().mutex);
  const CUresult entered = enter(function);
  if (entered != CUDA_SUCCESS) return entered;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  await(&state(), stream);
  if (!reaches(device, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memcpy(into, from, bytes);
  return CUDA_SUCCESS;
}

bool is_in_arena(CUdeviceptr address) { return address >= kArena && address - kArena < kArenaBytes; }

// Whether a copy may use it: anything outside of the arena is the caller's host memory.
bool may_copy(CUdeviceptr address, size_t bytes) { return !is_in_arena(address) || reaches(address, bytes); }

// Of cuMemAlloc's, of a pool, or of what was imported from one.
CUresult free_memory(const char* function, CUdeviceptr address) {
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter(function);
  if (entered != CUDA_SUCCESS || address == 0) return entered;
  const auto found = in.allocations.find(address);
  if (found != in.allocations.end()) {
    in.end(found);
    return CUDA_SUCCESS;
  }
  if (in.pool_imports.erase(address) == 0) return CUDA_ERROR_INVALID_VALUE;
  in.give_back(address);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuMemAlloc");
  if (entered != CUDA_SUCCESS) return entered;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  return state().allocate(address, bytes, contexts().back()->device, nullptr);
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuMemAllocManaged");
  if (entered != CUDA_SUCCESS) return entered;
  if (flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult made = state().allocate(address, bytes, contexts().back()->device, nullptr);
  if (made == CUDA_SUCCESS) state().allocations.at(*address).managed = true;
  return made;
}

// cuMemFree_v2 and cuMemFreeAsync lead here, see below.
HIDDEN CUresult cuda_double_mem_free(CUdeviceptr address) { return free_memory("cuMemFree", address); }
HIDDEN CUresult cuda_double_mem_free_async(CUdeviceptr address, CUstream) {
  return free_memory("cuMemFreeAsync", address);
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuMemGetAddressRange");
  if (entered != CUDA_SUCCESS) return entered;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;  // one of those that it may return by the documentation
  Range range;
  if (!state().find_range(address, &range)) return CUDA_ERROR_NOT_FOUND;
  const bool mapped = range.mapping != nullptr;  // of a reservation: what is mapped there
  if (base != nullptr) *base = mapped ? range.mapped_at : range.base;
  if (bytes != nullptr) *bytes = mapped ? range.mapping->bytes : range.bytes;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuPointerGetAttribute");
  if (entered != CUDA_SUCCESS) return entered;
  Range range;
  if (!state().find_range(address, &range)) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(&state(), range, attribute, data);
}

// As the driver: for a pointer that it does not know the answers are zero, and the call succeeds.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuPointerGetAttributes");
  if (entered != CUDA_SUCCESS) return entered;
  Range range;
  const bool known = state().find_range(address, &range);
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i] > CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) return CUDA_ERROR_INVALID_VALUE;  // not in its list
    std::memset(data[i], 0, is_narrow(attributes[i]) ? sizeof(int) : sizeof(uint64_t));
    if (!known) continue;
    const CUresult answered = attribute_of(&state(), range, attributes[i], data[i]);
    if (answered != CUDA_SUCCESS) return answered;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuPointerSetAttribute");
  if (entered != CUDA_SUCCESS) return entered;
  const auto found = state().holding(address);
  if (found == state().allocations.end() || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  found->second.sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

int cuda_double_copies_wait(CUdeviceptr address) {
  Lock lock(state().mutex);
  const auto found = state().holding(address);
  return found != state().allocations.end() && found->second.sync_memops ? 1 : 0;
}

CUresult cuMemcpyDtoH(void* into, CUdeviceptr from, size_t bytes) {
  return copy("cuMemcpyDtoH", nullptr, from, bytes, into, bytes_at(from));
}

CUresult cuMemcpyDtoHAsync(void* into, CUdeviceptr from, size_t bytes, CUstream stream) {
  return copy("cuMemcpyDtoHAsync", stream, from, bytes, into, bytes_at(from));
}

CUresult cuMemcpyHtoD(CUdeviceptr into, const void* from, size_t bytes) {
  return copy("cuMemcpyHtoD", nullptr, into, bytes, bytes_at(into), from);
}

CUresult cuMemcpyAsync(CUdeviceptr into, CUdeviceptr from, size_t bytes, CUstream stream) {
  return call("cuMemcpyAsync", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    await(&in, stream);
    if (!may_copy(into, bytes) || !may_copy(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memmove(bytes_at(into), bytes_at(from), bytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t bytes) {
  Lock lock(state().mutex);
  if (!reaches(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(bytes_at(address), value, bytes);
  return CUDA_SUCCESS;
}

CUresult cuMemGetHandleForAddressRange(void* handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                       unsigned long long flags) {
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter("cuMemGetHandleForAddressRange");
  if (entered != CUDA_SUCCESS) return entered;
  const bool sane = type == CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD && flags <= 1 && bytes != 0 &&
                    ((address | bytes) & (kGrain - 1)) == 0;
  if (!sane) return CUDA_ERROR_INVALID_VALUE;
  if (!in.has_dmabuf || flags != 0) return CUDA_ERROR_NOT_SUPPORTED;
  Range range;
  if (!in.find_range(address, &range) || (range.own == nullptr && range.mapping == nullptr)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_managed(range)) std::abort();  // CUDA 13 crashes here, too
  const bool mapped = range.mapping != nullptr;
  const uintptr_t base = mapped ? range.mapped_at : range.base;
  if (bytes > base + round_up(mapped ? range.mapping->bytes : range.bytes) - address) return CUDA_ERROR_INVALID_VALUE;
  if (address != base) return CUDA_ERROR_NOT_SUPPORTED;  // the driver can; a memfd has no place for an offset
  const int copied = fcntl(mapped ? range.physical->descriptor : range.own->descriptor, F_DUPFD_CLOEXEC, 0);
  if (copied < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *static_cast<int*>(handle) = copied;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void) {
  return call("cuCtxSynchronize", [](State&) { return no_context() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; });
}

}  // extern "C"

PATCHABLE("cuMemFree_v2", "cuda_double_mem_free");
PATCHABLE("cuMemFree", "cuda_double_mem_free");
PATCHABLE("cuda_double_free_by_table", "cuda_double_mem_free");
PATCHABLE("cuMemFreeAsync", "cuda_double_mem_free_async");
