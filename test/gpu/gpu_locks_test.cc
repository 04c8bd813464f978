// SPDX-License-Identifier: BSD-3-Clause
// R6 for GPU memory: while one thread is inside the driver, however long, all others go on in the same pool.
#include "config.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/registration/thread.h"
#include "base/sync/deferred_hook.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/mpool.h"
#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/registrars.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kA = 1000001, kB = 1000002;  // pids that no process has
// The library is linked statically, so it does not find the folder by where it lies itself.
const Settings::value_type kFolder = {"mca_base_component_path", PINRAIL_TEST_BUILD "/components/.libs"};

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
  const Library library_{without_threads({kFolder})};
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

// GPU memory and events that come at a bad moment: postponed, because a signal handler causes them on a thread that
// holds a lock of hooks, or between two steps of a release. The tests hold such a lock or take such steps themselves,
// so they are linked with the library statically.

class PostponedEvents : public ::testing::Test {
 protected:
  CUdeviceptr at() const { return memory_.at(); }
  void* pointer() const { return memory_.pointer(); }

  const CurrentContext context_;
  const GpuMemory memory_{PINRAIL_GPU_IPC};
  HookMutex mutex_{LockRank::index, deferred::kLocks};
};

pinrail_mpool_t* pool_of_handler = nullptr;
std::atomic<int> handled{0};
void invalidate_in_handler(int) {
  (void)pinrail_mpool_invalidate_range(pool_of_handler, reinterpret_cast<void*>(0x10000), 1);
  ++handled;
}

// E3: the handler may interrupt the call that takes what an earlier event has noted. Without it the program ends by the
// alarm.
TEST_F(PostponedEvents, a_handler_invalidates_a_range_whatever_its_thread_does_with_the_pool) {
  constexpr unsigned kHangSeconds = 60;
  constexpr int kSignals = 2000;
  const Library library(without_threads({kFolder}));
  const GpuPool pool("rgpusm");
  pool_of_handler = pool.get();
  struct sigaction action {
  }, before{};
  action.sa_handler = invalidate_in_handler;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  alarm(kHangSeconds);
  const pthread_t self = pthread_self();
  std::atomic<bool> stop{false};
  std::thread other([&] {
    while (!stop) pthread_kill(self, SIGUSR1);
  });
  while (handled < kSignals) {
    // So that the next call takes what was noted.
    EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), reinterpret_cast<void*>(0x10000), 1), PINRAIL_SUCCESS);
    pinrail_handle_t handle{};
    EXPECT_EQ(pinrail_mpool_find(pool.get(), reinterpret_cast<void*>(0x20000), 1, 0, &handle), PINRAIL_ERR_NOT_FOUND);
  }
  stop = true;
  other.join();
  alarm(0);
  sigaction(SIGUSR1, &before, nullptr);
}

// deferred_hook/H2: a call that begins after the handler has returned is not answered by what it has invalidated.
TEST_F(PostponedEvents, a_peers_memory_is_not_given_out_before_what_was_postponed_is_delivered) {
  const Library library(without_threads({kFolder}));
  const GpuPool pool("rgpusm");
  const PeerMemory memory(kA, 0x10000, 4096);
  const pinrail_handle_t first = pool.must(memory.block);
  void* const at = first.reg->base;
  drop(first);
  const uint64_t opened = cuda_double_calls("cuIpcOpenMemHandle");
  std::atomic<bool> has_answer{false};
  std::thread other;
  {
    const Guard guard(mutex_);
    EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), at, 1), PINRAIL_SUCCESS);
    other = std::thread([&] {
      pool.use(memory.block);
      has_answer = true;
    });
    usleep(50000);
    EXPECT_FALSE(has_answer);
  }
  other.join();
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), opened + 1);
}

// gate/T2: the thread that reported it in a signal handler holds the gate for it, and the free has happened meanwhile.
TEST_F(PostponedEvents, an_event_that_was_postponed_is_not_waited_for_with_the_gate_held) {
  const Library library({{"mpool_gpusm_free", "defer"}, {"mpool_gpusm_free_timeout", "60000"}, kFolder});
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
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
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

// R10: no call of a pool of GPU memory is a cancellation point, and no event of its memory.

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
  const Library library(without_threads({kFolder}));
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
  const Library library(without_threads({kFolder}));
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
  const Library library(without_threads({kFolder, {"mpool_gpusm_free", "defer"}, {"mpool_gpusm_free_timeout", "50"}}));
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
