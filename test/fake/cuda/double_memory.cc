// SPDX-License-Identifier: BSD-3-Clause
// Memory of the device, what a pointer is, and copies.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/toolkit/cuda.h"

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
  return call(function, [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    await(&in, stream);
    if (!reaches(device, bytes)) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(into, from, bytes);
    return CUDA_SUCCESS;
  });
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
  return call("cuMemAlloc", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return in.allocate(address, bytes, contexts().back()->device, nullptr);
  });
}

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned flags) {
  return call("cuMemAllocManaged", [&](State& in) {
    if (flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const CUresult made = in.allocate(address, bytes, contexts().back()->device, nullptr);
    if (made == CUDA_SUCCESS) in.allocations.at(*address).managed = true;
    return made;
  });
}

// cuMemFree_v2 and cuMemFreeAsync lead here, see below.
HIDDEN CUresult cuda_double_mem_free(CUdeviceptr address) { return free_memory("cuMemFree", address); }
HIDDEN CUresult cuda_double_mem_free_async(CUdeviceptr address, CUstream) {
  return free_memory("cuMemFreeAsync", address);
}

CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* bytes, CUdeviceptr address) {
  return call("cuMemGetAddressRange", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;  // one of those that it may return by the documentation
    Range range;
    if (!in.find_range(address, &range)) return CUDA_ERROR_NOT_FOUND;
    const bool mapped = range.mapping != nullptr;  // of a reservation: what is mapped there
    if (base != nullptr) *base = mapped ? range.mapped_at : range.base;
    if (bytes != nullptr) *bytes = mapped ? range.mapping->bytes : range.bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr address) {
  return call("cuPointerGetAttribute", [&](State& in) {
    Range range;
    if (!in.find_range(address, &range)) return CUDA_ERROR_INVALID_VALUE;
    return attribute_of(&in, range, attribute, data);
  });
}

// As the driver: for a pointer that it does not know the answers are zero, and the call succeeds.
CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute* attributes, void** data, CUdeviceptr address) {
  return call("cuPointerGetAttributes", [&](State& in) {
    Range range;
    const bool known = in.find_range(address, &range);
    for (unsigned i = 0; i < count; ++i) {
      if (attributes[i] > CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) return CUDA_ERROR_INVALID_VALUE;  // not in its list
      std::memset(data[i], 0, is_narrow(attributes[i]) ? sizeof(int) : sizeof(uint64_t));
      if (!known) continue;
      const CUresult answered = attribute_of(&in, range, attributes[i], data[i]);
      if (answered != CUDA_SUCCESS) return answered;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr address) {
  return call("cuPointerSetAttribute", [&](State& in) {
    const auto found = in.holding(address);
    if (found == in.allocations.end() || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    found->second.sync_memops = *static_cast<const unsigned*>(value) != 0;
    return CUDA_SUCCESS;
  });
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
  return call("cuMemGetHandleForAddressRange", [&](State& in) {
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
    return hand_out(mapped ? range.physical->descriptor : range.own->descriptor, handle);
  });
}

CUresult cuCtxSynchronize(void) {
  return call("cuCtxSynchronize", [](State&) { return no_context() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; });
}

}  // extern "C"

PATCHABLE("cuMemFree_v2", "cuda_double_mem_free");
PATCHABLE("cuMemFree", "cuda_double_mem_free");
PATCHABLE("cuda_double_free_by_table", "cuda_double_mem_free");
PATCHABLE("cuMemFreeAsync", "cuda_double_mem_free_async");

// Stream-ordered memory: pools, and how they and pointers of theirs reach another process. Whatever
// is done on a stream here is done at once.

namespace {

bool is_pool(const State& in, CUmemoryPool pool) { return in.pools.count(pool) != 0; }

CUresult check_properties(const State& in, const CUmemPoolProps* wanted) {
  if (wanted == nullptr || wanted->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->location.id < 0 || wanted->location.id >= in.devices) return CUDA_ERROR_INVALID_DEVICE;
  if (wanted->handleTypes == CU_MEM_HANDLE_TYPE_FABRIC) {
    return in.has_fabric ? CUDA_SUCCESS : CUDA_ERROR_NOT_PERMITTED;
  }
  const bool known =
      wanted->handleTypes == CU_MEM_HANDLE_TYPE_NONE || wanted->handleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult make_pool(State* in, const CUmemPoolProps& wanted, CUmemoryPool* pool_out) {
  const uint64_t id = in->next_id++;
  const int descriptor = make_memory(id, kGrain);  // what stands for the pool, when it is exported
  if (descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  *pool_out = new CUmemPoolHandle_st{wanted, id, descriptor};
  in->pools.insert(*pool_out);
  return CUDA_SUCCESS;
}

CUresult default_pool(State* in, CUdevice device, CUmemoryPool* pool_out) {
  CUmemoryPool& pool = in->default_pools[device];
  if (pool == nullptr) {
    CUmemPoolProps usual{};
    usual.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    usual.location = cuda_double_on(device);
    const CUresult made = make_pool(in, usual, &pool);
    if (made != CUDA_SUCCESS) return made;
  }
  *pool_out = pool;
  return CUDA_SUCCESS;
}

CUresult allocate(State* in, CUdeviceptr* address, size_t bytes, CUmemoryPool pool) {
  if (!is_pool(*in, pool) || pool->imported) return CUDA_ERROR_INVALID_VALUE;
  return in->allocate(address, bytes, pool->properties.location.id, pool);
}

}  // namespace

extern "C" {

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
  return call("cuDeviceGetDefaultMemPool", [&](State& in) {
    if (device < 0 || device >= in.devices) return CUDA_ERROR_INVALID_DEVICE;
    return default_pool(&in, device, pool);
  });
}

CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* wanted) {
  return call("cuMemPoolCreate", [&](State& in) {
    const CUresult checked = check_properties(in, wanted);
    return checked != CUDA_SUCCESS ? checked : make_pool(&in, *wanted, pool);
  });
}

// What was allocated from it lives on. An imported one of which memory is open is not destroyed.
CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  return call("cuMemPoolDestroy", [&](State& in) {
    const bool is_in_use = std::any_of(in.pool_imports.begin(), in.pool_imports.end(),
                                       [&](const auto& each) { return each.second.pool == pool; });
    if (is_in_use || in.pools.erase(pool) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (pool->is_spoilt) std::abort();  // CUDA 13.0 crashes here, too
    for (auto& each : in.allocations) {
      if (each.second.pool == pool) each.second.pool = in.default_pools[0];
    }
    close(pool->descriptor);
    delete pool;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* wanted, size_t count) {
  return call("cuMemPoolSetAccess", [&](State& in) {
    return is_pool(in, pool) && wanted != nullptr && count != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream) {
  return call("cuMemAllocAsync", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    CUmemoryPool pool = nullptr;
    const CUresult found = default_pool(&in, contexts().back()->device, &pool);
    return found != CUDA_SUCCESS ? found : allocate(&in, address, bytes, pool);
  });
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream) {
  return call("cuMemAllocFromPoolAsync", [&](State& in) {
    return no_context() ? CUDA_ERROR_INVALID_CONTEXT : allocate(&in, address, bytes, pool);
  });
}

CUresult cuMemPoolExportToShareableHandle(void* handle, CUmemoryPool pool, CUmemAllocationHandleType type,
                                          unsigned long long flags) {
  return call("cuMemPoolExportToShareableHandle", [&](State& in) {
    const bool sane = is_pool(in, pool) && !pool->imported && flags == 0 &&
                      type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && pool->properties.handleTypes == type;
    if (!sane) {
      if (is_pool(in, pool)) pool->is_spoilt = true;
      return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult handed = hand_out(pool->descriptor, handle);
    pool->is_exported |= handed == CUDA_SUCCESS;
    return handed;
  });
}

// All imports of a pool are one object.
CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool* pool, void* from, CUmemAllocationHandleType type,
                                            unsigned long long flags) {
  return call("cuMemPoolImportFromShareableHandle", [&](State& in) {
    uint64_t id = 0;
    size_t bytes = 0;
    const int descriptor = static_cast<int>(reinterpret_cast<intptr_t>(from));
    const bool sane =
        flags == 0 && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && is_memory(descriptor, &id, &bytes);
    if (!sane) return CUDA_ERROR_INVALID_VALUE;
    const auto known = std::find_if(in.pools.begin(), in.pools.end(),
                                    [&](CUmemoryPool each) { return each->imported && each->id == id; });
    if (known != in.pools.end()) {
      *pool = *known;
      return CUDA_SUCCESS;
    }
    const int copied = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
    if (copied < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.handleTypes = type;
    properties.location = cuda_double_on(0);
    *pool = new CUmemPoolHandle_st{properties, id, copied, true};
    in.pools.insert(*pool);
    return CUDA_SUCCESS;
  });
}

// base carries which pool it is of. The pool must have been exported before.
CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData* data, CUdeviceptr address) {
  return call("cuMemPoolExportPointer", [&](State& in) {
    const auto found = in.holding(address);
    if (found == in.allocations.end()) return CUDA_ERROR_INVALID_VALUE;
    const Allocation& memory = found->second;
    if (memory.pool == nullptr || !memory.pool->is_exported) return CUDA_ERROR_INVALID_VALUE;
    send_by(data, wire_of(kPoolMagic, memory.descriptor, memory.id, memory.pool->id, memory.bytes));
    return CUDA_SUCCESS;
  });
}

// All imports of a pointer are one mapping, and the first cuMemFree() ends it.
CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  return call("cuMemPoolImportPointer", [&](State& in) {
    const Wire wire = received_by(*data);
    const bool sane = is_pool(in, pool) && pool->imported && wire.magic == kPoolMagic && wire.base == pool->id;
    if (!sane) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& each : in.pool_imports) {
      if (each.second.pool != pool || each.second.id != wire.id) continue;
      *address = each.first;
      return CUDA_SUCCESS;
    }
    const int descriptor = fetch(wire);
    if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
    const uintptr_t at = in.map(wire.bytes, descriptor);
    close(descriptor);
    if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    Allocation made;
    made.bytes = wire.bytes;
    made.id = wire.id;
    made.pool = pool;
    in.pool_imports[at] = made;
    *address = at;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
