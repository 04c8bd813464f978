// SPDX-License-Identifier: BSD-3-Clause
// Virtual memory management: physical memory, addresses, and mappings of the one to the other.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "test/fake/cuda/double_state.h"

using namespace pinrail::cuda_double;
using Handle = CUmemGenericAllocationHandle;

namespace {

bool is_multiple(const State& in, size_t bytes) { return bytes != 0 && bytes % in.granularity == 0; }

CUresult check_properties(const State& in, const CUmemAllocationProp* wanted) {
  if (wanted == nullptr || wanted->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->location.id < 0 || wanted->location.id >= in.devices) return CUDA_ERROR_INVALID_DEVICE;
  const unsigned types = wanted->requestedHandleTypes;
  if ((types & ~unsigned{CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC}) != 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  // Without an IMEX channel.
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && !in.has_fabric) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

Handle add(State* in, const Physical& made) {
  const Handle handle = 0x5000000000 + in->next_id++;
  in->physical[handle] = made;
  return handle;
}

// The memory goes with its last handle and its last mapping.
void end_if_unused(State* in, std::map<Handle, Physical>::iterator physical) {
  if (physical->second.references != 0 || physical->second.mappings != 0) return;
  if (!physical->second.imported) in->used -= physical->second.bytes;
  close(physical->second.descriptor);
  in->physical.erase(physical);
}

// The reservation that holds all of the range.
bool is_reserved(const State& in, CUdeviceptr address, size_t bytes) {
  auto after = in.reservations.upper_bound(address);
  if (after == in.reservations.begin()) return false;
  --after;
  const size_t offset = address - after->first;
  return offset < after->second.bytes && bytes <= after->second.bytes - offset;
}

bool is_free(const State& in, CUdeviceptr address, size_t bytes) {
  const auto after = in.mappings.lower_bound(address + bytes);
  if (after == in.mappings.begin()) return true;
  const auto before = std::prev(after);
  return before->first + before->second.bytes <= address;
}

// The mappings that make up the range exactly; end: there is a gap, or one of them is larger.
bool is_made_up(const State& in, CUdeviceptr address, size_t bytes) {
  uintptr_t at = address;
  while (at < address + bytes) {
    const auto found = in.mappings.find(at);
    if (found == in.mappings.end()) return false;
    at += found->second.bytes;
  }
  return bytes != 0 && at == address + bytes;
}

CUresult import_descriptor(State* in, int descriptor, Handle* handle_out) {
  Physical made;
  if (!is_memory(descriptor, &made.id, &made.bytes)) return CUDA_ERROR_INVALID_VALUE;
  made.descriptor = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (made.descriptor < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  made.id = in->next_id++;
  made.references = 1;
  made.imported = true;
  made.properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  made.properties.location = cuda_double_on(0);
  made.properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  *handle_out = add(in, made);
  return CUDA_SUCCESS;
}

CUresult import_fabric(State* in, const void* from, Handle* handle_out) {
  const Wire wire = received_by(*static_cast<const CUmemFabricHandle*>(from));
  if (!in->has_fabric) return CUDA_ERROR_NOT_PERMITTED;
  if (wire.magic != kFabricMagic) return CUDA_ERROR_INVALID_VALUE;
  const int descriptor = fetch(wire);
  if (descriptor < 0) return CUDA_ERROR_INVALID_VALUE;
  const CUresult imported = import_descriptor(in, descriptor, handle_out);
  close(descriptor);
  return imported;
}

}  // namespace

extern "C" {

CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp* wanted,
                                       CUmemAllocationGranularity_flags) {
  return call("cuMemGetAllocationGranularity", [&](State& in) {
    const CUresult checked = check_properties(in, wanted);
    if (checked == CUDA_SUCCESS) *granularity = in.granularity;
    return checked;
  });
}

CUresult cuMemCreate(Handle* handle, size_t bytes, const CUmemAllocationProp* wanted, unsigned long long flags) {
  return call("cuMemCreate", [&](State& in) {
    if (flags != 0 || !is_multiple(in, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult checked = check_properties(in, wanted);
    if (checked != CUDA_SUCCESS) return checked;
    if (bytes > in.limit - in.used) return CUDA_ERROR_OUT_OF_MEMORY;
    Physical made;
    made.bytes = bytes;
    made.id = in.next_id++;
    made.descriptor = make_memory(made.id, bytes);
    if (made.descriptor < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    made.properties = *wanted;
    made.references = 1;
    in.used += bytes;
    *handle = add(&in, made);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRelease(Handle handle) {
  return call("cuMemRelease", [&](State& in) {
    const auto found = in.physical.find(handle);
    if (found == in.physical.end() || found->second.references == 0) return CUDA_ERROR_INVALID_VALUE;
    --found->second.references;
    end_if_unused(&in, found);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemRetainAllocationHandle(Handle* handle, void* address) {
  return call("cuMemRetainAllocationHandle", [&](State& in) {
    Range range;
    if (!in.find_range(reinterpret_cast<uintptr_t>(address), &range) || range.mapping == nullptr) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    ++in.physical.at(range.mapping->physical).references;
    *handle = range.mapping->physical;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, Handle handle) {
  return call("cuMemGetAllocationPropertiesFromHandle", [&](State& in) {
    const auto found = in.physical.find(handle);
    if (found == in.physical.end()) return CUDA_ERROR_INVALID_VALUE;
    *properties = found->second.properties;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t alignment, CUdeviceptr,
                             unsigned long long flags) {
  return call("cuMemAddressReserve", [&](State& in) {
    const bool sane = flags == 0 && is_multiple(in, bytes) && (alignment & (alignment - 1)) == 0;
    if (!sane) return CUDA_ERROR_INVALID_VALUE;
    const uintptr_t at = in.take(bytes, alignment > in.granularity ? alignment : in.granularity);
    if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    in.reservations[at] = {bytes, in.next_id++};
    *address = at;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  return call("cuMemAddressFree", [&](State& in) {
    const auto found = in.reservations.find(address);
    if (found == in.reservations.end() || found->second.bytes != bytes) return CUDA_ERROR_INVALID_VALUE;
    if (!is_free(in, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    in.reservations.erase(found);
    in.give_back(address);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, Handle handle, unsigned long long flags) {
  return call("cuMemMap", [&](State& in) {
    const auto found = in.physical.find(handle);
    const bool sane = flags == 0 && offset == 0 && is_multiple(in, bytes) && found != in.physical.end() &&
                      bytes <= found->second.bytes && is_reserved(in, address, bytes) && is_free(in, address, bytes);
    if (!sane) return CUDA_ERROR_INVALID_VALUE;
    if (!map_at(address, bytes, found->second.descriptor)) return CUDA_ERROR_OUT_OF_MEMORY;
    in.mappings[address] = {bytes, handle, false};
    ++found->second.mappings;
    return CUDA_SUCCESS;
  });
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc* wanted, size_t count) {
  return call("cuMemSetAccess", [&](State& in) {
    if (wanted == nullptr || count == 0 || !is_made_up(in, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; ++i) {
      if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
      if (wanted[i].location.id < 0 || wanted[i].location.id >= in.devices) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (auto at = in.mappings.find(address); at != in.mappings.end() && at->first < address + bytes; ++at) {
      at->second.accessible = wanted[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    return CUDA_SUCCESS;
  });
}

// cuMemUnmap leads here, see below.
HIDDEN CUresult cuda_double_mem_unmap(CUdeviceptr address, size_t bytes) {
  return call("cuMemUnmap", [&](State& in) {
    if (!is_made_up(in, address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    unmap_at(address, bytes);
    for (auto at = in.mappings.find(address); at != in.mappings.end() && at->first < address + bytes;) {
      const auto physical = in.physical.find(at->second.physical);
      --physical->second.mappings;
      end_if_unused(&in, physical);
      at = in.mappings.erase(at);
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemExportToShareableHandle(void* shareable, Handle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  return call("cuMemExportToShareableHandle", [&](State& in) {
    const auto found = in.physical.find(handle);
    if (found == in.physical.end() || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const Physical& physical = found->second;
    if ((unsigned{type} & unsigned{physical.properties.requestedHandleTypes}) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
      send_by(static_cast<CUmemFabricHandle*>(shareable),
              wire_of(kFabricMagic, physical.descriptor, physical.id, 0, physical.bytes));
      return CUDA_SUCCESS;
    }
    return hand_out(physical.descriptor, shareable);
  });
}

CUresult cuMemImportFromShareableHandle(Handle* handle, void* from, CUmemAllocationHandleType type) {
  return call("cuMemImportFromShareableHandle", [&](State& in) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) return import_fabric(&in, from, handle);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    return import_descriptor(&in, static_cast<int>(reinterpret_cast<intptr_t>(from)), handle);
  });
}

}  // extern "C"

PATCHABLE("cuMemUnmap", "cuda_double_mem_unmap");
