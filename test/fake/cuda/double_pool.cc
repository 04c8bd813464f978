// SPDX-License-Identifier: BSD-3-Clause
// Stream-ordered memory: pools, and how they and pointers of theirs reach another process. Whatever
// is done on a stream here is done at once.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "test/fake/cuda/double_state.h"

using namespace pinrail::cuda_double;

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
    const int copied = fcntl(pool->descriptor, F_DUPFD_CLOEXEC, 0);
    if (copied < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    *static_cast<int*>(handle) = copied;
    pool->is_exported = true;
    return CUDA_SUCCESS;
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
    const auto self = static_cast<uint32_t>(getpid());
    const Wire wire{kPoolMagic, self, this_owner(), memory.descriptor, memory.id, memory.pool->id, memory.bytes};
    std::memset(data, 0, sizeof(*data));
    std::memcpy(data, &wire, sizeof(wire));
    return CUDA_SUCCESS;
  });
}

// All imports of a pointer are one mapping, and the first cuMemFree() ends it.
CUresult cuMemPoolImportPointer(CUdeviceptr* address, CUmemoryPool pool, CUmemPoolPtrExportData* data) {
  return call("cuMemPoolImportPointer", [&](State& in) {
    Wire wire;
    std::memcpy(&wire, data, sizeof(wire));
    const bool sane = is_pool(in, pool) && pool->imported && wire.magic == kPoolMagic && wire.base == pool->id;
    if (!sane) return CUDA_ERROR_INVALID_VALUE;
    for (const auto& each : in.pool_imports) {
      if (each.second.pool != pool || each.second.id != wire.id) continue;
      *address = each.first;
      return CUDA_SUCCESS;
    }
    const int descriptor = fetch(wire);
    if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
    const uintptr_t at = in.take(wire.bytes);
    const bool mapped = at != 0 && map_at(at, wire.bytes, descriptor);
    close(descriptor);
    if (!mapped) {
      in.give_back(at);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
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
