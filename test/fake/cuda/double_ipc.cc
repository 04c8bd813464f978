// SPDX-License-Identifier: BSD-3-Clause
// Memory of other processes.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/toolkit/cuda.h"

namespace pinrail::cuda_double {
namespace {

// How much of the device's memory is in use, by all processes together.

constexpr size_t kMost = 4096;  // what comes beyond is not counted

struct Held {
  std::atomic<uint64_t> key;  // 0: free
  std::atomic<uint64_t> bytes;
  std::atomic<int64_t> holders;
};

struct Device {
  Held held[kMost];
};

// Shared with the processes that are forked from the one that loaded the library.
Device* make_device() {
  void* at = mmap(nullptr, sizeof(Device), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return at == MAP_FAILED ? nullptr : static_cast<Device*>(at);  // zeros: all free
}
Device* const device = make_device();

uint64_t key_of(uint64_t owner, uint64_t id) { return (owner * 0x9e3779b97f4a7c15u + id) | 1; }  // 0: free

Held* find(uint64_t key) {
  if (device == nullptr) return nullptr;
  for (Held& held : device->held) {
    if (held.key.load() == key) return &held;
  }
  return nullptr;
}

}  // namespace

void hold_memory(uint64_t owner, uint64_t id, size_t bytes) {
  const uint64_t key = key_of(owner, id);
  Held* held = find(key);
  if (held == nullptr && device != nullptr) {
    for (Held& each : device->held) {
      uint64_t free_key = 0;
      if (!each.key.compare_exchange_strong(free_key, key)) continue;
      held = &each;
      held->bytes.store(bytes);
      break;
    }
  }
  if (held != nullptr) ++held->holders;
}

void let_memory_go(uint64_t owner, uint64_t id) {
  Held* held = find(key_of(owner, id));
  if (held == nullptr || --held->holders != 0) return;
  held->bytes.store(0);
  held->key.store(0);
}

size_t memory_in_use() {
  size_t sum = 0;
  for (size_t i = 0; device != nullptr && i < kMost; ++i) sum += device->held[i].bytes.load();
  return sum;
}

}  // namespace pinrail::cuda_double

using namespace pinrail::cuda_double;

extern "C" CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call("cuMemGetInfo", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *total_bytes = kArenaBytes;
    *free_bytes = kArenaBytes - memory_in_use();
    return CUDA_SUCCESS;
  });
}

// What Open MPI asks about devices and access, and host memory that it registers.

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

using Lock = std::lock_guard<std::mutex>;

namespace {

CUresult open_new(State* in, const Wire& wire, CUdeviceptr* address_out) {
  const int descriptor = fetch(wire);
  if (descriptor < 0) return CUDA_ERROR_INVALID_HANDLE;
  const uintptr_t at = in->map(wire.bytes, descriptor);
  close(descriptor);
  if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  in->imports[at] = {wire.owner, wire.base, wire.id, wire.bytes, 1, contexts().back()->device, in->next_id++};
  hold_memory(wire.owner, wire.id, wire.bytes);
  *address_out = at;
  return CUDA_SUCCESS;
}

CUresult open_handle(State* in, const Wire& wire, CUdeviceptr* address_out) {
  if (wire.magic != kMagic) return CUDA_ERROR_INVALID_HANDLE;
  if (wire.owner == this_owner()) return CUDA_ERROR_INVALID_CONTEXT;
  for (auto& [at, import] : in->imports) {
    if (import.owner != wire.owner || import.base != wire.base) continue;
    if (import.id != wire.id) {
      ++in->calls[CUDA_DOUBLE_ALREADY_MAPPED];
      return CUDA_ERROR_ALREADY_MAPPED;
    }
    ++import.references;
    *address_out = at;
    return CUDA_SUCCESS;
  }
  return open_new(in, wire, address_out);
}

}  // namespace

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  return call("cuIpcGetMemHandle", [&](State& in) {
    if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
    const auto found = in.holding(address);
    if (found == in.allocations.end() || found->second.pool != nullptr) return CUDA_ERROR_INVALID_VALUE;
    send_by(handle, wire_of(kMagic, found->second.descriptor, found->second.id, found->first, found->second.bytes));
    return CUDA_SUCCESS;
  });
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  return call("cuIpcOpenMemHandle", [&](State& in) {
    if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    return open_handle(&in, received_by(handle), address);
  });
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  return call("cuIpcCloseMemHandle", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    const auto found = in.imports.find(address);
    if (found == in.imports.end()) return CUDA_ERROR_INVALID_VALUE;
    if (--found->second.references == 0) in.end(found);
    return CUDA_SUCCESS;
  });
}

size_t cuda_double_open_handles(void) {
  Lock lock(state().mutex);
  size_t open = 0;
  for (const auto& each : state().imports) open += each.second.references;
  for (const auto& each : state().physical)
    open += each.second.imported ? each.second.references + each.second.mappings : 0;
  for (const auto& each : state().pools) open += each->imported ? 1 : 0;
  return open + state().pool_imports.size();
}

int cuda_double_is_open(uint32_t pid, CUdeviceptr base) {
  Lock lock(state().mutex);
  for (const auto& each : state().imports) {
    if (pid_of(each.second.owner) == pid && each.second.base == base) return 1;
  }
  return 0;
}

CUresult cuda_double_foreign_alloc(uint32_t pid, CUdeviceptr base, size_t bytes, CUipcMemHandle* handle_out,
                                   uint64_t* buffer_id_out) {
  State& in = state();
  Lock lock(in.mutex);
  if (in.foreign.count({pid, base}) != 0) return CUDA_ERROR_ALREADY_MAPPED;
  Allocation made;
  made.bytes = bytes;
  made.id = in.next_id++;
  made.descriptor = make_memory(made.id, bytes);
  if (made.descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  in.foreign[{pid, base}] = made;
  send_by(handle_out, wire_of(kMagic, made.descriptor, made.id, base, bytes, owner_of(pid, 0)));
  *buffer_id_out = made.id;
  return CUDA_SUCCESS;
}

CUresult cuda_double_foreign_free(uint32_t pid, CUdeviceptr base) {
  State& in = state();
  Lock lock(in.mutex);
  const auto found = in.foreign.find({pid, base});
  if (found == in.foreign.end()) return CUDA_ERROR_INVALID_VALUE;
  close(found->second.descriptor);
  in.foreign.erase(found);
  return CUDA_SUCCESS;
}

}  // extern "C"
