// SPDX-License-Identifier: BSD-3-Clause
// What Open MPI asks about devices and access, and host memory that it registers.
#include "test/fake/cuda/double_transport.h"

#include <cstdio>

#include "test/fake/cuda/double_state.h"

using namespace pinrail::cuda_double;

namespace {

constexpr auto kNoAccess = static_cast<CUmemAccess_flags>(CU_MEM_ACCESS_FLAGS_PROT_NONE);

bool is_device(const State& in, int device) { return device >= 0 && device < in.devices; }
bool is_device(const State& in, const CUmemLocation* location) {
  return location->type == CU_MEM_LOCATION_TYPE_DEVICE && is_device(in, location->id);
}

// Whether registered host memory overlaps [at, at + bytes).
bool is_registered(const State& in, uintptr_t at, size_t bytes) {
  const auto behind = in.host.lower_bound(at + bytes);
  if (behind == in.host.begin()) return false;
  const auto last = std::prev(behind);
  return last->first + last->second > at;
}

}  // namespace

extern "C" {

// All devices of the double have one memory; a device is not its own peer.
CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  return call("cuDeviceCanAccessPeer", [&](State& in) {
    if (!is_device(in, device) || !is_device(in, peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

// "domain:bus:device.function", cut to the length, which counts the null byte.
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device) {
  return call("cuDeviceGetPCIBusId", [&](State& in) {
    if (!is_device(in, device)) return CUDA_ERROR_INVALID_DEVICE;
    if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
  });
}

// Of mapped physical memory: cuMemSetAccess() of the double gives all devices access, or none.
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address) {
  return call("cuMemGetAccess", [&](State& in) {
    Range range;
    if (!is_device(in, location)) return CUDA_ERROR_INVALID_DEVICE;
    if (!in.find_range(address, &range) || range.mapping == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *flags = range.mapping->accessible ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : kNoAccess;
    return CUDA_SUCCESS;
  });
}

// A pool is accessible where it was made.
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location) {
  return call("cuMemPoolGetAccess", [&](State& in) {
    if (!is_device(in, location)) return CUDA_ERROR_INVALID_DEVICE;
    const bool known = in.pools.count(pool) != 0;
    bool is_default = false;
    for (int i = 0; i < in.devices && pool != nullptr; ++i) is_default |= in.default_pools[i] == pool;
    if (!known && !is_default) return CUDA_ERROR_INVALID_VALUE;
    *flags = pool->properties.location.id == location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : kNoAccess;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostRegister(void* address, size_t bytes, unsigned) {
  return call("cuMemHostRegister", [&](State& in) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (at == 0 || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (is_registered(in, at, bytes)) return static_cast<CUresult>(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    in.host[at] = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* address) {
  return call("cuMemHostUnregister", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const bool was = in.host.erase(reinterpret_cast<uintptr_t>(address)) != 0;
    return was ? CUDA_SUCCESS : static_cast<CUresult>(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  });
}

}  // extern "C"
