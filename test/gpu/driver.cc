// SPDX-License-Identifier: BSD-3-Clause
#include "test/gpu/driver.h"
#include "config.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

namespace pinrail::gpu_test {
namespace {

#define PINRAIL_NAME(name) #name
#define PINRAIL_LOOK_UP(field, name) \
  ((field) = reinterpret_cast<decltype(field)>(dlsym(library, PINRAIL_NAME(name)))) != nullptr

}  // namespace

bool Driver::load(const char* program, bool is_double) {
  const char* why = "";
  const bool loaded = look_up_all(is_double, &why);
  if (!loaded) std::fprintf(stderr, "%s: no CUDA driver here: %s\n", program, why);
  return loaded;
}

bool Driver::look_up_all(bool is_double, const char** why_out) {
  void* library =
      dlopen(is_double ? PINRAIL_TEST_BUILD "/test/fake/.libs/libcuda.so.1" : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why_out = dlerror();
    return false;
  }
  const bool all = PINRAIL_LOOK_UP(init, cuInit) && PINRAIL_LOOK_UP(retain, cuDevicePrimaryCtxRetain) &&
                   PINRAIL_LOOK_UP(push, cuCtxPushCurrent) && PINRAIL_LOOK_UP(alloc, cuMemAlloc) &&
                   PINRAIL_LOOK_UP(free, cuMemFree) && PINRAIL_LOOK_UP(info, cuMemGetInfo) &&
                   PINRAIL_LOOK_UP(read, cuMemcpyDtoH) && PINRAIL_LOOK_UP(write, cuMemcpyHtoD) &&
                   PINRAIL_LOOK_UP(synchronise, cuCtxSynchronize) && PINRAIL_LOOK_UP(get_handle, cuIpcGetMemHandle) &&
                   PINRAIL_LOOK_UP(open, cuIpcOpenMemHandle) && PINRAIL_LOOK_UP(close, cuIpcCloseMemHandle);
  has_kinds = PINRAIL_LOOK_UP(granularity, cuMemGetAllocationGranularity) && PINRAIL_LOOK_UP(create, cuMemCreate) &&
              PINRAIL_LOOK_UP(release, cuMemRelease) && PINRAIL_LOOK_UP(reserve, cuMemAddressReserve) &&
              PINRAIL_LOOK_UP(give_back, cuMemAddressFree) && PINRAIL_LOOK_UP(map, cuMemMap) &&
              PINRAIL_LOOK_UP(unmap, cuMemUnmap) && PINRAIL_LOOK_UP(set_access, cuMemSetAccess) &&
              PINRAIL_LOOK_UP(create_pool, cuMemPoolCreate) && PINRAIL_LOOK_UP(destroy_pool, cuMemPoolDestroy) &&
              PINRAIL_LOOK_UP(alloc_from_pool, cuMemAllocFromPoolAsync) &&
              PINRAIL_LOOK_UP(free_async, cuMemFreeAsync) && PINRAIL_LOOK_UP(wait, cuStreamSynchronize) &&
              PINRAIL_LOOK_UP(pop, cuCtxPopCurrent) && PINRAIL_LOOK_UP(attributes, cuPointerGetAttributes) &&
              PINRAIL_LOOK_UP(attribute, cuPointerGetAttribute) && PINRAIL_LOOK_UP(range, cuMemGetAddressRange);
  has_events = PINRAIL_LOOK_UP(create_event, cuEventCreate) && PINRAIL_LOOK_UP(destroy_event, cuEventDestroy) &&
               PINRAIL_LOOK_UP(record, cuEventRecord) && PINRAIL_LOOK_UP(wait_for, cuStreamWaitEvent) &&
               PINRAIL_LOOK_UP(get_event_handle, cuIpcGetEventHandle) &&
               PINRAIL_LOOK_UP(open_event, cuIpcOpenEventHandle);
  has_reset = PINRAIL_LOOK_UP(reset, cuDevicePrimaryCtxReset) && PINRAIL_LOOK_UP(current, cuCtxGetCurrent) &&
              attributes != nullptr;
  open_handles = reinterpret_cast<size_t (*)()>(dlsym(library, "cuda_double_open_handles"));
  if (!all) *why_out = "the driver lacks a function";
  return all;
}

bool Driver::start(const char** why_out) const {
  CUcontext context = nullptr;
  *why_out = "the driver does not start, or there is no GPU";
  return init(0) == CUDA_SUCCESS && retain(&context, 0) == CUDA_SUCCESS && push(context) == CUDA_SUCCESS;
}

// The driver's copy from pageable memory returns when the bytes are staged, and the GPU may not have them yet.
bool Driver::put(CUdeviceptr at, const void* bytes, size_t length) const {
  return write(at, bytes, length) == CUDA_SUCCESS && synchronise() == CUDA_SUCCESS;
}

bool read_double(int argc, char** argv, const char* program, bool* is_double_out) {
  *is_double_out = argc == 2 && std::strcmp(argv[1], "--double") == 0;
  if (argc == 1 || *is_double_out) return true;
  std::fprintf(stderr, "usage: %s [--double]\n", program);
  return false;
}

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
