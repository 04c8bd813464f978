// SPDX-License-Identifier: BSD-3-Clause
// registrar/cuda_ipc, kinds beyond cuMemAlloc's: physical memory by a descriptor or a fabric handle, stream-ordered
// memory. Exporter and importer are one process here; test/gpu/soak has two.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include "base/slots/process.h"
#include "test/conform/suite/registrar.h"
#include "test/support/cases.h"
#include "test/support/gpu_memory.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

class CudaKinds : public ::testing::TestWithParam<pinrail_gpu_kind_t> {
 protected:
  void SetUp() override {
    descriptors_ = open_descriptors();
    open_with({});
  }
  void TearDown() override {
    cuda_double_forget();
    EXPECT_EQ(cuda_double_context_depth(), 1u);
    device_.reset();
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_used(), 0u);
    EXPECT_EQ(open_descriptors(), descriptors_);
  }
  void open_with(const std::vector<std::pair<std::string, std::string>>& settings) {
    std::string why;
    ASSERT_TRUE(ComponentDevice::open("cuda_ipc", {settings.begin(), settings.end()}, nullptr, &device_, &why).ok())
        << why;
  }
  const pinrail_registrar_t& table() const { return device_->table(); }
  // The block with what the pool adds.
  static pinrail_gpu_block_t block_of(const GpuRegistration& slot) {
    pinrail_gpu_block_t block = slot.block();
    slots::Process self;
    EXPECT_TRUE(slots::this_process(&self).ok());
    block.pid = self.pid;
    block.user = self.user;
    block.start = self.start;
    return block;
  }
  void expect_same_bytes(const GpuRegistration& slot, const GpuMemory& memory, unsigned stamp) const {
    const std::vector<unsigned char> sent = stamped(stamp, 0, 5000);
    std::vector<unsigned char> seen(5000);
    const size_t at = GpuMemory::kBytes - 5000;
    ASSERT_EQ(cuMemcpyHtoD(memory.at() + at, sent.data(), sent.size()), CUDA_SUCCESS);
    ASSERT_EQ(slot.device_read(at, seen.data(), seen.size()).code(), PINRAIL_SUCCESS);
    EXPECT_EQ(seen, sent);
  }
  // An export and an open, and all of it given back; whatever fails. How far it came.
  int once(const GpuMemory& memory) {
    GpuRegistration own(table()), peer(table());
    if (!own.make(memory).ok()) return 0;
    return peer.open(block_of(own)).ok() ? 2 : 1;
  }

  const CurrentContext context_;
  std::unique_ptr<Device> device_;
  size_t descriptors_ = 0;
};

TEST_P(CudaKinds, a_block_opens_the_same_memory_by_each_way) {
  for (const char* way : {"auto", "socket", "pidfd"}) {
    device_.reset();
    open_with({{"fds", way}});
    const GpuMemory memory(GetParam());
    GpuRegistration own(table()), peer(table());
    ASSERT_TRUE(own.make(memory).ok()) << way;
    EXPECT_EQ(own.block().kind, uint32_t{GetParam()});
    ASSERT_TRUE(peer.open(block_of(own)).ok()) << way;
    EXPECT_NE(reinterpret_cast<CUdeviceptr>(peer.reg().base), memory.at());
    expect_same_bytes(peer, memory, 5);
  }
}

TEST_P(CudaKinds, a_thread_without_a_context_may_export_and_open) {
  const GpuMemory memory(GetParam());
  std::thread([&] {
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    EXPECT_EQ(once(memory), 2);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
  }).join();
}

// Another thread's. Its mode is the calling thread's own business.
TEST_P(CudaKinds, a_capture_of_a_stream_goes_on_beside_an_export_and_an_open) {
  const GpuMemory memory(GetParam());
  char byte = 0;
  cuda_double_begin_capture();
  {
    GpuRegistration own(table()), peer(table());
    EXPECT_TRUE(own.make(memory).ok());
    EXPECT_TRUE(peer.open(block_of(own)).ok());
    EXPECT_EQ(peer.device_write(0, &byte, 1).code(), PINRAIL_SUCCESS);
    EXPECT_EQ(peer.device_read(0, &byte, 1).code(), PINRAIL_SUCCESS);
  }
  EXPECT_TRUE(cuda_double_end_capture());
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
  EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

// What is not given back at the first try is at the second.
TEST_P(CudaKinds, whichever_call_of_the_driver_fails_nothing_stays_open) {
  const GpuMemory memory(GetParam());
  ASSERT_EQ(once(memory), 2);
  cuda_double_forget();
  ASSERT_EQ(once(memory), 2);
  const uint64_t calls = cuda_double_calls("*");
  const size_t before = open_descriptors();
  EXPECT_GT(calls, 15u);
  int failed = 0;
  for (const CUresult error : {CUDA_ERROR_UNKNOWN, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    for (uint64_t n = 1; n <= calls; ++n) {
      cuda_double_forget();
      cuda_double_fail("*", n, error, 0);
      failed += once(memory) != 2 ? 1 : 0;
      EXPECT_EQ(cuda_double_open_handles(), 0u) << n;
      EXPECT_EQ(cuda_double_context_depth(), 1u) << n;
      EXPECT_EQ(open_descriptors(), before) << n;
    }
  }
  EXPECT_GT(failed, 20);
}

TEST_P(CudaKinds, a_block_whose_registration_is_gone_is_not_found) {
  GpuMemory memory(GetParam());
  GpuRegistration own(table()), peer(table());
  ASSERT_TRUE(own.make(memory).ok());
  const pinrail_gpu_block_t block = block_of(own);
  ASSERT_TRUE(own.give_back().ok());
  memory.free();
  EXPECT_TRUE(peer.open(block).is(PINRAIL_ERR_NOT_FOUND));
}

TEST_P(CudaKinds, other_memory_at_the_same_address_has_another_id) {
  GpuMemory memory(GetParam());
  pinrail_gpu_range_t before{}, after{};
  before.size = after.size = sizeof(before);
  ASSERT_EQ(table().identify(table().context, memory.pointer(), &before), PINRAIL_SUCCESS);
  memory.replace();
  ASSERT_EQ(table().identify(table().context, memory.pointer(), &after), PINRAIL_SUCCESS);
  EXPECT_EQ(before.base, after.base);
  EXPECT_EQ(before.length, after.length);
  EXPECT_NE(before.buffer_id, after.buffer_id);
}

TEST_P(CudaKinds, memory_that_was_not_made_to_be_shared_is_not_supported) {
  const GpuMemory memory(GetParam(), false);
  GpuRegistration own(table());
  EXPECT_TRUE(own.make(memory).is(PINRAIL_ERR_NOT_SUPPORTED));
}

// The kinds that come by a descriptor.
class CudaDescriptors : public CudaKinds {
 protected:
  static constexpr int kNumbers = 256;  // of descriptors, more than are open
};

TEST_P(CudaDescriptors, a_forged_block_is_refused_and_nothing_stays_open) {
  const GpuMemory memory(GetParam());
  GpuRegistration own(table()), peer(table());
  ASSERT_TRUE(own.make(memory).ok());
  const pinrail_gpu_block_t right = block_of(own);
  const auto refused = [&](pinrail_status_t status, auto&& forge) {
    pinrail_gpu_block_t block = right;
    forge(&block);
    EXPECT_EQ(peer.open(block).code(), status);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  };
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->fd_number ^= 1u << 9; });
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->fd_server ^= 1u << 9; });
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->fd_place = 99999999; });
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->fd_number = 0; });
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->start += 1; });
  refused(PINRAIL_ERR_NOT_FOUND, [](auto* block) { block->pid = 4999999; });
  refused(PINRAIL_ERR_PERM, [](auto* block) { block->user += 1; });
  refused(PINRAIL_ERR_NOT_SUPPORTED, [](auto* block) { block->kind = 5; });
}

// It would keep the memory for as long as it runs.
TEST_P(CudaDescriptors, a_program_that_is_executed_inherits_no_descriptor) {
  const GpuMemory memory(GetParam());
  std::set<int> before;
  for (int i = 0; i < kNumbers; ++i) {
    if (fcntl(i, F_GETFD) >= 0) before.insert(i);
  }
  GpuRegistration own(table());
  ASSERT_TRUE(own.make(memory).ok());
  int ours = 0;
  for (int i = 0; i < kNumbers; ++i) {
    if (before.count(i) != 0 || fcntl(i, F_GETFD) < 0) continue;
    EXPECT_EQ(fcntl(i, F_GETFD), FD_CLOEXEC) << i;
    ++ours;
  }
  EXPECT_EQ(ours, 3) << "the table, the socket, and the memory's";
}

// An eviction would free no descriptor, so the pool is not asked for one (R7).
TEST_P(CudaDescriptors, a_process_that_has_no_descriptor_left_may_try_again) {
  const GpuMemory memory(GetParam());
  GpuRegistration own(table()), peer(table());
  ASSERT_TRUE(own.make(memory).ok());
  const pinrail_gpu_block_t block = block_of(own);
  {
    const FewDescriptors none;
    EXPECT_TRUE(peer.open(block).is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE));
  }
  ASSERT_TRUE(peer.open(block).ok());
}

class CudaPools : public CudaKinds {};

TEST_P(CudaPools, another_kinds_descriptor_is_not_found) {
  const GpuMemory memory(PINRAIL_GPU_VMM), pooled(PINRAIL_GPU_POOL);
  GpuRegistration own(table()), of_pool(table()), peer(table());
  ASSERT_TRUE(own.make(memory).ok());
  ASSERT_TRUE(of_pool.make(pooled).ok());
  pinrail_gpu_block_t block = block_of(of_pool);
  block.fd_number = own.block().fd_number;
  block.fd_place = own.block().fd_place;
  EXPECT_TRUE(peer.open(block).is(PINRAIL_ERR_NOT_FOUND));
}

CUdeviceptr attribute_start(const GpuMemory& memory) {
  CUdeviceptr start = 0;
  EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory.at()), CUDA_SUCCESS);
  return start;
}

TEST_P(CudaPools, the_range_is_the_allocation_and_not_what_its_pool_has_around_it) {
  CUdeviceptr pad = 0;
  ASSERT_EQ(cuMemAlloc(&pad, 4096), CUDA_SUCCESS);
  {
    const GpuMemory memory(GetParam());
    ASSERT_NE(attribute_start(memory), memory.at());
    pinrail_gpu_range_t range{};
    range.size = sizeof(range);
    ASSERT_EQ(table().identify(table().context, static_cast<char*>(memory.pointer()) + 5000, &range), PINRAIL_SUCCESS);
    EXPECT_EQ(range.base, memory.pointer());
    EXPECT_EQ(range.length, GpuMemory::kBytes);
    EXPECT_EQ(once(memory), 2);
    cuda_double_fail("cuMemGetAddressRange", 1, CUDA_ERROR_NOT_SUPPORTED, 1);
    ASSERT_EQ(table().identify(table().context, memory.pointer(), &range), PINRAIL_SUCCESS) << "as older drivers do";
    EXPECT_EQ(reinterpret_cast<CUdeviceptr>(range.base), attribute_start(memory));
    cuda_double_forget();
  }
  ASSERT_EQ(cuMemFree(pad), CUDA_SUCCESS);
}

// The driver has one mapping for all that open an allocation, and counts neither that nor the pool.
TEST_P(CudaPools, an_allocation_stays_open_until_its_last_user_has_closed_it) {
  const GpuMemory memory(GetParam());
  GpuRegistration own(table()), first(table()), second(table());
  ASSERT_TRUE(own.make(memory).ok());
  ASSERT_TRUE(first.open(block_of(own)).ok());
  const size_t open = cuda_double_open_handles();
  ASSERT_TRUE(second.open(block_of(own)).ok());
  EXPECT_EQ(first.reg().base, second.reg().base);
  EXPECT_TRUE(first.give_back().ok());
  EXPECT_EQ(cuda_double_open_handles(), open);
  expect_same_bytes(second, memory, 7);
  ASSERT_TRUE(first.open(block_of(own)).ok());
  EXPECT_TRUE(second.give_back().ok());
  expect_same_bytes(first, memory, 8);
  EXPECT_TRUE(first.give_back().ok());
  EXPECT_EQ(cuda_double_open_handles(), 0u);
}

TEST_P(CudaPools, a_pool_stays_imported_until_nothing_of_it_is_open) {
  const GpuMemory memory(GetParam());
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, GpuMemory::kBytes, memory.pool(), nullptr), CUDA_SUCCESS);
  GpuRegistration own(table()), other(table()), first(table()), second(table());
  ASSERT_TRUE(own.make(memory).ok());
  ASSERT_TRUE(other.make(PINRAIL_KIND_GPU, at, GpuMemory::kBytes).ok());
  ASSERT_TRUE(first.open(block_of(own)).ok());
  ASSERT_TRUE(second.open(block_of(other)).ok());
  const uint64_t before = cuda_double_calls("cuMemPoolDestroy");
  EXPECT_TRUE(first.give_back().ok());
  EXPECT_EQ(cuda_double_calls("cuMemPoolDestroy"), before);
  ASSERT_TRUE(first.open(block_of(own)).ok());
  expect_same_bytes(first, memory, 9);
  EXPECT_TRUE(second.give_back().ok());
  EXPECT_TRUE(first.give_back().ok());
  EXPECT_EQ(cuda_double_calls("cuMemPoolDestroy"), before + 1);
  EXPECT_TRUE(own.give_back().ok());
  EXPECT_TRUE(other.give_back().ok());
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
}

// Of the driver without a count of its own: what one thread has just imported is not what another one ends.
TEST_P(CudaPools, threads_that_open_and_close_one_allocation_do_not_end_each_others) {
  const GpuMemory memory(GetParam());
  GpuRegistration own(table());
  ASSERT_TRUE(own.make(memory).ok());
  std::atomic<int> refused{0};
  on_threads(4, [&] {
    for (int round = 0; round < 200; ++round) {
      GpuRegistration peer(table());
      if (!peer.open(block_of(own)).ok()) {
        ++refused;
        continue;
      }
      char byte = 0;
      EXPECT_EQ(peer.device_read(0, &byte, 1).code(), PINRAIL_SUCCESS);
    }
  });
  EXPECT_EQ(refused, 0);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
}

// What was open before a restart is abandoned, and not counted: the last user of the new life ends it. Another pool's
// registrar is told of the restart at another time.
TEST_P(CudaPools, what_was_open_before_a_restart_is_no_user) {
  const GpuMemory memory(GetParam());
  auto& device = static_cast<ComponentDevice&>(*device_);
  pinrail_registrar_t others{};
  ASSERT_TRUE(device.make_other(&others).ok());
  {
    GpuRegistration own(others), other(others), abandoned(table()), now(table());
    ASSERT_TRUE(own.make(memory).ok());
    ASSERT_TRUE(abandoned.open(block_of(own)).ok());
    ASSERT_TRUE(other.open(block_of(own)).ok());
    ASSERT_EQ(table().restart(table().context), PINRAIL_SUCCESS);
    ASSERT_TRUE(now.open(block_of(own)).ok());
    EXPECT_TRUE(now.give_back().ok());
    abandoned.forget();
    expect_same_bytes(other, memory, 10);
    EXPECT_TRUE(other.give_back().ok());
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  }
  device.end_other(&others);
}

// Who could not close it does not use it any more: the next one that closes it asks the driver again.
TEST_P(CudaPools, what_the_driver_did_not_close_is_closed_with_its_next_user) {
  const GpuMemory memory(GetParam());
  for (const char* function : {"cuMemFree", "cuMemPoolDestroy", "cuCtxPushCurrent"}) {
    SCOPED_TRACE(function);
    GpuRegistration own(table()), first(table()), next(table());
    ASSERT_TRUE(own.make(memory).ok());
    ASSERT_TRUE(first.open(block_of(own)).ok());
    cuda_double_fail(function, 1, CUDA_ERROR_UNKNOWN, 1);
    EXPECT_FALSE(first.give_back().ok());
    cuda_double_forget();
    EXPECT_GT(cuda_double_open_handles(), 0u);
    ASSERT_TRUE(next.open(block_of(own)).ok());
    EXPECT_TRUE(next.give_back().ok());
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  }
}

// Whether the driver tells the mapping's id may differ from one open to the next.
TEST_P(CudaPools, a_mapping_is_one_also_if_the_driver_did_not_tell_its_id) {
  const GpuMemory memory(GetParam());
  GpuRegistration own(table()), first(table()), second(table());
  ASSERT_TRUE(own.make(memory).ok());
  for (const bool is_first : {true, false}) {
    if (is_first) cuda_double_fail("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN, 0);
    ASSERT_TRUE(first.open(block_of(own)).ok());
    if (!is_first) cuda_double_fail("cuPointerGetAttributes", 1, CUDA_ERROR_UNKNOWN, 0);
    ASSERT_TRUE(second.open(block_of(own)).ok());
    EXPECT_TRUE(first.give_back().ok());
    expect_same_bytes(second, memory, 11);
    EXPECT_TRUE(second.give_back().ok());
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  }
}

// Asking spoils the program's pool with a driver of CUDA 13.0.
TEST_P(CudaPools, a_pool_that_was_made_without_descriptors_is_not_asked_for_one) {
  CUmemPoolProps wanted{};
  wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  wanted.location = cuda_double_on(0);
  CUmemoryPool pool = nullptr;
  CUdeviceptr at = 0;
  ASSERT_EQ(cuMemPoolCreate(&pool, &wanted), CUDA_SUCCESS);
  ASSERT_EQ(cuMemAllocFromPoolAsync(&at, GpuMemory::kBytes, pool, nullptr), CUDA_SUCCESS);
  GpuRegistration own(table());
  const uint64_t before = cuda_double_calls("cuMemPoolExportToShareableHandle");
  EXPECT_TRUE(own.make(PINRAIL_KIND_GPU, at, GpuMemory::kBytes).is(PINRAIL_ERR_NOT_SUPPORTED));
  EXPECT_EQ(cuda_double_calls("cuMemPoolExportToShareableHandle"), before);
  ASSERT_EQ(cuMemFreeAsync(at, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemPoolDestroy(pool), CUDA_SUCCESS);
}

std::string name_of(const ::testing::TestParamInfo<pinrail_gpu_kind_t>& kind) {
  const char* const names[] = {"none", "ipc", "vmm", "fabric", "pool"};
  return names[kind.param];
}
INSTANTIATE_TEST_SUITE_P(Kinds, CudaKinds, ::testing::Values(PINRAIL_GPU_VMM, PINRAIL_GPU_FABRIC, PINRAIL_GPU_POOL),
                         name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, CudaDescriptors, ::testing::Values(PINRAIL_GPU_VMM, PINRAIL_GPU_POOL), name_of);
INSTANTIATE_TEST_SUITE_P(Kinds, CudaPools, ::testing::Values(PINRAIL_GPU_POOL), name_of);

// Before the driver is started: by the double there are fabric handles.
const int fabric = setenv("CUDA_DOUBLE_FABRIC", "1", 0);  // NOLINT(concurrency-mt-unsafe): before main

}  // namespace
}  // namespace pinrail::test
