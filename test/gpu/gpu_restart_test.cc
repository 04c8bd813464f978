// SPDX-License-Identifier: BSD-3-Clause
// A process that was restarted from a checkpoint and is another one now: pools of GPU memory name it as it is, and
// leave alone what is the process's that was checkpointed. Over the driver double, with a peer in a process of its own.
//
// Tests act as another process: a getpid() of the test replaces the C library's: pools are made as a bystander, and
// then this process becomes what it really is, so that its peer can reach it.
#include <fcntl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstdio>
#include <thread>

#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/process.h"

namespace {
std::atomic<pid_t> pid_override{0};  // 0: nothing is
}

extern "C" __attribute__((visibility("default"))) pid_t getpid() noexcept {
  const pid_t pid = pid_override.load();
  return pid != 0 ? pid : static_cast<pid_t>(syscall(SYS_getpid));
}

namespace pinrail::test {
namespace {

struct Seen {
  pinrail_status_t status;
  uint32_t word;  // what the memory begins with
};

// The peer. It fetches descriptors by the socket, which tells whether the server is the right one.
Seen look_at(const GpuPool& pool, const pinrail_gpu_block_t& block) {
  Seen seen{PINRAIL_ERR_ERROR, 0};
  pinrail_handle_t handle{};
  seen.status = pool.open(block, &handle);
  if (seen.status != PINRAIL_SUCCESS) return seen;
  seen.status = pinrail_mpool_device_read(handle, 0, &seen.word, sizeof(seen.word));
  const pinrail_status_t dropped = pinrail_mpool_deregister(handle);
  if (seen.status == PINRAIL_SUCCESS) seen.status = dropped;
  return seen;
}

using PeerProcess = Peer<pinrail_gpu_block_t, Seen>;

int live_as_reader(int socket) {
  {
    const Library library(without_threads({{"registrar_cuda_ipc_fds", "socket"}}));
    const GpuPool pool("rgpusm");
    if (!PeerProcess::serve(socket, [&](const pinrail_gpu_block_t& block) { return look_at(pool, block); })) return 1;
  }
  return cuda_double_open_handles() == 0 && !testing::Test::HasFailure() ? 0 : 1;
}
const PeerProcess& peer = PeerProcess::for_all_tests(live_as_reader);

// Is another process until it ends.
class PidOverride {
 public:
  explicit PidOverride(uint32_t pid) { pid_override = static_cast<pid_t>(pid); }
  ~PidOverride() { pid_override = 0; }
  PidOverride(const PidOverride&) = delete;
  PidOverride& operator=(const PidOverride&) = delete;
};

void restart(const GpuPool& pool) {
  EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  EXPECT_TRUE(pool.invariants_hold());
}

class GpuRestart : public ::testing::TestWithParam<pinrail_gpu_kind_t> {
 protected:
  void SetUp() override { ASSERT_TRUE(slots::this_process(&real_).ok()); }
  static pinrail_gpu_block_t block_of(const GpuPool& pool, const GpuMemory& memory) {
    return pool.block_of(memory.pointer(), GpuMemory::kBytes);
  }
  static void expect_seen(const pinrail_gpu_block_t& block, uint32_t word) {
    const Seen seen = peer.done(block);
    EXPECT_EQ(seen.status, PINRAIL_SUCCESS);
    EXPECT_EQ(seen.word, word);
  }
  std::unique_ptr<GpuPool> made_as_former() const {
    const PidOverride pid(former_.process.pid);
    return std::make_unique<GpuPool>("gpusm");
  }
  static void expect_stale(const pinrail_gpu_block_t& block) {
    EXPECT_EQ(peer.done(block).status, PINRAIL_ERR_NOT_FOUND);
  }

  const CurrentContext context_;
  const Library library_{without_threads()};
  slots::Process real_;
  Bystander former_;  // as which the process was checkpointed
};

TEST_P(GpuRestart, what_is_exported_afterwards_names_the_process_as_it_is) {
  const GpuMemory memory(GetParam());
  memory.put(4711);
  const auto pool = made_as_former();
  former_.end();
  restart(*pool);
  const pinrail_gpu_block_t now = block_of(*pool, memory);
  EXPECT_EQ(now.pid, real_.pid);
  EXPECT_EQ(now.start, real_.start);
  EXPECT_EQ(now.machine, real_.machine);
  expect_seen(now, 4711);
}

TEST_P(GpuRestart, what_the_process_before_exported_stays_its_own_if_it_lives_on) {
  const GpuMemory memory(GetParam());
  const auto pool = made_as_former();
  pinrail_gpu_block_t past{};
  pinrail_handle_t held{};
  {
    const PidOverride pid(former_.process.pid);
    past = block_of(*pool, memory);
    EXPECT_EQ(pinrail_mpool_register(pool->get(), memory.pointer(), 4096, 0, 0, &held), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(past.pid, former_.process.pid);
  EXPECT_EQ(past.start, former_.process.start);
  ASSERT_TRUE(former_.keep_descriptors());
  restart(*pool);
  EXPECT_TRUE(is_alive(past));
  const pinrail_gpu_block_t now = block_of(*pool, memory);
  EXPECT_NE(now.segment, past.segment);
  EXPECT_TRUE(is_alive(now));
  pinrail_monitor_report(memory.pointer(), GpuMemory::kBytes);
  EXPECT_FALSE(is_alive(now));
  drop(held);
  EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
  EXPECT_TRUE(is_alive(past)) << "it is the other process's memory";
}

TEST_P(GpuRestart, a_peer_that_has_it_open_finds_it_stale_and_opens_it_anew) {
  const GpuMemory memory(GetParam());
  memory.put(1);
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t past = block_of(pool, memory);
  expect_seen(past, 1);
  restart(pool);
  expect_stale(past);
  EXPECT_FALSE(is_alive(past));
  memory.put(2);
  expect_seen(block_of(pool, memory), 2);
}

// As a peer would see it that cannot look at the slot.
TEST_P(GpuRestart, no_descriptor_of_the_past_life_is_served) {
  if (GetParam() == PINRAIL_GPU_IPC) return;  // it has none
  const GpuMemory memory(GetParam());
  const GpuPool pool("gpusm");
  pinrail_gpu_block_t past = block_of(pool, memory);
  past.segment = past.slot_word = past.slot = 0;
  seal_block(&past);
  restart(pool);
  expect_stale(past);
  EXPECT_NE(block_of(pool, memory).fd_server, past.fd_server);
}

TEST_P(GpuRestart, restarts_leave_no_descriptor_open) {
  const GpuMemory memory(GetParam());
  const size_t before = open_descriptors();
  GpuPool pool("gpusm");
  block_of(pool, memory);
  const size_t during = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    restart(pool);
    block_of(pool, memory);
    EXPECT_EQ(open_descriptors(), during);
  }
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(GpuRestart, a_restart_that_fails_changes_nothing_and_may_be_tried_again) {
  const GpuMemory memory(GetParam());
  memory.put(3);
  const GpuPool pool("gpusm");
  const pinrail_gpu_block_t past = block_of(pool, memory);
  {
    const PidOverride unknown_process(0x7ffffff0);  // no process has this pid
    EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_RESTART), PINRAIL_ERR_NOT_SUPPORTED);
  }
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(block_of(pool, memory).segment, past.segment);
  expect_seen(past, 3);
  restart(pool);
  expect_stale(past);
}

// A hook looks at the life that it belongs to, whichever it is.
TEST_P(GpuRestart, memory_goes_away_while_the_process_restarts) {
  const GpuMemory memory(GetParam());
  const GpuPool pool("gpusm");
  std::atomic<bool> stop{false};
  std::thread reporter([&] {
    while (!stop) pinrail_monitor_report(memory.pointer(), GpuMemory::kBytes);
  });
  for (int i = 0; i < 50; ++i) {
    const pinrail_gpu_block_t past = block_of(pool, memory);
    restart(pool);
    EXPECT_FALSE(is_alive(past));
  }
  stop = true;
  reporter.join();
  const pinrail_gpu_block_t last = block_of(pool, memory);
  pinrail_monitor_report(memory.pointer(), GpuMemory::kBytes);
  EXPECT_FALSE(is_alive(last));
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuRestart, ::testing::Values(PINRAIL_GPU_IPC, PINRAIL_GPU_VMM, PINRAIL_GPU_POOL));

TEST(GpuRestartMonitor, frees_are_seen_whatever_the_process_is_now) {
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  const CurrentContext context;
  GpuMemory memory(PINRAIL_GPU_IPC);
  Bystander former;
  pid_override = static_cast<pid_t>(former.process.pid);
  const Library library(without_threads({{"monitor", "cuda"}}));
  const GpuPool pool("gpusm");
  pid_override = 0;
  restart(pool);
  const pinrail_gpu_block_t block = pool.block_of(memory.pointer(), 1);
  EXPECT_TRUE(is_alive(block));
  memory.free();
  EXPECT_FALSE(is_alive(block));
#else
  GTEST_SKIP() << "code is patched on x86-64 only, and not what ThreadSanitizer instruments";
#endif
}

// GPUDirect: the registrar of GPU memory gets the restart, too; otherwise it would take this for a forked child.
TEST(GpuRestartDirect, dmabufs_are_made_whatever_the_process_is_now) {
  const CurrentContext context;
  const GpuMemory memory(PINRAIL_GPU_VMM);
  const Bystander former;
  const Library library(Settings{{"mpool_grdma_gpu_registrar", "cuda_ipc"}});
  fake::FakeOptions options;
  options.kinds = uint32_t{PINRAIL_KIND_HOST} | uint32_t{PINRAIL_KIND_DMABUF};
  fake::FakeRegistrar device(options);
  uint32_t kind = 0;
  device.on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) { kind = request.kind; });
  pid_override = static_cast<pid_t>(former.process.pid);
  test::Pool pool(device);
  pid_override = 0;
  ASSERT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  pool.use(memory.at(), GpuMemory::kBytes);
  EXPECT_EQ(kind, uint32_t{PINRAIL_KIND_DMABUF});
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

// The peer's side.
class GpuRestartPeer : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(cuda_double_open_handles(), 0u); }

  const Library library_{without_threads()};
  Bystander exporter_process_, former_;
};

TEST_F(GpuRestartPeer, whose_own_blocks_are_refused_is_the_process_as_it_is) {
  PeerMemory of_former(former_.process.pid, 0x10000, 4096);
  pinrail_gpu_block_t block = of_former.block, own = block;
  block.start = former_.process.start;
  seal_block(&block);
  own.pid = static_cast<uint32_t>(getpid());
  seal_block(&own);
  std::unique_ptr<GpuPool> pool;
  {
    const PidOverride pid(former_.process.pid);
    pool = std::make_unique<GpuPool>("rgpusm");
    EXPECT_EQ(pool->answer_to(block), PINRAIL_ERR_NOT_SUPPORTED);
  }
  restart(*pool);
  EXPECT_EQ(pool->answer_to(own), PINRAIL_ERR_NOT_SUPPORTED);
  pool->use(block);
}

TEST_F(GpuRestartPeer, the_count_of_the_process_before_is_left_as_it_is) {
  slots::Exporter exporter;
  ASSERT_TRUE(exporter_process_.make(&exporter, 4));
  const PeerMemory memory(exporter_process_.process.pid, 0x10000, 4096);
  const pinrail_gpu_block_t block = with_slot(memory, exporter_process_.process, &exporter);
  std::unique_ptr<GpuPool> pool;
  pinrail_handle_t held{};
  {
    const PidOverride pid(former_.process.pid);
    pool = std::make_unique<GpuPool>("rgpusm");
    held = pool->must(block);
  }
  restart(*pool);
  EXPECT_EQ(exporter.importers_hook(block.slot), 1u) << "it has the memory open still, where it lives on";
  drop(held);
  EXPECT_EQ(exporter.importers_hook(block.slot), 1u);
  pool->use(block);
  EXPECT_EQ(exporter.importers_hook(block.slot), 2u);
  EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
  EXPECT_EQ(exporter.importers_hook(block.slot), 1u);
}

TEST_F(GpuRestartPeer, no_segment_that_was_mapped_before_is_believed) {
  slots::Exporter exporter;
  ASSERT_TRUE(exporter_process_.make(&exporter, 4));
  const PeerMemory memory(exporter_process_.process.pid, 0x20000, 4096);
  const pinrail_gpu_block_t block = with_slot(memory, exporter_process_.process, &exporter);
  GpuPool pool("rgpusm");
  pool.use(block);
  exporter_process_.end();
  pool.use(block);
  restart(pool);
  EXPECT_EQ(pool.answer_to(block), PINRAIL_ERR_NOT_FOUND);
}

}  // namespace
}  // namespace pinrail::test
