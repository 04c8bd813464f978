// SPDX-License-Identifier: BSD-3-Clause
// Memory of other processes.
#include <unistd.h>

#include <cstring>
#include <iterator>

#include "test/fake/cuda/double_state.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

namespace {

void write_handle(CUipcMemHandle* handle, const Wire& wire) {
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &wire, sizeof(wire));
}

CUresult open_new(State* in, const Wire& wire, CUdeviceptr* address_out) {
  const int descriptor = fetch(wire);
  if (descriptor < 0) return CUDA_ERROR_INVALID_HANDLE;
  const uintptr_t at = in->take(wire.bytes);
  const bool mapped = at != 0 && map_at(at, wire.bytes, descriptor);
  close(descriptor);
  if (!mapped) {
    in->give_back(at);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
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
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter("cuIpcGetMemHandle");
  if (entered != CUDA_SUCCESS) return entered;
  if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
  const auto found = in.holding(address);
  if (found == in.allocations.end() || found->second.pool != nullptr) return CUDA_ERROR_INVALID_VALUE;
  found->second.exported = true;
  const auto self = static_cast<uint32_t>(getpid());
  write_handle(handle, {kMagic, self, this_owner(), found->second.descriptor, found->second.id, found->first,
                        found->second.bytes});
  return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr* address, CUipcMemHandle handle, unsigned flags) {
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter("cuIpcOpenMemHandle");
  if (entered != CUDA_SUCCESS) return entered;
  if (!in.has_ipc) return CUDA_ERROR_NOT_SUPPORTED;
  if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  Wire wire;
  std::memcpy(&wire, &handle, sizeof(wire));
  return open_handle(&in, wire, address);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  State& in = state();
  Lock lock(in.mutex);
  const CUresult entered = enter("cuIpcCloseMemHandle");
  if (entered != CUDA_SUCCESS) return entered;
  if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
  const auto found = in.imports.find(address);
  if (found == in.imports.end()) return CUDA_ERROR_INVALID_VALUE;
  if (--found->second.references == 0) in.end(found);
  return CUDA_SUCCESS;
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
  const uint64_t owner = owner_of(pid, in.foreign_lives[pid]);
  write_handle(handle_out, {kMagic, static_cast<uint32_t>(getpid()), owner, made.descriptor, made.id, base, bytes});
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

void cuda_double_foreign_restart(uint32_t pid) {
  State& in = state();
  Lock lock(in.mutex);
  ++in.foreign_lives[pid];
  for (auto at = in.foreign.begin(); at != in.foreign.end();) {
    const auto next = std::next(at);
    if (at->first.first == pid) {
      close(at->second.descriptor);
      in.foreign.erase(at);
    }
    at = next;
  }
}

}  // extern "C"
