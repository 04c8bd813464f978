// SPDX-License-Identifier: BSD-3-Clause
// registrar/cuda_ipc over the driver double: blocks of one's own memory, mappings of peers', and what the driver
// refuses.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "test/conform/suite/registrar.h"
#include "test/support/cases.h"
#include "test/support/gpu_memory.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kPeer = 77;

class CudaIpc : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ASSERT_TRUE(ComponentDevice::open("cuda_ipc", {}, nullptr, &device_, &why).ok()) << why;
    context_ = std::make_unique<PrimaryContext>();
    ASSERT_EQ(cuCtxPushCurrent(context_->get()), CUDA_SUCCESS);
    ASSERT_EQ(cuMemAlloc(&own_, kOwn), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    peer_ = foreign(0x10000, kBytes);
    cuda_double_forget();
  }
  void TearDown() override {
    cuda_double_forget();
    EXPECT_EQ(cuda_double_foreign_free(kPeer, 0x10000), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(own_), CUDA_SUCCESS);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    auto* device = static_cast<ComponentDevice*>(device_.get());
    EXPECT_TRUE(device->host().missing_topics().empty());
    device_.reset();
    context_.reset();
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT) << "the registrar kept a context";
  }
  static pinrail_gpu_block_t foreign(uint64_t base, size_t bytes) {
    pinrail_gpu_block_t block{};
    CUipcMemHandle handle;
    EXPECT_EQ(cuda_double_foreign_alloc(kPeer, base, bytes, &handle, &block.buffer_id), CUDA_SUCCESS);
    block.kind = PINRAIL_GPU_IPC;
    block.base = base;
    block.length = bytes;
    std::memcpy(block.driver, &handle, sizeof(handle));
    return block;
  }
  const pinrail_registrar_t& table() const { return device_->table(); }

  static constexpr size_t kOwn = 100000, kBytes = 8192;
  std::unique_ptr<Device> device_;
  std::unique_ptr<PrimaryContext> context_;
  CUdeviceptr own_ = 0;
  pinrail_gpu_block_t peer_{};
};

TEST_F(CudaIpc, an_own_allocation_is_identified_by_any_pointer_inside_and_becomes_a_block_and_no_mapping) {
  auto range = sized<pinrail_gpu_range_t>();
  ASSERT_EQ(table().identify(table().context, reinterpret_cast<void*>(own_ + kOwn - 1), &range), PINRAIL_SUCCESS);
  EXPECT_EQ(reinterpret_cast<CUdeviceptr>(range.base), own_);
  EXPECT_EQ(range.length, kOwn);
  EXPECT_EQ(table().identify(table().context, &range, &range), PINRAIL_ERR_NOT_FOUND);
  GpuRegistration slot(table());
  ASSERT_TRUE(slot.make(PINRAIL_KIND_GPU, own_, kOwn).ok());
  EXPECT_EQ(slot.block().kind, uint32_t{PINRAIL_GPU_IPC});
  EXPECT_EQ(slot.block().base, own_);
  EXPECT_EQ(slot.block().length, kOwn);
  EXPECT_NE(slot.block().buffer_id, 0u);
  EXPECT_TRUE(slot.give_back().ok());
  EXPECT_EQ(cuda_double_calls("cuIpcCloseMemHandle"), 0u);
}

TEST_F(CudaIpc, what_is_no_whole_allocation_is_refused) {
  GpuRegistration slot(table());
  EXPECT_TRUE(slot.make(PINRAIL_KIND_GPU, own_ + 1, kOwn - 1).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(slot.make(PINRAIL_KIND_GPU, own_, kOwn + 1).is(PINRAIL_ERR_BAD_PARAM));
  EXPECT_TRUE(slot.make(PINRAIL_KIND_GPU, reinterpret_cast<uintptr_t>(&slot), 8).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(slot.make(PINRAIL_KIND_HOST, own_, kOwn).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_TRUE(slot.make(PINRAIL_KIND_REMOTE, 0x10000, kBytes).is(PINRAIL_ERR_BAD_PARAM)) << "without a block";
  pinrail_gpu_block_t strange = peer_;
  strange.kind = 99;
  EXPECT_TRUE(slot.open(strange).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 0u);
}

TEST_F(CudaIpc, a_peers_memory_is_read_and_written_where_it_is_mapped) {
  GpuRegistration slot(table()), again(table());
  ASSERT_TRUE(slot.open(peer_).ok());
  ASSERT_TRUE(again.open(peer_).ok());
  EXPECT_EQ(slot.reg().base, again.reg().base);
  const std::vector<unsigned char> sent = stamped(3, 0, 1000);
  std::vector<unsigned char> seen(1000);
  ASSERT_EQ(slot.device_write(100, sent.data(), 1000).code(), PINRAIL_SUCCESS);
  ASSERT_EQ(again.device_read(100, seen.data(), 1000).code(), PINRAIL_SUCCESS);
  EXPECT_EQ(seen, sent);
  EXPECT_EQ(slot.device_read(kBytes - 10, seen.data(), 11).code(), PINRAIL_ERR_BAD_PARAM);
}

TEST_F(CudaIpc, what_others_may_read_is_there_when_a_copy_returns) {
  GpuRegistration own(table()), peer(table());
  EXPECT_FALSE(cuda_double_copies_wait(own_));
  ASSERT_TRUE(own.make(PINRAIL_KIND_GPU, own_, kOwn).ok());
  EXPECT_TRUE(cuda_double_copies_wait(own_)) << "a peer may read it";
  EXPECT_TRUE(own.give_back().ok());
  ASSERT_EQ(cuCtxPushCurrent(context_->get()), CUDA_SUCCESS);
  const GpuMemory memory(PINRAIL_GPU_IPC);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  int descriptor = -1;
  uint64_t offset = 1;
  ASSERT_EQ(table().export_dmabuf(table().context, memory.pointer(), GpuMemory::kBytes, &descriptor, &offset),
            PINRAIL_SUCCESS);
  EXPECT_TRUE(cuda_double_copies_wait(memory.at())) << "an RDMA device may read it";
  EXPECT_EQ(fcntl(descriptor, F_GETFD), FD_CLOEXEC);
  close(descriptor);
  ASSERT_TRUE(peer.open(peer_).ok());
  const uint64_t before = cuda_double_calls("cuCtxSynchronize");
  EXPECT_EQ(peer.device_write(0, "x", 1).code(), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_calls("cuCtxSynchronize"), before + 1) << "its owner may read it";
}

TEST_F(CudaIpc, a_capture_of_a_stream_goes_on_beside_an_open) {
  GpuRegistration peer(table());
  cuda_double_begin_capture();
  EXPECT_TRUE(peer.open(peer_).ok());
  EXPECT_TRUE(peer.give_back().ok());
  EXPECT_TRUE(cuda_double_end_capture());
}

// By its attributes it is a GPU's.
TEST_F(CudaIpc, managed_memory_is_not_supported) {
  CUdeviceptr managed = 0;
  ASSERT_EQ(cuCtxPushCurrent(context_->get()), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocManaged(&managed, GpuMemory::kBytes, CU_MEM_ATTACH_GLOBAL), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
  auto* const pointer = reinterpret_cast<void*>(managed);
  auto range = sized<pinrail_gpu_range_t>();
  EXPECT_EQ(table().identify(table().context, pointer, &range), PINRAIL_ERR_NOT_SUPPORTED);
  GpuRegistration slot(table());
  EXPECT_TRUE(slot.make(PINRAIL_KIND_GPU, managed, GpuMemory::kBytes).is(PINRAIL_ERR_NOT_SUPPORTED));
  int descriptor = -1;
  uint64_t offset = 0;
  EXPECT_EQ(table().export_dmabuf(table().context, pointer, GpuMemory::kBytes, &descriptor, &offset),
            PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(cuMemFree(managed), CUDA_SUCCESS);
}

TEST_F(CudaIpc, a_handle_that_is_no_good_value_is_not_found_if_its_GPU_is_here) {
  GpuRegistration slot(table());
  pinrail_gpu_block_t block = peer_;
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_INVALID_VALUE, 1);
  EXPECT_TRUE(slot.open(block).is(PINRAIL_ERR_ERROR)) << "its GPU is not seen";
  CUuuid here{};
  EXPECT_EQ(cuDeviceGetUuid(&here, 0), CUDA_SUCCESS);
  std::memcpy(block.device, here.bytes, sizeof(block.device));
  EXPECT_TRUE(slot.open(block).is(PINRAIL_ERR_NOT_FOUND));
  cuda_double_forget();
  ASSERT_TRUE(slot.open(block).ok());
}

TEST_F(CudaIpc, a_stale_mapping_in_the_way_would_block) {
  GpuRegistration old_one(table()), new_one(table());
  ASSERT_TRUE(old_one.open(peer_).ok());
  ASSERT_EQ(cuda_double_foreign_free(kPeer, 0x10000), CUDA_SUCCESS);
  const pinrail_gpu_block_t newer = foreign(0x10000, 2 * kBytes);
  EXPECT_TRUE(new_one.open(newer).is(PINRAIL_ERR_WOULD_BLOCK));
  ASSERT_TRUE(old_one.give_back().ok());
  EXPECT_TRUE(old_one.open(peer_).is(PINRAIL_ERR_NOT_FOUND)) << "its memory is gone";
  ASSERT_TRUE(new_one.open(newer).ok());
}

TEST_F(CudaIpc, whichever_call_of_the_driver_fails_nothing_stays_open_and_the_context_is_restored) {
  uint64_t calls = 1;
  for (uint64_t n = 1; n <= calls; ++n) {
    cuda_double_forget();
    cuda_double_fail("*", n, CUDA_ERROR_UNKNOWN, 0);
    {
      GpuRegistration own(table()), peer(table());
      own.make(PINRAIL_KIND_GPU, own_, kOwn).ignore();
      peer.open(peer_).ignore();
    }
    calls = std::max(calls, cuda_double_calls("*"));
    EXPECT_EQ(cuda_double_open_handles(), 0u) << n;
    EXPECT_EQ(cuda_double_context_depth(), 0u) << n;
  }
  EXPECT_GT(calls, 10u);
}

TEST_F(CudaIpc, errors_of_the_driver_have_names_of_ours) {
  const std::pair<CUresult, pinrail_status_t> pairs[] = {{CUDA_ERROR_OUT_OF_MEMORY, PINRAIL_ERR_OUT_OF_RESOURCE},
                                                         {CUDA_ERROR_TOO_MANY_PEERS, PINRAIL_ERR_OUT_OF_RESOURCE},
                                                         {CUDA_ERROR_ALREADY_MAPPED, PINRAIL_ERR_WOULD_BLOCK},
                                                         {CUDA_ERROR_INVALID_CONTEXT, PINRAIL_ERR_NOT_SUPPORTED},
                                                         {CUDA_ERROR_NOT_SUPPORTED, PINRAIL_ERR_NOT_SUPPORTED},
                                                         {CUDA_ERROR_NOT_PERMITTED, PINRAIL_ERR_PERM},
                                                         {CUDA_ERROR_UNKNOWN, PINRAIL_ERR_ERROR}};
  for (const auto& [error, status] : pairs) {
    cuda_double_fail("cuIpcOpenMemHandle", 1, error, 0);
    GpuRegistration slot(table());
    EXPECT_EQ(slot.open(peer_).code(), status) << error;
  }
}

TEST_F(CudaIpc, a_forked_child_asks_nothing_of_the_driver) {
  GpuRegistration slot(table());
  ASSERT_TRUE(slot.open(peer_).ok());
  const ChildAnswer answer = answer_of([&] {
    cuda_double_forget();
    GpuRegistration other(table());
    const int64_t refused = other.open(peer_).code();
    return ChildAnswer{refused, slot.give_back().code(), static_cast<int64_t>(cuda_double_calls("*"))};
  });
  EXPECT_EQ(answer[0], PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer[1], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[2], 0);
}

TEST(CudaIpcAbsent, without_a_driver_or_the_device_it_is_not_available) {
  const ComponentDevice::Settings nowhere = {{"library", "libcuda.of.nowhere"}}, no_device = {{"device", "3"}};
  std::string why;
  std::unique_ptr<Device> device;
  EXPECT_TRUE(ComponentDevice::open("cuda_ipc", no_device, nullptr, &device, &why).is(PINRAIL_ERR_NOT_AVAILABLE));
  EXPECT_TRUE(ComponentDevice::open("cuda_ipc", nowhere, nullptr, &device, &why).is(PINRAIL_ERR_NOT_AVAILABLE));
  EXPECT_NE(why.find("libcuda.of.nowhere"), std::string::npos) << why;
}

}  // namespace
}  // namespace pinrail::test
