// SPDX-License-Identifier: BSD-3-Clause
// R10: no call of a pool of GPU memory is a cancellation point, and no event of its memory.
#include <pthread.h>

#include <functional>
#include <memory>

#include "test/fake/cuda/cuda_context.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/leaving_registrar.h"

namespace pinrail::test {
namespace {

// A thread that was cancelled before comes to the end of the body.
void expect_passed(const std::function<void()>& body) {
  bool has_ended = false;
  on_a_thread([&] {
    pthread_cancel(pthread_self());
    body();
    has_ended = true;
  });
  EXPECT_TRUE(has_ended);
}

// A hang is a failure.
class GpuCancel : public ::testing::Test {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override {
    alarm(0);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  }
};
class GpuCancelOf : public GpuCancel, public ::testing::WithParamInterface<pinrail_gpu_kind_t> {};

TEST_F(GpuCancel, not_in_the_life_of_an_importers_pool) {
  const Library library(without_threads());
  const Bystander bystander;
  slots::Exporter exporter;
  ASSERT_TRUE(bystander.make(&exporter, 16));
  const PeerMemory memory(bystander.process.pid, 0x10000, 4096);
  const pinrail_gpu_block_t block = with_slot(memory, bystander.process, &exporter);
  std::unique_ptr<GpuPool> pool;
  expect_passed([&] { pool = std::make_unique<GpuPool>("rgpusm"); });
  expect_passed([&] { pool->use(block); });
  expect_passed([&] { pinrail_mpool_progress(pool->get()); });
  expect_passed([&] { pinrail_mpool_ft_event(pool->get(), PINRAIL_FT_RESTART); });
  expect_passed([&] { pool.reset(); });
  cuda_double_forget();
}

TEST_P(GpuCancelOf, not_in_the_life_of_an_exporters_pool) {
  const CurrentContext context;
  const GpuMemory memory(GetParam());
  const Library library(without_threads());
  std::unique_ptr<GpuPool> pool;
  expect_passed([&] { pool = std::make_unique<GpuPool>("gpusm"); });
  expect_passed([&] { pool->block_of(memory.pointer(), 1); });
  expect_passed([&] { pinrail_mpool_evict(pool->get()); });
  expect_passed([&] { pinrail_mpool_ft_event(pool->get(), PINRAIL_FT_RESTART); });
  expect_passed([&] { pool->block_of(memory.pointer(), 1); });
  expect_passed([&] { pool.reset(); });
}

TEST_P(GpuCancelOf, not_in_a_free_that_waits_for_an_importer) {
  const CurrentContext context;
  const GpuMemory memory(GetParam());
  const Library library(without_threads({{"mpool_gpusm_free", "defer"}, {"mpool_gpusm_free_timeout", "50"}}));
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t block = pool.block_of(memory.pointer(), 1);
  PeersSlots importer(block);
  importer.register_importer(own_process());
  ASSERT_TRUE(importer.enter(block.slot, block.slot_word));
  expect_passed([&] { pinrail_monitor_report(memory.pointer(), GpuMemory::kBytes); });
  importer.leave(block.slot, block.slot_word);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuCancelOf, ::testing::Values(PINRAIL_GPU_IPC, PINRAIL_GPU_VMM, PINRAIL_GPU_POOL));

}  // namespace
}  // namespace pinrail::test
