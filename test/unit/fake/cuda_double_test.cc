// SPDX-License-Identifier: BSD-3-Clause
// The driver double does what the driver is known to do: else tests on it would prove nothing.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "test/fake/cuda/double_transport.h"
#include "test/support/gpu_memory.h"

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

// The driver double's events: what the documentation says of them, and streams that work for as long as a test says.

constexpr unsigned kShared = unsigned{CU_EVENT_INTERPROCESS} | unsigned{CU_EVENT_DISABLE_TIMING};

class CudaDoubleEvents : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cuEventCreate(&event_, kShared), CUDA_SUCCESS); }
  void TearDown() override {
    EXPECT_EQ(cuEventDestroy(event_), CUDA_SUCCESS);
    EXPECT_EQ(cuEventDestroy(event_), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuda_double_open_events(), 0u);
  }
  const CurrentContext context_;
  const CUstream stream_ = reinterpret_cast<CUstream>(this);  // any value will do
  CUevent event_ = nullptr;
};

TEST_F(CudaDoubleEvents, only_those_without_times_can_be_shared) {
  CUevent timed = nullptr;
  CUipcEventHandle handle;
  EXPECT_EQ(cuEventCreate(&timed, CU_EVENT_INTERPROCESS), CUDA_ERROR_INVALID_VALUE);
  ASSERT_EQ(cuEventCreate(&timed, CU_EVENT_DEFAULT), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcGetEventHandle(&handle, timed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuEventDestroy(timed), CUDA_SUCCESS);
  ASSERT_EQ(cuIpcGetEventHandle(&handle, event_), CUDA_SUCCESS);
  EXPECT_EQ(cuIpcOpenEventHandle(&timed, handle), CUDA_ERROR_INVALID_CONTEXT) << "one's own";
  EXPECT_EQ(cuIpcOpenEventHandle(&timed, CUipcEventHandle{}), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(CudaDoubleEvents, one_is_done_when_the_work_before_its_last_record_is) {
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS) << "never recorded";
  cuda_double_begin_work(stream_);
  ASSERT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_NOT_READY);
  ASSERT_EQ(cuStreamWaitEvent(nullptr, event_, 0), CUDA_SUCCESS) << "at once";
  std::thread gpu([&] { cuda_double_end_work(stream_); });
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS) << "or the stream did not wait";
  gpu.join();
}

TEST_F(CudaDoubleEvents, the_last_record_alone_counts) {
  cuda_double_begin_work(stream_);
  ASSERT_EQ(cuEventRecord(event_, stream_), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event_, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(event_), CUDA_SUCCESS);
  cuda_double_end_work(stream_);
}

// This process is the importer, and its child the owner.
TEST(CudaDoubleProcesses, what_its_owner_destroyed_is_of_no_use) {
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child), 0);
  ASSERT_EQ(pipe(to_parent), 0);
  const pid_t child = fork();
  if (child == 0) {
    CUcontext context;
    CUevent event = nullptr;
    CUipcEventHandle handle;
    char go;
    bool well = cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                cuCtxPushCurrent(context) == CUDA_SUCCESS && cuEventCreate(&event, kShared) == CUDA_SUCCESS &&
                cuIpcGetEventHandle(&handle, event) == CUDA_SUCCESS;
    well = write(to_parent[1], &handle, sizeof(handle)) == sizeof(handle) && read(to_child[0], &go, 1) == 1 && well;
    well = cuEventDestroy(event) == CUDA_SUCCESS && write(to_parent[1], &go, 1) == 1 && well;
    _exit(well && read(to_child[0], &go, 1) == 1 ? 0 : 1);
  }
  const CurrentContext context;
  CUevent event = nullptr, late = nullptr;
  CUipcEventHandle handle;
  char go = 'g';
  ASSERT_EQ(read(to_parent[0], &handle, sizeof(handle)), ssize_t{sizeof(handle)});
  ASSERT_EQ(cuIpcOpenEventHandle(&event, handle), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, event, 0), CUDA_SUCCESS) << "never recorded";
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  ASSERT_EQ(write(to_child[1], &go, 1), 1);
  ASSERT_EQ(read(to_parent[0], &go, 1), 1);
  EXPECT_EQ(cuStreamWaitEvent(nullptr, event, 0), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuIpcOpenEventHandle(&late, handle), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuda_double_open_events(), 1u);
  EXPECT_EQ(cuEventDestroy(event), CUDA_SUCCESS);
  ASSERT_EQ(write(to_child[1], &go, 1), 1);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// What Open MPI asks of the driver beyond what Pinrail does.

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
