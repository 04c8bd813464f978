// SPDX-License-Identifier: BSD-3-Clause
// The driver double's events: what the documentation says of them, and streams that work for as long as a test says.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "test/fake/cuda/cuda_context.h"

namespace pinrail::test {
namespace {

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

}  // namespace
}  // namespace pinrail::test
