// SPDX-License-Identifier: BSD-3-Clause
// What Open MPI asks of the driver beyond what Pinrail does.
#include <gtest/gtest.h>

#include <cstring>

#include "test/fake/cuda/cuda_context.h"
#include "test/fake/cuda/double_transport.h"

namespace pinrail::test {
namespace {

constexpr size_t kBytes = 4096;

class CudaDoubleTransport : public ::testing::Test {
 protected:
  const CurrentContext context_;
};

TEST_F(CudaDoubleTransport, a_copy_takes_host_and_device_memory_on_either_side) {
  CUstream stream = nullptr;
  CUdeviceptr one = 0, other = 0;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&one, kBytes), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAlloc(&other, kBytes), CUDA_SUCCESS);
  char text[] = "between", read[sizeof(text)] = {};
  EXPECT_EQ(cuMemcpyAsync(one, reinterpret_cast<CUdeviceptr>(text), sizeof(text), stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(other + 8, one, sizeof(text), stream), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(read), other + 8, sizeof(text), stream), CUDA_SUCCESS);
  EXPECT_STREQ(read, text);
  EXPECT_EQ(cuMemcpyAsync(one + 1, other, kBytes, stream), CUDA_ERROR_INVALID_VALUE) << "beyond its end";
  EXPECT_EQ(cuMemFree(one), CUDA_SUCCESS);
  EXPECT_EQ(cuMemcpyAsync(other, one, 8, stream), CUDA_ERROR_INVALID_VALUE) << "freed";
  EXPECT_EQ(cuMemFree(other), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
}

TEST_F(CudaDoubleTransport, a_stream_is_destroyed_once) {
  CUstream stream = nullptr;
  EXPECT_EQ(cuStreamCreate(&stream, 8), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(CudaDoubleTransport, host_memory_is_registered_once_and_unregistered_by_its_start) {
  alignas(64) static char memory[3 * kBytes];
  const auto already = static_cast<CUresult>(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  const auto not_registered = static_cast<CUresult>(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostRegister(memory, 0, 0), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuMemHostRegister(memory + kBytes, kBytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister(memory, kBytes + 1, 0), already);
  EXPECT_EQ(cuMemHostRegister(memory + 2 * kBytes - 1, kBytes, 0), already);
  EXPECT_EQ(cuMemHostRegister(memory, kBytes, 0), CUDA_SUCCESS) << "it ends where the other begins";
  EXPECT_EQ(cuMemHostUnregister(memory + 1), not_registered);
  EXPECT_EQ(cuMemHostUnregister(memory), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory + kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory + kBytes), not_registered);
}

TEST_F(CudaDoubleTransport, devices_have_addresses_on_a_bus_and_are_no_peers_of_themselves) {
  char text[13] = {};
  int can = -1;
  EXPECT_EQ(cuDeviceGetPCIBusId(text, sizeof(text), 0), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000:01:00.0");
  EXPECT_EQ(cuDeviceGetPCIBusId(text, 5, 0), CUDA_SUCCESS);
  EXPECT_STREQ(text, "0000");
  EXPECT_EQ(cuDeviceGetPCIBusId(text, sizeof(text), 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cuDeviceCanAccessPeer(&can, 0, 1), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(CudaDoubleTransport, access_is_told_of_mappings_and_pools_alone) {
  const CUmemLocation here = cuda_double_on(0);
  CUmemLocation there = cuda_double_on(1);
  unsigned long long flags = 0;
  CUmemAccess_flags pool_flags{};
  CUmemoryPool pool = nullptr;
  CUdeviceptr plain = 0;
  ASSERT_EQ(cuMemAlloc(&plain, kBytes), CUDA_SUCCESS);
  EXPECT_EQ(cuMemGetAccess(&flags, &here, plain), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree(plain), CUDA_SUCCESS);
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = here;
  ASSERT_EQ(cuMemPoolCreate(&pool, &properties), CUDA_SUCCESS);
  CUmemLocation of_pool = here;
  EXPECT_EQ(cuMemPoolGetAccess(&pool_flags, pool, &of_pool), CUDA_SUCCESS);
  EXPECT_EQ(pool_flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(cuMemPoolGetAccess(&pool_flags, pool, &there), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuMemPoolGetAccess(&pool_flags, nullptr, &of_pool), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
