// SPDX-License-Identifier: BSD-3-Clause
// F2 for GPU memory across processes, over the driver double: what a checkpoint closes, and that after a restart the
// driver hears nothing of what was open in the past life.
#include <atomic>
#include <memory>
#include <random>
#include <thread>

#include "base/core/compiler.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uint64_t kBase = 0x10000;
constexpr uint32_t kPeer = 1000001;  // a pid that no process has

void tell(const GpuPool& pool, pinrail_ft_state_t state) {
  EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), state), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}

class GpuFt : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { cuda_double_forget(); }
  static PoolOptions mode() {
    PoolOptions options;
    options.leave_pinned = GetParam();
    return options;
  }
  static uint64_t closed() { return cuda_double_calls("cuIpcCloseMemHandle"); }
  static uint64_t opened() { return cuda_double_calls("cuIpcOpenMemHandle"); }
  Library library_{without_threads()};
};

TEST_P(GpuFt, after_a_restart_the_driver_hears_nothing_of_the_past_life) {
  // Another peer in each mode, for the double knows no restart.
  std::vector<std::unique_ptr<PeerMemory>> allocations;
  std::vector<pinrail_gpu_block_t> memory;
  for (uint64_t i = 1; i <= 100; ++i) {
    allocations.push_back(std::make_unique<PeerMemory>(kPeer + 1 + GetParam(), i * kBase, 4096));
    memory.push_back(allocations.back()->block);
  }
  GpuPool pool("rgpusm", mode());
  const pinrail_handle_t held = pool.must(memory[0]), twice = pool.must(memory[0]);
  pinrail_handle_t alone{}, dead{};
  EXPECT_EQ(pool.open(memory[1], &alone, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
  std::thread([&] { dead = pool.must(memory[2]); }).join();
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), dead.reg->base, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  for (size_t i = 3; i < memory.size(); ++i) pool.use(memory[i]);
  const uint64_t before = cuda_double_calls("*");

  tell(pool, PINRAIL_FT_RESTART);
  const pinrail_mpool_stats_t figures = pool.stats();
  EXPECT_EQ(figures.registered_bytes + figures.registered_count + figures.indexed + figures.dead_bytes, 0u);
  EXPECT_EQ(pool.referenced(), 0u);
  for (const pinrail_handle_t handle : {held, twice, alone, dead}) drop(handle);
  EXPECT_EQ(pinrail_mpool_deregister(twice), PINRAIL_ERR_BAD_PARAM) << "it was good for one";
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_calls("*"), before);

  const uint64_t asked = opened(), gone = closed();
  const pinrail_handle_t fresh = pool.must(memory[0]);
  pool.use(memory[0]);
  EXPECT_EQ(opened(), asked + 1) << "opened once, and found again";
  EXPECT_EQ(closed(), gone);
  drop(fresh);
  EXPECT_TRUE(pool.invariants_hold());
}

// rgpusm_component/P2: an exporter that defers its frees would wait for us for ever.
TEST_P(GpuFt, after_a_restart_no_exporter_counts_us) {
  Bystander bystander;
  slots::Exporter exporter;
  ASSERT_TRUE(bystander.make(&exporter, 16));
  PeerMemory memory(bystander.process.pid, kBase, 4096);
  const pinrail_gpu_block_t block = with_slot(memory, bystander.process, &exporter);
  GpuPool pool("rgpusm", mode());
  const pinrail_handle_t held = pool.must(block);
  EXPECT_EQ(exporter.importers_hook(block.slot), 1u);
  tell(pool, PINRAIL_FT_RESTART);
  EXPECT_EQ(exporter.importers_hook(block.slot), 0u);
  drop(held);
  EXPECT_EQ(exporter.importers_hook(block.slot), 0u);
}

INSTANTIATE_TEST_SUITE_P(LeavePinned, GpuFt, ::testing::Values(0, 1));

class GpuFtOwner : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(cuMemAlloc(&at_, 8192), CUDA_SUCCESS); }
  void TearDown() override { EXPECT_EQ(cuMemFree(at_), CUDA_SUCCESS); }
  void* memory() const { return reinterpret_cast<void*>(at_); }
  pinrail_gpu_block_t block_of(const GpuPool& pool) const { return pool.block_of(memory(), 8192); }
  const CurrentContext context_;
  CUdeviceptr at_ = 0;
  Library library_{without_threads()};
};

TEST_F(GpuFtOwner, a_checkpoint_ends_the_blocks_without_references) {
  GpuPool pool("gpusm");
  const pinrail_gpu_block_t idle = block_of(pool);
  EXPECT_TRUE(is_alive(idle));
  tell(pool, PINRAIL_FT_CHECKPOINT);
  EXPECT_FALSE(is_alive(idle));
  pinrail_handle_t held{};
  ASSERT_EQ(pinrail_mpool_register(pool.get(), memory(), 8192, 0, 0, &held), PINRAIL_SUCCESS);
  const pinrail_gpu_block_t block = block_of(pool);
  tell(pool, PINRAIL_FT_CHECKPOINT);
  EXPECT_TRUE(is_alive(block));
  drop(held);
}

// The count of deaths begins anew with the segment.
TEST_F(GpuFtOwner, a_restart_ends_all_blocks_and_new_ones_are_good_and_end_as_before) {
  GpuPool pool("gpusm");
  for (int life = 0; life < 2; ++life) {
    pinrail_handle_t held{};
    ASSERT_EQ(pinrail_mpool_register(pool.get(), memory(), 8192, 0, 0, &held), PINRAIL_SUCCESS);
    const pinrail_gpu_block_t past = block_of(pool);
    tell(pool, PINRAIL_FT_RESTART);
    EXPECT_FALSE(is_alive(past));
    EXPECT_EQ(pool.stats().registered_count, 0u);
    EXPECT_TRUE(is_alive(block_of(pool)));
    drop(held);
    EXPECT_EQ(pool.stats().registered_count, 1u) << "the old handle let nothing new go";
    pinrail_monitor_report(memory(), 1);
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(pool.stats().registered_count, 0u) << "what was freed is not closed in life " << life;
  }
}

// What ends with a context, over the driver double: cudaDeviceReset() and its like free memory, close mappings and
// destroy events without a word, and later ones may be where they were.

constexpr size_t kBytes = 8192;

uint64_t opens() { return cuda_double_calls("cuIpcOpenMemHandle"); }
uint64_t closes() { return cuda_double_calls("cuIpcCloseMemHandle"); }

Settings watching() { return without_threads({{"monitor", "cuda"}, {"registrar_cuda_ipc_events", "true"}}); }

class GpuReset : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(__x86_64__) || defined(PINRAIL_UNDER_THREAD_SANITIZER)
    GTEST_SKIP() << "code is patched on x86-64 only, and not under ThreadSanitizer";
#endif
    library_ = std::make_unique<Library>(watching());
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    cuda_double_forget();
  }
  void TearDown() override {
    library_.reset();
    EXPECT_EQ(cuda_double_used(), 0u);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_open_events(), 0u);
  }
  // As a CUDA runtime does it: what it needs is there again when it is needed.
  static void reset() { EXPECT_EQ(cuDevicePrimaryCtxReset(0), CUDA_SUCCESS); }
  static CUdeviceptr alloc() {
    CUcontext context = nullptr;
    CUdeviceptr at = 0;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAlloc(&at, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
    return at;
  }
  static pinrail_gpu_block_t exported(const GpuPool& pool, CUdeviceptr at) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses
    return pool.block_of(reinterpret_cast<void*>(at), 1);
  }
  const CurrentContext context_;
  std::unique_ptr<Library> library_;
};

TEST_F(GpuReset, blocks_of_before_are_dead_and_the_pool_goes_on) {
  const GpuPool pool("gpusm");
  const CUdeviceptr before = alloc();
  const pinrail_gpu_block_t dead = exported(pool, before);
  ASSERT_TRUE(is_alive(dead));
  const std::string said = said_by([&] {
    reset();
    EXPECT_FALSE(is_alive(dead));
    const CUdeviceptr after = alloc();
    ASSERT_EQ(after, before);
    const pinrail_gpu_block_t block = exported(pool, after);
    EXPECT_TRUE(is_alive(block));
    EXPECT_NE(block.buffer_id, dead.buffer_id);
    EXPECT_EQ(cuMemFree(after), CUDA_SUCCESS);
    EXPECT_FALSE(is_alive(block));
  });
  EXPECT_EQ(said, "");
}

TEST_F(GpuReset, what_was_open_before_is_not_found_and_what_is_opened_afterwards_is_not_closed_with_it) {
  const GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, kBytes);
  const pinrail_handle_t before = pool.must(memory.block);
  pinrail_handle_t found{};
  ASSERT_EQ(pinrail_mpool_find(pool.get(), before.reg->base, kBytes, 0, &found), PINRAIL_SUCCESS);
  drop(found);
  reset();
  EXPECT_EQ(pinrail_mpool_find(pool.get(), before.reg->base, kBytes, 0, &found), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  const pinrail_handle_t after = pool.must(memory.block);
  EXPECT_EQ(opens(), 2u);
  ASSERT_EQ(after.reg->base, before.reg->base) << "or this test shows nothing";
  drop(before);
  pool.evict_all();
  EXPECT_EQ(pool.stats().registered_count, 1u);
  EXPECT_EQ(closes(), 0u);
  const uint32_t sent = 0x1234;
  uint32_t seen = 0;
  EXPECT_EQ(pinrail_mpool_device_write(after, 0, &sent, sizeof(sent)), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_device_read(after, 0, &seen, sizeof(seen)), PINRAIL_SUCCESS);
  EXPECT_EQ(seen, sent);
  drop(after);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(closes(), 1u);
}

TEST_F(GpuReset, without_a_monitor_the_program_reports_it) {
  library_.reset();
  library_ = std::make_unique<Library>(without_threads());
  const GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, kBytes);
  pool.use(memory.block);
  pinrail_monitor_report(nullptr, SIZE_MAX);
  reset();
  pool.use(memory.block);
  EXPECT_EQ(opens(), 2u);
  EXPECT_EQ(cuda_double_open_handles(), 1u);
}

// E2, R13, gpu_pool/X7: the gc thread has dealt with the event before the registration is in the index.
TEST_F(GpuReset, what_is_being_opened_meanwhile_is_opened_again) {
  const GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, kBytes);
  for (const uint32_t flags : {uint32_t{0}, uint32_t{PINRAIL_FLAG_CACHE_BYPASS}}) {
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const uint64_t before = opens();
    cuda_double_gate("cuCtxPopCurrent");  // after the memory was opened
    std::thread opener([&] { status = pool.open(memory.block, &handle, flags); });
    while (cuda_double_at_gate() == 0) std::this_thread::yield();
    reset();
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    cuda_double_open_gate();
    opener.join();
    ASSERT_EQ(status, PINRAIL_SUCCESS);
    EXPECT_EQ(opens(), before + 2);
    uint32_t seen = 1;
    EXPECT_EQ(pinrail_mpool_device_read(handle, 0, &seen, sizeof(seen)), PINRAIL_SUCCESS);
    EXPECT_EQ(seen, 0u);
    drop(handle);
    EXPECT_EQ(pool.stats().registered_count, pool.stats().indexed);
    EXPECT_TRUE(pool.invariants_hold());
    pool.evict_all();
  }
}

TEST_F(GpuReset, an_event_of_before_serves_no_more) {
  const GpuPool pool("gpusm");
  const CUdeviceptr before = alloc();
  const pinrail_gpu_block_t old_one = exported(pool, before);
  EXPECT_EQ(cuda_double_open_events(), 1u);
  const std::string said = said_by([&] {
    reset();
    EXPECT_EQ(cuda_double_open_events(), 0u);
    const CUdeviceptr after = alloc();
    const pinrail_gpu_block_t new_one = exported(pool, after);
    EXPECT_EQ(cuda_double_open_events(), 1u);
    EXPECT_NE(std::memcmp(new_one.event, old_one.event, sizeof(new_one.event)), 0);
    const CUdeviceptr more = alloc();  // the registration of before has ended by now, and given its event back
    exported(pool, more);
    EXPECT_EQ(cuMemFree(more), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(after), CUDA_SUCCESS);
    const uint64_t made = cuda_double_calls("cuEventCreate");
    for (int i = 0; i < 6; ++i) {
      const CUdeviceptr at = alloc();
      exported(pool, at);
      EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    }
    EXPECT_EQ(cuda_double_calls("cuEventCreate"), made) << "those that are idle serve again";
  });
  EXPECT_EQ(said, "");
}

TEST_F(GpuReset, an_event_of_the_program_where_one_of_before_was_stays_the_programs) {
  {
    const GpuPool pool("gpusm");
    const pinrail_gpu_block_t old_one = exported(pool, alloc());
    ASSERT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
    reset();
    const CUdeviceptr after = alloc();
    CUevent own = nullptr;
    ASSERT_EQ(cuEventCreate(&own, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_NE(std::memcmp(exported(pool, after).event, old_one.event, sizeof(old_one.event)), 0);
    EXPECT_EQ(cuEventDestroy(own), CUDA_SUCCESS);
    EXPECT_EQ(cuMemFree(after), CUDA_SUCCESS);
  }
  CUevent own[2] = {};
  {
    const GpuPool pool("gpusm");
    const CUdeviceptr at = alloc();
    pinrail_handle_t held{};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): the driver's addresses
    ASSERT_EQ(pinrail_mpool_register(pool.get(), reinterpret_cast<void*>(at), 1, 0, 0, &held), PINRAIL_SUCCESS);
    reset();
    EXPECT_EQ(cuMemFree(alloc()), CUDA_SUCCESS);
    for (CUevent& each : own) ASSERT_EQ(cuEventCreate(&each, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
    EXPECT_EQ(pinrail_mpool_record(held, nullptr), PINRAIL_ERR_BAD_PARAM);
    drop(held);
  }
  for (CUevent each : own) EXPECT_EQ(cuEventDestroy(each), CUDA_SUCCESS) << "the pool that ended has not";
}

// At a program's end, when the driver may have ended before us. What the double has left goes by a reset.
TEST_F(GpuReset, a_driver_that_has_ended_holds_nothing_that_had_to_be_given_back) {
  const PeerMemory memory(kPeer, kBase, kBytes);
  const CUdeviceptr own = alloc();
  {
    GpuPool importer("rgpusm"), exporter("gpusm");
    importer.use(memory.block);
    exported(exporter, own);
    const std::string said = said_by([&] {
      cuda_double_fail("*", 1, CUDA_ERROR_DEINITIALIZED, 1);
      EXPECT_EQ(importer.close(), PINRAIL_SUCCESS);
      EXPECT_EQ(exporter.close(), PINRAIL_SUCCESS);
      cuda_double_forget();
    });
    EXPECT_EQ(said, "");
  }
  reset();
}

TEST_F(GpuReset, the_end_of_any_context_and_a_free_by_the_table_of_cuda_runtimes_are_seen) {
  const GpuPool pool("gpusm");
  const CUdeviceptr at = alloc();
  const pinrail_gpu_block_t block = exported(pool, at);
  EXPECT_EQ(cuCtxDestroy(context_.get()), CUDA_ERROR_INVALID_CONTEXT) << "of primary ones";
  EXPECT_FALSE(is_alive(block)) << "it was told before the driver was";
  const pinrail_gpu_block_t next = exported(pool, at);
  EXPECT_TRUE(is_alive(next)) << "it was not freed in fact";
  EXPECT_EQ(cuda_double_free_by_table(at), CUDA_SUCCESS);
  EXPECT_FALSE(is_alive(next));
}

}  // namespace
}  // namespace pinrail::test
