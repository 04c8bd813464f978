// SPDX-License-Identifier: BSD-3-Clause
// GPUDirect: grdma registers GPU memory whole, by dmabuf, and believes nothing that the driver has not just said. Over
// the driver double, with a device that takes dmabufs.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "test/support/gpu_memory.h"
#include "test/support/library.h"
#include "test/support/process.h"
#include "test/support/registrars.h"

namespace pinrail::test {
namespace {

// The request, and the byte that the dmabuf began with.
struct Told {
  uint32_t kind = 0;
  uintptr_t addr = 0;
  size_t length = 0;
  int first_byte = -1;
};

struct Device {
  explicit Device(uint32_t kinds = uint32_t{PINRAIL_KIND_HOST} | uint32_t{PINRAIL_KIND_DMABUF}) {
    table.size = sizeof(table);
    table.name = "device";
    table.context = this;
    table.kinds = kinds;
    table.granularity = 4096;
    table.register_mem = register_mem;
    table.deregister_mem = deregister_mem;
  }
  static pinrail_status_t register_mem(void* context, const pinrail_register_request_t* request,
                                       pinrail_registration_t* reg) {
    auto* device = static_cast<Device*>(context);
    if ((device->refused & request->kind) != 0) return device->refusal;
    Told told{request->kind, reinterpret_cast<uintptr_t>(request->addr), request->length, -1};
    unsigned char byte = 0;
    if (request->kind == PINRAIL_KIND_DMABUF &&
        pread(request->fd, &byte, 1, static_cast<off_t>(request->fd_offset)) == 1)
      told.first_byte = byte;
    if (device->meanwhile) device->meanwhile();
    device->told.push_back(told);
    device->live[reg] = told;
    return PINRAIL_SUCCESS;
  }
  static pinrail_status_t deregister_mem(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
    auto* device = static_cast<Device*>(context);
    EXPECT_EQ(device->live.erase(reg), 1u);
    device->reasons.push_back(reason);
    if (device->while_deregistering) std::exchange(device->while_deregistering, nullptr)();
    return PINRAIL_SUCCESS;
  }
  pinrail_registrar_t table{};
  uint32_t refused = 0;  // kinds
  pinrail_status_t refusal = PINRAIL_ERR_NOT_SUPPORTED;
  std::function<void()> meanwhile, while_deregistering;  // the latter once
  std::vector<Told> told;
  std::map<const pinrail_registration_t*, Told> live;
  std::vector<pinrail_reason_t> reasons;
};

uintptr_t address_of(const std::vector<char>& host) { return reinterpret_cast<uintptr_t>(host.data()); }

class GrdmaGpu : public ::testing::TestWithParam<pinrail_gpu_kind_t> {
 protected:
  void SetUp() override {
    ASSERT_EQ(library_.status, PINRAIL_SUCCESS);
    open({});
  }
  void TearDown() override {
    cuda_double_forget();
    EXPECT_EQ(close(0), PINRAIL_SUCCESS);
    EXPECT_TRUE(device_.live.empty());
    EXPECT_EQ(cuda_double_used(), 0u);
  }
  void open(const PoolOptions& wanted) {
    pool_.reset();
    pool_ = std::make_unique<test::Pool>(lend(device_.table), wanted, "grdma", PINRAIL_ACCESS_REMOTE_WRITE);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  pinrail_status_t close(uint32_t flags) {
    EXPECT_TRUE(pool_->get() == nullptr || pool_->invariants_hold());
    return pool_->close(flags);
  }
  static void put_byte(const GpuMemory& memory, unsigned char byte) {
    EXPECT_EQ(cuMemcpyHtoD(memory.at(), &byte, 1), CUDA_SUCCESS);
  }
  static uintptr_t in(const GpuMemory& memory, size_t offset) { return memory.at() + offset; }

  const CurrentContext context_;
  const Library library_{Settings{{"mpool_grdma_gpu_registrar", "cuda_ipc"}}};
  Device device_;
  std::unique_ptr<test::Pool> pool_;
};

TEST_P(GrdmaGpu, the_whole_allocation_is_registered_once_by_its_dmabuf) {
  const GpuMemory memory(GetParam());
  put_byte(memory, 42);
  const size_t descriptors = open_descriptors();
  pool_->use(in(memory, 5000), 100);
  pool_->use(in(memory, 100000), 4096);
  pool_->use(memory.at(), GpuMemory::kBytes);
  ASSERT_EQ(device_.told.size(), 1u);
  EXPECT_EQ(device_.told[0].kind, uint32_t{PINRAIL_KIND_DMABUF});
  EXPECT_EQ(device_.told[0].addr, memory.at());
  EXPECT_EQ(device_.told[0].length, GpuMemory::kBytes);
  EXPECT_EQ(device_.told[0].first_byte, 42);
  EXPECT_EQ(open_descriptors(), descriptors) << "the device has its own reference";
  const pinrail_handle_t handle = pool_->must(memory.at(), 1);
  const pinrail_mpool_stats_t stats = pool_->stats();
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.hits, 3u);
  EXPECT_EQ(stats.indexed, 1u);
  EXPECT_EQ(stats.held_count, 1u);
  EXPECT_EQ(stats.held_bytes, GpuMemory::kBytes);
  drop(handle);
}

// R10.
TEST_P(GrdmaGpu, a_thread_that_is_cancelled_inside_the_device_comes_to_the_end_of_the_call) {
  const GpuMemory memory(GetParam());
  device_.meanwhile = [] { pthread_cancel(pthread_self()); };
  const size_t descriptors = open_descriptors();
  pinrail_handle_t handle{};
  on_a_thread([&] { handle = pool_->must(memory.at(), 1); });
  device_.meanwhile = nullptr;
  ASSERT_NE(handle.reg, nullptr);
  EXPECT_EQ(open_descriptors(), descriptors);
  drop(handle);
}

TEST_P(GrdmaGpu, other_memory_at_the_same_address_is_registered_anew) {
  GpuMemory memory(GetParam());
  for (unsigned char round = 1; round <= 5; ++round) {
    put_byte(memory, round);
    pool_->use(in(memory, 8192), 100);
    pool_->use(in(memory, 8192), 100);
    ASSERT_EQ(device_.told.size(), size_t{round}) << "the free was not reported";
    EXPECT_EQ(device_.told.back().first_byte, round);
    memory.replace();
  }
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_.live.size(), 1u);
  ASSERT_EQ(device_.reasons.size(), 4u);
  EXPECT_EQ(device_.reasons[0], PINRAIL_REASON_INVALIDATED);
}

TEST_P(GrdmaGpu, what_is_held_is_not_given_back_although_other_memory_is_there) {
  GpuMemory memory(GetParam());
  const pinrail_handle_t held = pool_->must(memory.at(), 100);
  memory.replace();
  const pinrail_handle_t fresh = pool_->must(memory.at(), 100);
  EXPECT_NE(held.reg, fresh.reg);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_.live.size(), 2u);
  drop(held);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_.live.size(), 1u);
  EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_ERR_BAD_PARAM);
  drop(fresh);
  pinrail_monitor_report(memory.pointer(), 1);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_TRUE(device_.live.empty()) << "a free that was reported kills at once";
}

TEST_P(GrdmaGpu, memory_that_is_replaced_while_it_is_registered_is_registered_again) {
  GpuMemory memory(GetParam());
  put_byte(memory, 1);
  device_.meanwhile = [&] {
    device_.meanwhile = nullptr;
    memory.replace();
    put_byte(memory, 2);
  };
  pool_->use(memory.at(), 100);
  ASSERT_EQ(device_.told.size(), 2u);
  EXPECT_EQ(device_.told[1].first_byte, 2);
  pool_->use(memory.at(), 100);
  EXPECT_EQ(device_.told.size(), 2u);
}

TEST_P(GrdmaGpu, whichever_call_of_the_driver_fails_nothing_is_left) {
  const GpuMemory memory(GetParam());
  cuda_double_forget();
  pool_->use(memory.at(), 100);
  const uint64_t calls = cuda_double_calls("*");
  open({});
  const size_t descriptors = open_descriptors();
  for (uint64_t n = 1; n <= calls; ++n) {
    cuda_double_forget();
    cuda_double_fail("*", n, CUDA_ERROR_UNKNOWN, 0);
    pinrail_handle_t handle{};
    if (pool_->reg(memory.at(), 100, &handle, {}, PINRAIL_FLAG_CACHE_BYPASS) == PINRAIL_SUCCESS) {
      EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << n;
    }
    EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
    EXPECT_TRUE(device_.live.empty()) << n;
    EXPECT_EQ(open_descriptors(), descriptors) << n;
    EXPECT_EQ(cuda_double_context_depth(), 1u) << n;
  }
  cuda_double_forget();
  EXPECT_GT(calls, 4u);
}

std::string name_of(const ::testing::TestParamInfo<pinrail_gpu_kind_t>& kind) {
  const char* const names[] = {"none", "ipc", "vmm", "fabric", "pool"};
  return names[kind.param];
}
INSTANTIATE_TEST_SUITE_P(Kinds, GrdmaGpu, ::testing::Values(PINRAIL_GPU_IPC, PINRAIL_GPU_VMM, PINRAIL_GPU_POOL),
                         name_of);

class GrdmaGpuOnce : public GrdmaGpu {};
INSTANTIATE_TEST_SUITE_P(Kinds, GrdmaGpuOnce, ::testing::Values(PINRAIL_GPU_IPC));

TEST_P(GrdmaGpuOnce, hits_of_host_memory_ask_the_driver_nothing_and_those_of_a_gpus_once) {
  const GpuMemory memory(PINRAIL_GPU_IPC);
  const std::vector<char> host(1 << 20);
  pool_->use(address_of(host), host.size());
  pool_->use(memory.at(), 100);
  EXPECT_EQ(device_.told[0].kind, uint32_t{PINRAIL_KIND_HOST});
  cuda_double_forget();
  for (int i = 0; i < 10; ++i) pool_->use(address_of(host), host.size());
  EXPECT_EQ(cuda_double_calls("*"), 0u);
  for (int i = 0; i < 10; ++i) pool_->use(memory.at(), 100);
  EXPECT_EQ(cuda_double_calls("*"), 10u);
  EXPECT_EQ(device_.told.size(), 2u);
}

// No monitor sees frees of GPU memory here, so a former use of an address proves nothing.
TEST_P(GrdmaGpuOnce, an_address_is_host_memory_and_a_gpus_in_turn) {
  GpuMemory memory(GetParam());
  void* const at = memory.pointer();
  for (int i = 0; i < 3; ++i) {
    device_.told.clear();
    pool_->use(reinterpret_cast<uintptr_t>(at), 4096);
    ASSERT_EQ(device_.told.size(), 1u);
    EXPECT_EQ(device_.told[0].kind, uint32_t{PINRAIL_KIND_DMABUF});
    memory.free();
    constexpr int kFixed = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    ASSERT_EQ(mmap(at, 4096, PROT_READ | PROT_WRITE, kFixed, -1, 0), at);
    pool_->use(reinterpret_cast<uintptr_t>(at), 4096);
    ASSERT_EQ(device_.told.size(), 2u);
    EXPECT_EQ(device_.told[1].kind, uint32_t{PINRAIL_KIND_HOST});
    pinrail_monitor_report(at, 4096);
    ASSERT_EQ(mmap(at, 4096, PROT_NONE, kFixed, -1, 0), at);  // the driver's again
    memory.make();
    ASSERT_EQ(memory.pointer(), at);
  }
}

TEST_P(GrdmaGpuOnce, find_answers_for_the_memory_that_is_there_and_no_range_may_leave_it) {
  GpuMemory memory(PINRAIL_GPU_IPC);
  pinrail_handle_t handle{};
  EXPECT_EQ(pool_->reg(in(memory, 4096), GpuMemory::kBytes, &handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_TRUE(device_.told.empty());
  EXPECT_FALSE(pool_->has(memory.at(), 100));
  pool_->use(memory.at(), 100);
  EXPECT_TRUE(pool_->has(memory.at(), 100));
  memory.replace();
  EXPECT_FALSE(pool_->has(memory.at(), 100));
}

TEST_P(GrdmaGpuOnce, without_dmabufs_peer_memory_is_tried_and_without_that_it_is_not_supported) {
  const GpuMemory memory(PINRAIL_GPU_IPC);
  pinrail_handle_t handle{};
  device_.refused = uint32_t{PINRAIL_KIND_HOST} | uint32_t{PINRAIL_KIND_DMABUF};
  EXPECT_EQ(pool_->reg(memory.at(), 100, &handle), PINRAIL_ERR_NOT_SUPPORTED);
  device_.refused = PINRAIL_KIND_DMABUF;
  pool_->use(memory.at(), 100);
  EXPECT_EQ(device_.told.back().kind, uint32_t{PINRAIL_KIND_HOST});
  EXPECT_EQ(device_.told.back().length, GpuMemory::kBytes);
  open({});
  device_.refused = 0;
  cuda_double_fail("cuMemGetHandleForAddressRange", 1, CUDA_ERROR_NOT_SUPPORTED, 0);
  pool_->use(memory.at(), 100);
  EXPECT_EQ(device_.told.back().kind, uint32_t{PINRAIL_KIND_HOST});
}

TEST_P(GrdmaGpuOnce, host_and_gpu_memory_share_the_limits_and_the_order_of_eviction) {
  open(at_most(1));
  const GpuMemory memory(PINRAIL_GPU_IPC);
  const std::vector<char> host(1 << 20);
  for (int i = 0; i < 3; ++i) {
    pool_->use(memory.at(), 100);
    EXPECT_EQ(device_.live.size(), 1u);
    pool_->use(address_of(host), host.size());
    EXPECT_EQ(device_.live.size(), 1u);
  }
  EXPECT_EQ(device_.told.size(), 6u);
  const pinrail_handle_t held = pool_->must(memory.at(), 100);
  pinrail_handle_t handle{};
  EXPECT_EQ(pool_->reg(address_of(host), host.size(), &handle), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  drop(held);
}

TEST_P(GrdmaGpuOnce, a_pool_whose_gpu_memory_is_held_is_busy_and_goes_on) {
  const GpuMemory memory(PINRAIL_GPU_IPC);
  const std::vector<char> host(1 << 20);
  for (const uintptr_t at : {uintptr_t{memory.at()}, address_of(host)}) {
    const pinrail_handle_t held = pool_->must(at, 100);
    EXPECT_EQ(close(0), PINRAIL_ERR_BUSY);
    drop(held);
    pool_->use(memory.at(), 100);
    pool_->use(address_of(host), 100);
  }
  const pinrail_handle_t held = pool_->must(memory.at(), 100);
  EXPECT_EQ(close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_TRUE(device_.live.empty());
  drop(held);
}

// R10.
TEST_P(GrdmaGpuOnce, a_registrar_may_drop_what_is_held_while_the_pool_is_destroyed) {
  for (const uint32_t flag : {PINRAIL_FLAG_CACHE_BYPASS, PINRAIL_FLAG_PERSISTENT}) {
    open({});
    const GpuMemory cached(PINRAIL_GPU_IPC), memory(PINRAIL_GPU_IPC);
    pool_->use(cached.at(), 100);
    pinrail_handle_t held{};
    ASSERT_EQ(pool_->reg(memory.at(), 100, &held, PINRAIL_ACCESS_REMOTE_WRITE, flag), PINRAIL_SUCCESS);
    // What is dead is given back first.
    EXPECT_EQ(pinrail_mpool_invalidate_range(pool_->get(), reinterpret_cast<void*>(cached.at()), 1), PINRAIL_SUCCESS);
    device_.while_deregistering = [held] { drop(held); };
    EXPECT_EQ(close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
    EXPECT_TRUE(device_.live.empty());
    EXPECT_FALSE(device_.while_deregistering);
  }
}

TEST_P(GrdmaGpuOnce, a_checkpoint_gives_back_gpu_memory_too_and_a_restart_ends_it_without_the_device) {
  const GpuMemory memory(PINRAIL_GPU_IPC);
  pool_->use(memory.at(), 100);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(device_.live.size(), 0u);
  device_.reasons.clear();
  pool_->use(memory.at(), 100);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  EXPECT_TRUE(device_.reasons.empty());
  device_.live.clear();  // of the past life
  pool_->use(memory.at(), 100);
  EXPECT_EQ(device_.told.size(), 3u);
}

TEST_P(GrdmaGpuOnce, without_leave_pinned_nothing_stays) {
  open(not_kept());
  const GpuMemory memory(PINRAIL_GPU_IPC);
  pool_->use(memory.at(), 100);
  EXPECT_TRUE(device_.live.empty());
}

// What knows no GPU memory, or is not there.
TEST(GrdmaGpuRegistrar, one_that_cannot_is_refused_when_the_pool_is_made) {
  Device device;
  pinrail_registrar_choice_t choice{};
  choice.table = &device.table;
  pinrail_mpool_t* pool = nullptr;
  const std::pair<const char*, pinrail_status_t> names[] = {{"mlock", PINRAIL_ERR_NOT_SUPPORTED},
                                                            {"nowhere", PINRAIL_ERR_NOT_FOUND}};
  for (const auto& [name, status] : names) {
    const Settings settings = {{"mpool_grdma_gpu_registrar", name}};
    const Library library(settings);
    ASSERT_EQ(library.status, PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool), status) << name;
  }
}

}  // namespace
}  // namespace pinrail::test
