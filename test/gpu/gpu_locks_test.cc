// SPDX-License-Identifier: BSD-3-Clause
// R6 for GPU memory: while one thread is inside the driver, however long, all others go on in the same pool.
#include <memory>
#include <thread>

#include "test/fake/cuda/cuda_context.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kA = 1000001, kB = 1000002;  // pids that no process has

// A thread that is inside that function of the driver from the beginning to the end of this.
class Inside {
 public:
  template <typename Body>
  Inside(const char* function, Body&& body) {
    cuda_double_gate(function);
    thread_ = std::thread(body);
    while (cuda_double_at_gate() == 0) std::this_thread::yield();
  }
  ~Inside() {
    EXPECT_EQ(cuda_double_open_gate(), 1) << "a thread waited until it came out";
    thread_.join();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::thread thread_;
};

class GpuLocks : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { cuda_double_forget(); }
  void TearDown() override { EXPECT_EQ(cuda_double_open_handles(), 0u); }
  const Library library_{without_threads()};
};

// What another thread may want of the pool: `known` is in its cache, the others are not.
void use_importer(const GpuPool& pool, const PeerMemory& known, const PeerMemory& same, const PeerMemory& other) {
  for (int i = 0; i < 3; ++i) pool.use(known.block);
  pool.use(same.block);
  pool.use(other.block);
  const pinrail_handle_t held = pool.must(other.block);
  pinrail_handle_t found{};
  EXPECT_EQ(pinrail_mpool_find(pool.get(), held.reg->base, 1, 0, &found), PINRAIL_SUCCESS);
  drop(found);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), held.reg->base, 1), PINRAIL_SUCCESS);
  pool.use(same.block);
  drop(held);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_GT(pool.stats().hits, 3u);
}

using GpuLocksOpening = GpuLocks;
TEST_P(GpuLocksOpening, an_open_delays_no_other_call) {
  const GpuPool pool("rgpusm");
  const PeerMemory first(kA, 0x10000, 4096), known(kA, 0x20000, 4096), same(kA, 0x30000, 4096),
      other(kB, 0x10000, 4096);
  pool.use(known.block);
  const Inside inside(GetParam(), [&] { pool.use(first.block); });
  use_importer(pool, known, same, other);
}
INSTANTIATE_TEST_SUITE_P(Calls, GpuLocksOpening,
                         ::testing::Values("cuCtxPushCurrent", "cuIpcOpenMemHandle", "cuCtxPopCurrent"));

using GpuLocksClosing = GpuLocks;
TEST_P(GpuLocksClosing, an_eviction_delays_no_other_call) {
  const GpuPool pool("rgpusm");
  const PeerMemory first(kA, 0x10000, 4096), known(kA, 0x20000, 4096), same(kA, 0x30000, 4096),
      other(kB, 0x10000, 4096);
  pool.use(first.block);
  pool.use(known.block);
  const Inside inside(GetParam(), [&] { EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS); });
  use_importer(pool, known, same, other);
}
TEST_P(GpuLocksClosing, a_close_after_a_release_delays_no_other_call) {
  const GpuPool pool("rgpusm", not_kept());
  const PeerMemory first(kA, 0x10000, 4096), other(kB, 0x10000, 4096);
  const pinrail_handle_t handle = pool.must(first.block), held = pool.must(other.block);
  const Inside inside(GetParam(), [&] { drop(handle); });
  pool.use(other.block);
  drop(held);
  EXPECT_EQ(pool.referenced(), 0u);
}
INSTANTIATE_TEST_SUITE_P(Calls, GpuLocksClosing, ::testing::Values("cuIpcCloseMemHandle", "cuCtxPopCurrent"));

using GpuLocksExporting = GpuLocks;
TEST_P(GpuLocksExporting, an_export_delays_no_other_call_and_no_free) {
  const CurrentContext context;
  const GpuPool pool("gpusm");
  const GpuMemory first(PINRAIL_GPU_IPC), known(PINRAIL_GPU_IPC), other(PINRAIL_GPU_IPC);
  const auto block_of = [&](const GpuMemory& memory) { return pool.block_of(memory.pointer(), 1); };
  const pinrail_gpu_block_t of_known = block_of(known);
  const Inside inside(GetParam(), [&] { block_of(first); });
  EXPECT_EQ(block_of(known).slot_word, of_known.slot_word);
  const pinrail_gpu_block_t of_other = block_of(other);
  pinrail_monitor_report(known.pointer(), 1);
  EXPECT_FALSE(is_alive(of_known));
  EXPECT_TRUE(is_alive(of_other));
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}
INSTANTIATE_TEST_SUITE_P(Calls, GpuLocksExporting,
                         ::testing::Values("cuPointerGetAttributes", "cuPointerSetAttribute", "cuIpcGetMemHandle"));

// R10: what a pool that is being destroyed has left is its own business. An evictor that claimed it would close it
// beside the destroy.
using GpuLocksDestroy = GpuLocks;
TEST_F(GpuLocksDestroy, nothing_is_evicted_from_a_pool_that_is_being_destroyed) {
  const GpuPool pool("rgpusm");
  auto leaving = std::make_unique<GpuPool>("rgpusm");
  const PeerMemory first(kA, 0x10000, 4096), second(kB, 0x20000, 4096), own(kA, 0x30000, 4096);
  leaving->use(first.block);
  leaving->use(second.block);
  pool.use(own.block);
  {
    const Inside inside("cuIpcCloseMemHandle", [&] { leaving.reset(); });
    EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(cuda_double_is_open(kA, 0x30000), 0) << "the oldest that may be evicted";
    EXPECT_EQ(cuda_double_open_handles(), 2u);
    EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  }
  EXPECT_TRUE(pool.invariants_hold());
}

}  // namespace
}  // namespace pinrail::test
