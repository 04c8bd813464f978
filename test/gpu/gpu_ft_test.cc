// SPDX-License-Identifier: BSD-3-Clause
// F2 for GPU memory across processes, over the driver double: what a checkpoint closes, and that after a restart the
// driver hears nothing of what was open in the past life.
#include <atomic>
#include <random>
#include <thread>

#include "test/fake/cuda/cuda_context.h"
#include "test/gpu/gpu_library.h"
#include "test/support/team.h"

namespace pinrail::test {
namespace {

constexpr uint64_t kBase = 0x10000;

void tell(const GpuPool& pool, pinrail_ft_state_t state) {
  EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), state), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}

// Allocations of one peer that lives, one behind the other. Each peer is another one, for the double knows no restart.
class Peer {
 public:
  explicit Peer(size_t count) {
    for (size_t i = 1; i <= count; ++i) {
      memory_.push_back(std::make_unique<PeerMemory>(bystander_.process.pid, i * kBase, 4096));
      pinrail_gpu_block_t& block = memory_.back()->block;
      block.start = bystander_.process.start;
      seal_block(&block);
    }
  }
  size_t size() const { return memory_.size(); }
  const pinrail_gpu_block_t& operator[](size_t i) const { return memory_[i]->block; }

 private:
  Bystander bystander_;
  std::vector<std::unique_ptr<PeerMemory>> memory_;
};

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

TEST_P(GpuFt, a_checkpoint_closes_what_is_idle_and_leaves_what_is_held) {
  const Peer memory(200);  // more than one round closes
  const size_t before = cuda_double_open_handles();
  GpuPool pool("rgpusm", mode());
  const pinrail_handle_t held = pool.must(memory[0]);
  for (size_t i = 0; i < memory.size(); ++i) pool.use(memory[i]);
  tell(pool, PINRAIL_FT_CONTINUE);
  EXPECT_EQ(cuda_double_open_handles(), before + (GetParam() == 1 ? memory.size() : 1));
  for (const pinrail_ft_state_t state : {PINRAIL_FT_CHECKPOINT, PINRAIL_FT_TERM}) {
    tell(pool, state);
    EXPECT_EQ(cuda_double_open_handles(), before + 1);
    EXPECT_EQ(pool.stats().registered_count, 1u);
    EXPECT_EQ(pool.stats().indexed, 1u);
  }
  drop(held);
  tell(pool, PINRAIL_FT_CHECKPOINT);
  EXPECT_EQ(cuda_double_open_handles(), before);
  EXPECT_EQ(pool.stats().registered_bytes, 0u);
  pool.use(memory[0]);
}

TEST_P(GpuFt, after_a_restart_the_driver_hears_nothing_of_the_past_life) {
  const Peer memory(100);
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

// rgpusm/P2: an exporter that defers its frees would wait for us for ever.
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

TEST_P(GpuFt, checkpoints_come_while_threads_use_the_pool) {
  const Peer memory(16);
  const size_t before = cuda_double_open_handles();
  GpuPool pool("rgpusm", mode());
  std::atomic<bool> stop{false};
  std::atomic<int> rounds{0};
  std::atomic<uint64_t> wrong{0};
  Team threads(3u, [&](unsigned seed) {
    std::mt19937 random(seed);
    for (; !stop; ++rounds) {
      const pinrail_handle_t handle = pool.must(memory[random() % memory.size()]);
      uint32_t seen = 0;
      if (pinrail_mpool_device_read(handle, 0, &seen, sizeof(seen)) != PINRAIL_SUCCESS) ++wrong;
      if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++wrong;
    }
  });
  do {
    tell(pool, PINRAIL_FT_CHECKPOINT);
  } while (rounds < 3000);
  stop = true;
  threads.join();
  EXPECT_EQ(wrong, 0u);
  tell(pool, PINRAIL_FT_CHECKPOINT);
  EXPECT_EQ(cuda_double_open_handles(), before);
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

TEST_F(GpuFtOwner, a_restart_ends_all_blocks_and_new_ones_are_good) {
  GpuPool pool("gpusm");
  pinrail_handle_t held{};
  ASSERT_EQ(pinrail_mpool_register(pool.get(), memory(), 8192, 0, 0, &held), PINRAIL_SUCCESS);
  const pinrail_gpu_block_t past = block_of(pool);
  tell(pool, PINRAIL_FT_RESTART);
  EXPECT_FALSE(is_alive(past));
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_TRUE(is_alive(block_of(pool)));
  EXPECT_EQ(pool.stats().registered_count, 1u);
  drop(held);
  EXPECT_EQ(pool.stats().registered_count, 1u) << "the old handle let nothing new go";
}

// The count of deaths begins anew with the segment.
TEST_F(GpuFtOwner, what_is_freed_after_a_restart_is_closed_as_before_it) {
  GpuPool pool("gpusm");
  for (int life = 0; life < 2; ++life) {
    EXPECT_TRUE(is_alive(block_of(pool)));
    EXPECT_EQ(pool.stats().registered_count, 1u);
    pinrail_monitor_report(memory(), 1);
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(pool.stats().registered_count, 0u) << "what was freed is not closed in life " << life;
    tell(pool, PINRAIL_FT_RESTART);
  }
}

}  // namespace
}  // namespace pinrail::test
