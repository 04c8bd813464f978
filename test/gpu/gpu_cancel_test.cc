// SPDX-License-Identifier: BSD-3-Clause
// R10: no call of a pool of GPU memory is a cancellation point, and no event of its memory.
#include <pthread.h>

#include <chrono>
#include <functional>
#include <memory>

#include "test/fake/cuda/cuda_context.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"

namespace pinrail::test {
namespace {

// Whether a thread that was cancelled before comes to the end of the body.
bool is_passed_by_a_cancelled_thread(const std::function<void()>& body) {
  struct Walk {
    const std::function<void()>& body;
    bool has_ended;
  } walk{body, false};
  const auto run = [](void* pointer) -> void* {
    auto* const own = static_cast<Walk*>(pointer);
    pthread_cancel(pthread_self());
    own->body();
    own->has_ended = true;
    return nullptr;
  };
  pthread_t thread;
  EXPECT_EQ(pthread_create(&thread, nullptr, run, &walk), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  return walk.has_ended;
}

Settings deferring_frees() {
  Settings settings = without_threads();
  settings.emplace_back("mpool_gpusm_free", "defer");
  settings.emplace_back("mpool_gpusm_free_timeout", "50");
  return settings;
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
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool = std::make_unique<GpuPool>("rgpusm"); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool->use(block); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pinrail_mpool_progress(pool->get()); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pinrail_mpool_ft_event(pool->get(), PINRAIL_FT_RESTART); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool.reset(); }));
  cuda_double_forget();
}

TEST_P(GpuCancelOf, not_in_the_life_of_an_exporters_pool) {
  const CurrentContext context;
  const GpuMemory memory(GetParam());
  const Library library(without_threads());
  std::unique_ptr<GpuPool> pool;
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool = std::make_unique<GpuPool>("gpusm"); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool->block_of(memory.pointer(), 1); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pinrail_mpool_evict(pool->get()); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pinrail_mpool_ft_event(pool->get(), PINRAIL_FT_RESTART); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool->block_of(memory.pointer(), 1); }));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pool.reset(); }));
}

TEST_P(GpuCancelOf, not_in_a_free_that_waits_for_an_importer) {
  const CurrentContext context;
  const GpuMemory memory(GetParam());
  const Library library(deferring_frees());
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t block = pool.block_of(memory.pointer(), 1);
  slots::Process self;
  slots::Importer importer;
  ASSERT_TRUE(slots::this_process(&self).ok());
  ASSERT_TRUE(importer.open(block.user, block.pid, block.start, block.segment).ok());
  importer.register_importer(self);
  ASSERT_TRUE(importer.enter(block.slot, block.slot_word));
  EXPECT_TRUE(is_passed_by_a_cancelled_thread([&] { pinrail_monitor_report(memory.pointer(), GpuMemory::kBytes); }));
  importer.leave(block.slot, block.slot_word);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuCancelOf, ::testing::Values(PINRAIL_GPU_IPC, PINRAIL_GPU_VMM, PINRAIL_GPU_POOL));

}  // namespace
}  // namespace pinrail::test
