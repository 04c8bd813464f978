// SPDX-License-Identifier: BSD-3-Clause
// Memory of the device, what a pointer is, and copies.
#include <unistd.h>

#include <cstring>

#include "test/fake/cuda/double_state.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

namespace {

void* bytes_at(CUdeviceptr address) { return reinterpret_cast<void*>(address); }  // NOLINT(performance-no-int-to-ptr)

CUresult allocate(State* in, CUdeviceptr* address_out, size_t bytes) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > in->limit - in->used) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t id = in->next_id++;
  const int descriptor = make_memory(id, bytes);
  const uintptr_t at = descriptor < 0 ? 0 : in->take(bytes);
  if (at == 0 || !map_at(at, bytes, descriptor)) {
    if (at != 0) in->give_back(at);
    if (descriptor >= 0) close(descriptor);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  Allocation made;
  made.bytes = bytes;
  made.descriptor = descriptor;
  made.id = id;
  made.device = contexts().back()->device;
  in->allocations[at] = made;
  in->used += bytes;
  *address_out = at;
  return CUDA_SUCCESS;
}

// One range that the double knows: its own, or one that is mapped from a peer.
struct Range {
  uintptr_t base = 0;
  size_t bytes = 0;
  uint64_t id = 0;
  int device = 0;
};

bool find_range(State* in, uintptr_t address, Range* out) {
  const auto own = in->holding(address);
  if (own != in->allocations.end()) {
    *out = {own->first, own->second.bytes, own->second.id, own->second.device};
    return true;
  }
  auto after = in->imports.upper_bound(address);
  if (after == in->imports.begin()) return false;
  --after;
  if (address >= after->first + after->second.bytes) return false;
  *out = {after->first, after->second.bytes, (uint64_t{1} << 40) + after->second.id, 0};
  return true;
}

CUresult attribute_of(State* in, const Range& range, CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<CUcontext*>(data) = &in->primary[range.device]; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *static_cast<unsigned*>(data) = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *static_cast<unsigned long long*>(data) = range.id; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *static_cast<int*>(data) = range.device; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = range.base; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(data) = range.bytes; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data) = 0; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *static_cast<int*>(data) = in->has_ipc ? 1 : 0; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// All of it must lie in one range.
CUresult copy(const char* function, CUdeviceptr device, size_t bytes, void* into, const void* from) {
  Lock lock(state().mutex);
  const CUresult entered = enter(function);
  if (entered != CUDA_SUCCESS) return entered;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  Range range;
  if (!find_range(&state(), device, &range) || bytes > range.base + range.bytes - device) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(into, from, bytes);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult CUDAAPI cuMemAlloc(CUdeviceptr* address, size_t bytes) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuMemAlloc");
  if (entered != CUDA_SUCCESS) return entered;
  return no_context() ? CUDA_ERROR_INVALID_CONTEXT : allocate(&state(), address, bytes);
}

// cuMemFree_v2 leads here, see below.
__attribute__((visibility("hidden"))) CUresult cuda_double_mem_free(CUdeviceptr address) {
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter("cuMemFree");
  if (entered != CUDA_SUCCESS) return entered;
  if (address == 0) return CUDA_SUCCESS;
  const auto found = in.allocations.find(address);
  if (found == in.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
  in.used -= found->second.bytes;
  close(found->second.descriptor);
  in.give_back(found->first);
  in.allocations.erase(found);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuMemGetAddressRange");
  if (entered != CUDA_SUCCESS) return entered;
  Range range;
  if (!find_range(&state(), address, &range)) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = range.base;
  if (bytes != nullptr) *bytes = range.bytes;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuPointerGetAttribute");
  if (entered != CUDA_SUCCESS) return entered;
  Range range;
  if (!find_range(&state(), address, &range)) return CUDA_ERROR_INVALID_VALUE;
  return attribute_of(&state(), range, attribute, data);
}

// As the driver: for a pointer that it does not know the answers are zero, and the call succeeds.
CUresult CUDAAPI cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data,
                                        CUdeviceptr address) {
  Lock lock(state().mutex);
  const CUresult entered = enter("cuPointerGetAttributes");
  if (entered != CUDA_SUCCESS) return entered;
  Range range;
  const bool known = find_range(&state(), address, &range);
  for (unsigned i = 0; i < count; ++i) {
    const bool narrow = attributes[i] == CU_POINTER_ATTRIBUTE_MEMORY_TYPE ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_IS_MANAGED ||
                        attributes[i] == CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
    std::memset(data[i], 0, narrow ? sizeof(int) : sizeof(uint64_t));
    if (!known) continue;
    const CUresult answered = attribute_of(&state(), range, attributes[i], data[i]);
    if (answered != CUDA_SUCCESS) return answered;
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
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

CUresult CUDAAPI cuMemcpyDtoH(void* into, CUdeviceptr from, size_t bytes) {
  return copy("cuMemcpyDtoH", from, bytes, into, bytes_at(from));
}

CUresult CUDAAPI cuMemcpyHtoD(CUdeviceptr into, const void* from, size_t bytes) {
  return copy("cuMemcpyHtoD", into, bytes, bytes_at(into), from);
}

CUresult CUDAAPI cuMemsetD8_v2(CUdeviceptr address, unsigned char value, size_t bytes) {
  Lock lock(state().mutex);
  Range range;
  if (!find_range(&state(), address, &range) || bytes > range.base + range.bytes - address) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(bytes_at(address), value, bytes);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) { return no_context() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; }

}  // extern "C"

// Begins with an instruction that a jump can take the place of, on every compiler: monitors patch it.
#if defined(__x86_64__)
__asm__(
    ".text\n\t.globl cuMemFree_v2\n\t.type cuMemFree_v2, @function\n\t.p2align 4\n"
    "cuMemFree_v2:\n\tmovl $0x46726565, %eax\n\tjmp cuda_double_mem_free\n\t.size cuMemFree_v2, .-cuMemFree_v2\n");
#else
extern "C" CUresult CUDAAPI cuMemFree(CUdeviceptr address) { return cuda_double_mem_free(address); }
#endif
