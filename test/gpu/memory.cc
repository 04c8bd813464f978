// SPDX-License-Identifier: BSD-3-Clause
#include "test/gpu/memory.h"

namespace pinrail::gpu_test {
namespace {

CUmemLocation first_gpu() {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return location;
}

}  // namespace

bool Memory::start() {
  if (kind_ == Kind::ipc) return true;
  if (!driver_.has_kinds) return false;
  physical_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical_.location = first_gpu();
  physical_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (kind_ == Kind::vmm) {
    return driver_.granularity(&unit_, &physical_, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS;
  }
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = first_gpu();
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return driver_.create_pool(&pool_, &wanted) == CUDA_SUCCESS;
}

bool Memory::stop() { return pool_ == nullptr || driver_.destroy_pool(pool_) == CUDA_SUCCESS; }

bool Memory::allocate(size_t bytes, CUdeviceptr* at_out) const {
  switch (kind_) {
    case Kind::ipc: return driver_.alloc(at_out, bytes) == CUDA_SUCCESS;
    case Kind::pool:
      return driver_.alloc_from_pool(at_out, bytes, pool_, nullptr) == CUDA_SUCCESS &&
             driver_.wait(nullptr) == CUDA_SUCCESS;
    case Kind::vmm: break;
  }
  return driver_.reserve(at_out, bytes, 0, 0, 0) == CUDA_SUCCESS && map(bytes, *at_out);
}

// The mapping keeps the memory: its handle is released at once.
bool Memory::map(size_t bytes, CUdeviceptr at) const {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAccessDesc access{};
  access.location = first_gpu();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  if (driver_.create(&handle, bytes, &physical_, 0) != CUDA_SUCCESS) return false;
  const bool mapped =
      driver_.map(at, bytes, 0, handle, 0) == CUDA_SUCCESS && driver_.set_access(at, bytes, &access, 1) == CUDA_SUCCESS;
  return driver_.release(handle) == CUDA_SUCCESS && mapped;
}

bool Memory::free(CUdeviceptr at, size_t bytes) const {
  switch (kind_) {
    case Kind::ipc: return driver_.free(at) == CUDA_SUCCESS;
    case Kind::pool: return driver_.free_async(at, nullptr) == CUDA_SUCCESS && driver_.wait(nullptr) == CUDA_SUCCESS;
    case Kind::vmm: break;
  }
  return driver_.unmap(at, bytes) == CUDA_SUCCESS && driver_.give_back(at, bytes) == CUDA_SUCCESS;
}

}  // namespace pinrail::gpu_test
