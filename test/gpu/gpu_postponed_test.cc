// SPDX-License-Identifier: BSD-3-Clause
// GPU memory and events that come at a bad moment: postponed, because a signal handler causes them on a thread that
// holds a lock of hooks, or between two steps of a release. The tests hold such a lock or take such steps themselves,
// so they are linked with the library statically.
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "base/registration/thread.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"
#include "config.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/mpool.h"
#include "test/fake/cuda/cuda_context.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

const Settings::value_type kFolder = {"mca_base_component_path", PINRAIL_TEST_BUILD "/components/.libs"};

class PostponedEvents : public ::testing::Test {
 protected:
  CUdeviceptr at() const { return memory_.at(); }
  void* pointer() const { return memory_.pointer(); }

  const CurrentContext context_;
  const GpuMemory memory_{PINRAIL_GPU_IPC};
  HookMutex mutex_{LockRank::index, deferred::kLocks};
};

// gate/T2: the thread that reported it in a signal handler holds the gate for it, and the free has happened meanwhile.
TEST_F(PostponedEvents, an_event_that_was_postponed_is_not_waited_for_with_the_gate_held) {
  const Library library({{"mpool_gpusm_free", "defer"}, {"mpool_gpusm_free_timeout", "10000"}, kFolder});
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t block = pool.block_of(pointer(), GpuMemory::kBytes);
  PeersSlots importer(block);
  ASSERT_TRUE(slots::enter(importer.word(block.slot), block.slot_word));
  const auto begin = std::chrono::steady_clock::now();
  {
    const Guard guard(mutex_);
    pinrail_monitor_report(pointer(), 1);
    EXPECT_TRUE(is_alive(block));
    EXPECT_FALSE(gate::is_open());
    EXPECT_EQ(deferred::depth_hook()->gates, 1u);
  }
  EXPECT_FALSE(is_alive(block));
  EXPECT_TRUE(gate::is_open());
  EXPECT_EQ(deferred::depth_hook()->gates, 0u);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  slots::leave(importer.word(block.slot), block.slot_word);
}

// A handler has invalidated the range of a pool, of any memory, which another thread destroys before the event is
// delivered: the pool is named by its address there.
TEST_F(PostponedEvents, a_pool_is_not_destroyed_before_what_was_postponed_for_it_is_delivered) {
  constexpr uintptr_t kBase = 0x10000000;
  const Library library({kFolder, {"monitor", "external"}});
  const fake::FakeRegistrar registrar;
  Pool pool(registrar);
  pool.use(kBase, kPage);
  std::atomic<pid_t> destroyer{0};
  std::atomic<bool> is_destroyed{false};
  std::thread other;
  {
    const Guard guard(mutex_);
    EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), reinterpret_cast<void*>(kBase), kPage), PINRAIL_SUCCESS);
    other = std::thread([&] {
      destroyer = static_cast<pid_t>(syscall(SYS_gettid));
      EXPECT_EQ(pool.close(0), PINRAIL_SUCCESS);
      is_destroyed = true;
    });
    constexpr int kNaps = 100;  // the gate's waiter takes one nap after the other
    int naps = 0;
    EXPECT_TRUE(comes_true([&] {
      if (sleeps(std::to_string(destroyer.load()))) ++naps;
      return is_destroyed.load() || naps >= kNaps;
    }));
    EXPECT_FALSE(is_destroyed.load());
  }
  other.join();
  EXPECT_TRUE(is_destroyed.load());
  EXPECT_EQ(registrar.deregistered(PINRAIL_REASON_INVALIDATED), 1u);
}

// Of events that are postponed only those of the same kinds are united.

TEST_F(PostponedEvents, host_memory_on_both_sides_of_an_export_ends_without_it) {
  const Library library({kFolder});
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t block = pool.block_of(pointer(), GpuMemory::kBytes);
  {
    const Guard guard(mutex_);
    for (uintptr_t i = 1; i <= 2 * deferred::kEvents; ++i) {
      monitor::report_hook(PINRAIL_KIND_HOST, at() - i * 4096, 4096);
      monitor::report_hook(PINRAIL_KIND_HOST, at() + (i + 1) * 4096, 4096);
    }
  }
  EXPECT_TRUE(is_alive(block));
  {
    const Guard guard(mutex_);
    monitor::report_hook(PINRAIL_KIND_HOST, at() - 4096, 4096);
    monitor::report_hook(PINRAIL_KIND_GPU, at(), 1);
  }
  EXPECT_FALSE(is_alive(block));
}

}  // namespace
}  // namespace pinrail::test
