// SPDX-License-Identifier: BSD-3-Clause
// The driver double does what the driver is known to do: else tests on it would prove nothing.
#include <gtest/gtest.h>

#include "test/fake/cuda/cuda_context.h"

namespace pinrail::test {
namespace {

constexpr size_t kKiB = 1024;

class CudaDouble : public ::testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_used(), 0u);
  }
  static CUdeviceptr alloc(size_t bytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, bytes), CUDA_SUCCESS);
    return at;
  }
  static uint64_t id_of(CUdeviceptr at) {
    unsigned long long id = 0;
    EXPECT_EQ(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at), CUDA_SUCCESS);
    return id;
  }
  static CUresult open(const CUipcMemHandle& handle, CUdeviceptr* at_out) {
    return cuIpcOpenMemHandle(at_out, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  }
  const CurrentContext context_;
};

TEST_F(CudaDouble, memory_that_was_freed_is_given_out_again_at_the_same_address_with_a_new_id) {
  const CUdeviceptr first = alloc(32 * kKiB);
  const uint64_t id = id_of(first);
  ASSERT_EQ(cuMemFree(first), CUDA_SUCCESS);
  const CUdeviceptr second = alloc(64 * kKiB);
  EXPECT_EQ(second, first);
  EXPECT_GT(id_of(second), id);
  EXPECT_EQ(id_of(second + 100), id_of(second));
  EXPECT_EQ(cuMemFree(second), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(second), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CudaDouble, a_pointer_inside_an_allocation_tells_its_range) {
  const CUdeviceptr at = alloc(10000);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  unsigned type = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                 CU_POINTER_ATTRIBUTE_MEMORY_TYPE};
  void* values[] = {&base, &bytes, &type};
  ASSERT_EQ(cuPointerGetAttributes(3, names, values, at + 9999), CUDA_SUCCESS);
  EXPECT_EQ(base, at);
  EXPECT_EQ(bytes, 10000u);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  int host = 0;
  ASSERT_EQ(cuPointerGetAttributes(3, names, values, reinterpret_cast<CUdeviceptr>(&host)), CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(bytes, 0u);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

TEST_F(CudaDouble, a_reset_frees_what_is_in_the_context_which_works_again_when_it_is_retained) {
  alloc(4096);
  CUipcMemHandle handle;
  uint64_t id = 0;
  ASSERT_EQ(cuda_double_foreign_alloc(1000001, 0x10000, 4096, &handle, &id), CUDA_SUCCESS);
  CUdeviceptr mapped = 0, at = 0;
  ASSERT_EQ(open(handle, &mapped), CUDA_SUCCESS);
  const uint64_t mapped_id = id_of(mapped);
  ASSERT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_used(), 0u);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  unsigned flags = 0;
  int active = 1;
  ASSERT_EQ(cuDevicePrimaryCtxGetState(0, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuMemAlloc(&at, 4096), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, context_.get());
  ASSERT_EQ(open(handle, &mapped), CUDA_SUCCESS);
  EXPECT_NE(id_of(mapped), mapped_id);
  EXPECT_EQ(cuIpcCloseMemHandle(mapped), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_foreign_free(1000001, 0x10000), CUDA_SUCCESS);
}

TEST_F(CudaDouble, ones_own_handle_cannot_be_opened) {
  const CUdeviceptr at = alloc(4096);
  CUipcMemHandle handle;
  ASSERT_EQ(cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
  CUdeviceptr mapped = 0;
  EXPECT_EQ(open(handle, &mapped), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
}

TEST_F(CudaDouble, a_newer_allocation_is_already_mapped_while_the_older_one_is_open) {
  CUipcMemHandle older, newer;
  uint64_t id = 0;
  CUdeviceptr mapped = 0, other = 0;
  ASSERT_EQ(cuda_double_foreign_alloc(7, 0x10000, 32 * kKiB, &older, &id), CUDA_SUCCESS);
  ASSERT_EQ(open(older, &mapped), CUDA_SUCCESS);
  ASSERT_EQ(cuda_double_foreign_free(7, 0x10000), CUDA_SUCCESS);
  ASSERT_EQ(cuda_double_foreign_alloc(7, 0x10000, 64 * kKiB, &newer, &id), CUDA_SUCCESS);
  EXPECT_EQ(open(newer, &other), CUDA_ERROR_ALREADY_MAPPED);
  ASSERT_EQ(cuIpcCloseMemHandle(mapped), CUDA_SUCCESS);
  EXPECT_EQ(open(older, &other), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(open(newer, &other), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_foreign_free(7, 0x10000), CUDA_SUCCESS);
}

// Its first allocation may have the address and the id of the other's.
TEST_F(CudaDouble, a_process_that_got_the_pid_of_another_one_is_another_exporter) {
  CUipcMemHandle of_first, of_second;
  uint64_t id = 0;
  CUdeviceptr mapped = 0, other = 0;
  ASSERT_EQ(cuda_double_foreign_alloc(7, 0x10000, 4096, &of_first, &id), CUDA_SUCCESS);
  ASSERT_EQ(open(of_first, &mapped), CUDA_SUCCESS);
  cuda_double_foreign_restart(7);
  ASSERT_EQ(cuda_double_foreign_alloc(7, 0x10000, 4096, &of_second, &id), CUDA_SUCCESS);
  ASSERT_EQ(open(of_second, &other), CUDA_SUCCESS);
  EXPECT_NE(mapped, other);
  EXPECT_EQ(cuIpcCloseMemHandle(mapped), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(other), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_foreign_free(7, 0x10000), CUDA_SUCCESS);
}

TEST_F(CudaDouble, the_same_handle_again_counts_and_gives_the_same_address) {
  CUipcMemHandle handle;
  uint64_t id = 0;
  CUdeviceptr first = 0, second = 0;
  ASSERT_EQ(cuda_double_foreign_alloc(7, 0x10000, 4096, &handle, &id), CUDA_SUCCESS);
  ASSERT_EQ(open(handle, &first), CUDA_SUCCESS);
  ASSERT_EQ(open(handle, &second), CUDA_SUCCESS);
  EXPECT_EQ(first, second);
  EXPECT_EQ(cuda_double_open_handles(), 2u);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_open_handles(), 1u);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuda_double_foreign_free(7, 0x10000), CUDA_SUCCESS);
}

TEST_F(CudaDouble, calls_fail_on_order_and_are_counted) {
  cuda_double_forget();
  cuda_double_fail("cuMemAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY, 0);
  CUdeviceptr first = alloc(4096), second = 0;
  EXPECT_EQ(cuMemAlloc(&second, 4096), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemAlloc(&second, 4096), CUDA_SUCCESS);
  EXPECT_EQ(cuda_double_calls("cuMemAlloc"), 3u);
  EXPECT_EQ(cuMemFree(first), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree(second), CUDA_SUCCESS);
}

TEST_F(CudaDouble, without_a_context_nothing_is_allocated_or_opened) {
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  CUdeviceptr at = 0;
  EXPECT_EQ(cuMemAlloc(&at, 4096), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(open(CUipcMemHandle{}, &at), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxPushCurrent(context_.get()), CUDA_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
