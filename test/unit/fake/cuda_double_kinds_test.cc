// SPDX-License-Identifier: BSD-3-Clause
// The driver double's newer kinds of memory: virtual memory management, stream-ordered pools, dmabufs.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "test/support/gpu_memory.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

constexpr size_t kUnit = size_t{2} << 20;

CUmemAllocationProp shareable(unsigned types = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location = cuda_double_on(0);
  wanted.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(types);
  return wanted;
}

CUmemAccessDesc read_write() { return {cuda_double_on(0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE}; }

class CudaDoubleKinds : public ::testing::Test {
 protected:
  void SetUp() override {
    CUmemoryPool usual = nullptr;  // made once, and kept
    ASSERT_EQ(cuDeviceGetDefaultMemPool(&usual, 0), CUDA_SUCCESS);
    descriptors_ = open_descriptors();
  }
  void TearDown() override {
    cuda_double_forget();
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_used(), 0u);
    EXPECT_EQ(open_descriptors(), descriptors_);
  }
  static CUmemGenericAllocationHandle create(size_t bytes = kUnit) {
    const CUmemAllocationProp wanted = shareable();
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_EQ(cuMemCreate(&handle, bytes, &wanted, 0), CUDA_SUCCESS);
    return handle;
  }
  static CUdeviceptr reserve(size_t bytes = kUnit) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAddressReserve(&at, bytes, 0, 0, 0), CUDA_SUCCESS);
    return at;
  }
  static void map(CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes = kUnit) {
    const CUmemAccessDesc access = read_write();
    EXPECT_EQ(cuMemMap(at, bytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(at, bytes, &access, 1), CUDA_SUCCESS);
  }
  static uint64_t attribute(CUpointer_attribute name, CUdeviceptr at) {
    uint64_t value = 0;
    EXPECT_EQ(cuPointerGetAttribute(&value, name, at), CUDA_SUCCESS);
    return value;
  }
  static CUmemoryPool make_pool(CUmemAllocationHandleType type) {
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.handleTypes = type;
    wanted.location = cuda_double_on(0);
    CUmemoryPool pool = nullptr;
    EXPECT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_SUCCESS);
    return pool;
  }
  const CurrentContext context_;
  size_t descriptors_ = 0;
};

TEST_F(CudaDoubleKinds, physical_memory_lives_until_its_last_handle_and_its_last_mapping) {
  const CUdeviceptr at = reserve();
  const CUmemGenericAllocationHandle handle = create();
  map(at, handle);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_used(), kUnit);
  unsigned char byte = 7, seen = 0;
  EXPECT_EQ(cuMemcpyHtoD(at + kUnit - 1, &byte, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(&seen, at + kUnit - 1, 1), CUDA_SUCCESS);
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(cuMemAddressFree(at, kUnit), CUDA_ERROR_INVALID_VALUE) << "something is mapped there";
  EXPECT_EQ(cuMemUnmap(at, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_used(), 0u);
  EXPECT_EQ(cuMemAddressFree(at, kUnit), CUDA_SUCCESS);
}

TEST_F(CudaDoubleKinds, two_mappings_of_one_reservation_have_one_range_and_two_blocks) {
  const CUdeviceptr at = reserve(2 * kUnit);
  const CUmemGenericAllocationHandle first = create(), second = create();
  map(at, first);
  map(at + kUnit, second);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + kUnit), at);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + kUnit), 2 * kUnit);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at), attribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at + kUnit));
  EXPECT_NE(attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at),
            attribute(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, at + kUnit));
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuMemGetAddressRange(&base, &bytes, at + kUnit + 5), CUDA_SUCCESS);
  EXPECT_EQ(base, at + kUnit);
  EXPECT_EQ(bytes, kUnit);
  CUmemGenericAllocationHandle again = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&again, reinterpret_cast<void*>(at + kUnit + 5)), CUDA_SUCCESS);
  EXPECT_EQ(again, second);
  EXPECT_EQ(cuMemUnmap(at, kUnit / 2), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at, 2 * kUnit), CUDA_SUCCESS);
  for (const CUmemGenericAllocationHandle handle : {first, second, again}) {
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemAddressFree(at, 2 * kUnit), CUDA_SUCCESS);
}

TEST_F(CudaDoubleKinds, what_the_driver_refuses_of_virtual_memory) {
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp wanted = shareable(CU_MEM_HANDLE_TYPE_FABRIC);
  EXPECT_EQ(cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_ERROR_NOT_PERMITTED);
  wanted = shareable(0);
  EXPECT_EQ(cuMemCreate(&handle, kUnit - 4096, &wanted, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemCreate(&handle, kUnit, &wanted, 0), CUDA_SUCCESS);
  int descriptor = -1;
  EXPECT_EQ(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr at = reserve();
  CUipcMemHandle ipc;
  unsigned char byte = 0;
  EXPECT_EQ(cuMemMap(at, kUnit, kUnit, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemMap(at, kUnit, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyHtoD(at, &byte, 1), CUDA_ERROR_INVALID_VALUE) << "no access yet";
  EXPECT_EQ(cuMemMap(at, kUnit, 0, handle, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcGetMemHandle(&ipc, at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(at, kUnit), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(at, kUnit), CUDA_SUCCESS);
  const int strange = open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{strange}),
                                           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_ERROR_INVALID_VALUE);
  close(strange);
}

TEST_F(CudaDoubleKinds, a_pools_pointer_is_imported_through_its_pool_and_no_other) {
  const CUmemoryPool pool = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUmemoryPool other = make_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CUdeviceptr at = 0, mapped = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, 5000, pool, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(attribute(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), reinterpret_cast<uintptr_t>(pool));
  CUmemPoolPtrExportData data;
  EXPECT_EQ(cuMemPoolExportPointer(&data, at), CUDA_ERROR_INVALID_VALUE) << "its pool was not exported yet";
  CUmemoryPool imported[2];
  const CUmemoryPool exported[2] = {pool, other};
  for (int i = 0; i < 2; ++i) {
    int descriptor = -1;
    ASSERT_EQ(cuMemPoolExportToShareableHandle(&descriptor, exported[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuMemPoolImportFromShareableHandle(&imported[i], reinterpret_cast<void*>(intptr_t{descriptor}),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    CUmemoryPool again = nullptr;
    EXPECT_EQ(cuMemPoolImportFromShareableHandle(&again, reinterpret_cast<void*>(intptr_t{descriptor}),
                                                 CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(again, imported[i]);
    close(descriptor);
  }
  ASSERT_EQ(cuMemPoolExportPointer(&data, at), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolImportPointer(&mapped, imported[1], &data), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemPoolImportPointer(&mapped, imported[0], &data), CUDA_SUCCESS);
  CUdeviceptr mapped_again = 0;
  EXPECT_EQ(cuMemPoolImportPointer(&mapped_again, imported[0], &data), CUDA_SUCCESS);
  EXPECT_EQ(mapped_again, mapped) << "one free ends both";
  EXPECT_EQ(cuMemPoolDestroy(imported[0]), CUDA_ERROR_INVALID_VALUE) << "memory of it is open";
  EXPECT_EQ(cuMemAllocFromPoolAsync(&mapped, 8, imported[0], nullptr), CUDA_ERROR_INVALID_VALUE);
  const unsigned char sent = 3;
  unsigned char seen = 0;
  EXPECT_EQ(cuMemcpyHtoD(at + 4999, &sent, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyDtoH(&seen, mapped + 4999, 1), CUDA_SUCCESS);
  EXPECT_EQ(seen, sent);
  EXPECT_EQ(cuda_double_open_handles(), 3u);
  EXPECT_EQ(cuMemFreeAsync(mapped, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuMemPoolImportPointer(&mapped, imported[0], &data), CUDA_ERROR_INVALID_VALUE) << "its memory is gone";
  for (const CUmemoryPool each : {pool, other, imported[0], imported[1]}) {
    EXPECT_EQ(cuMemPoolDestroy(each), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CudaDoubleKinds, memory_of_the_default_pool_cannot_be_exported) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocAsync(&at, 5000, nullptr), CUDA_SUCCESS);
  CUmemPoolPtrExportData data;
  CUipcMemHandle ipc;
  EXPECT_EQ(cuMemPoolExportPointer(&data, at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuIpcGetMemHandle(&ipc, at), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

TEST_F(CudaDoubleKinds, a_dmabuf_is_the_allocations_own_memory) {
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAlloc(&at, 10000), CUDA_SUCCESS);
  int descriptor = -1;
  const auto type = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
  EXPECT_EQ(cuMemGetHandleForAddressRange(&descriptor, at, 10000, type, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemGetHandleForAddressRange(&descriptor, at, 16384, type, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemGetHandleForAddressRange(&descriptor, at, 12288, type, 0), CUDA_SUCCESS);
  const unsigned char sent = 5;
  unsigned char seen = 0;
  EXPECT_EQ(cuMemcpyHtoD(at + 9999, &sent, 1), CUDA_SUCCESS);
  EXPECT_EQ(pread(descriptor, &seen, 1, 9999), 1);
  EXPECT_EQ(seen, sent);
  close(descriptor);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
