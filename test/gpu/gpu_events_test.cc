// SPDX-License-Identifier: BSD-3-Clause
// Order between the streams of two processes: the owner of GPU memory records, its peer waits and then reads. Over the
// driver double, whose streams work for as long as a test says.
#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"

namespace pinrail::test {
namespace {

// What the peer shall do with the block's memory.
enum class Task : uint32_t { open, wait, read, record, close, race, fail, reset };

struct Order {
  Task task;
  uint32_t nth;  // fail: this call of the driver
  pinrail_gpu_block_t block;
};

struct Answer {
  pinrail_status_t status;
  uint32_t word;  // what the memory begins with
  uint64_t calls, opened, destroyed;
  size_t events, handles;  // open
};

// Holds one block open at a time.
class Reader {
 public:
  Answer obey(const Order& order) {
    Answer answer{};
    cuda_double_forget();
    answer.status = do_task(order, &answer.word);
    answer.calls = cuda_double_calls("*");
    answer.opened = cuda_double_calls("cuIpcOpenEventHandle");
    answer.destroyed = cuda_double_calls("cuEventDestroy");
    answer.events = cuda_double_open_events();
    answer.handles = cuda_double_open_handles();
    return answer;
  }

 private:
  pinrail_status_t do_task(const Order& order, uint32_t* word_out) {
    switch (order.task) {
      case Task::open: return pool_.open(order.block, &handle_);
      case Task::wait: return pinrail_mpool_wait(handle_, nullptr);
      case Task::read: return pinrail_mpool_device_read(handle_, 0, word_out, sizeof(*word_out));
      case Task::record: return pinrail_mpool_record(handle_, nullptr);
      case Task::close: return close();
      case Task::race: return race();
      case Task::fail: return fail(order, word_out);
      case Task::reset: return reset();
    }
    return PINRAIL_ERR_ERROR;
  }
  pinrail_status_t close() {
    const pinrail_status_t dropped = pinrail_mpool_deregister(handle_);
    const pinrail_status_t evicted = pinrail_mpool_evict(pool_.get());
    return dropped != PINRAIL_SUCCESS ? dropped : evicted;
  }
  // One is inside the driver, to open the event, while another one waits.
  pinrail_status_t race() {
    pinrail_status_t first = PINRAIL_ERR_ERROR;
    cuda_double_gate("cuIpcOpenEventHandle");
    std::thread slow([&] { first = pinrail_mpool_wait(handle_, nullptr); });
    while (cuda_double_at_gate() == 0) std::this_thread::yield();
    const pinrail_status_t second = pinrail_mpool_wait(handle_, nullptr);
    cuda_double_open_gate();
    slow.join();
    return first != PINRAIL_SUCCESS ? first : second;
  }
  pinrail_status_t fail(const Order& order, uint32_t* word_out) {
    cuda_double_fail("*", order.nth, CUDA_ERROR_UNKNOWN, 0);
    pinrail_status_t status = pool_.open(order.block, &handle_);
    if (status != PINRAIL_SUCCESS) return status;
    status = pinrail_mpool_wait(handle_, nullptr);
    if (status == PINRAIL_SUCCESS) {
      status = pinrail_mpool_device_read(handle_, 0, word_out, sizeof(*word_out));
    }
    close();
    return status;
  }
  // ERROR: after a reset the peer's event was not opened again, or one of the program's own, where it was, is gone.
  pinrail_status_t reset() {
    cuDevicePrimaryCtxReset(0);
    const CurrentContext context;
    CUevent own = nullptr;
    cuEventCreate(&own, CU_EVENT_DISABLE_TIMING);
    pinrail_status_t status = pinrail_mpool_wait(handle_, nullptr);
    const bool is_anew = cuda_double_calls("cuIpcOpenEventHandle") == 1;
    close();
    if (cuEventDestroy(own) != CUDA_SUCCESS || !is_anew) status = PINRAIL_ERR_ERROR;
    return status;
  }

  const GpuPool pool_{"rgpusm"};
  pinrail_handle_t handle_{};
};

using PeerProcess = Peer<Order, Answer>;

int live_as_reader(int socket) {
  {
    const Library library(without_threads());
    Reader reader;
    if (!PeerProcess::serve(socket, [&](const Order& order) { return reader.obey(order); })) return 1;
  }
  const bool clean = cuda_double_open_handles() + cuda_double_open_events() == 0;
  return clean && !testing::Test::HasFailure() ? 0 : 1;
}
const PeerProcess& peer = PeerProcess::for_all_tests(live_as_reader);

Answer done(Task task, const pinrail_gpu_block_t& block = {}, uint32_t nth = 0) {
  return peer.done({task, nth, block});
}
void expect_done(Task task, const pinrail_gpu_block_t& block = {}) {
  EXPECT_EQ(done(task, block).status, PINRAIL_SUCCESS) << static_cast<int>(task);
}

Settings with_events(const char* value) { return without_threads({{"registrar_cuda_ipc_events", value}}); }

bool has_event(const pinrail_gpu_block_t& block) {
  return std::any_of(std::begin(block.event), std::end(block.event), [](uint8_t byte) { return byte != 0; });
}
bool same_event(const pinrail_gpu_block_t& one, const pinrail_gpu_block_t& other) {
  return std::memcmp(one.event, other.event, sizeof(one.event)) == 0;
}

class GpuEvents : public ::testing::TestWithParam<pinrail_gpu_kind_t> {
 protected:
  virtual Settings settings() const { return with_events("true"); }
  void SetUp() override {
    cuda_double_forget();
    library_ = std::make_unique<Library>(settings());
    memory_ = std::make_unique<GpuMemory>(GetParam());
    pool_ = std::make_unique<GpuPool>("gpusm");
  }
  void TearDown() override {
    pool_.reset();
    memory_.reset();
    library_.reset();
    EXPECT_EQ(events(), left_);
  }
  // Beside those that were there before, which the double, knowing no restart, has for ever.
  size_t events() const { return cuda_double_open_events() - before_; }
  pinrail_handle_t hold(const GpuMemory& memory) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(pinrail_mpool_register(pool_->get(), memory.pointer(), GpuMemory::kBytes, 0, 0, &handle),
              PINRAIL_SUCCESS);
    return handle;
  }
  pinrail_gpu_block_t block_of(const GpuMemory& memory) const {
    return pool_->block_of(memory.pointer(), GpuMemory::kBytes);
  }
  void record(pinrail_handle_t handle) const { EXPECT_EQ(pinrail_mpool_record(handle, stream_), PINRAIL_SUCCESS); }

  const CurrentContext context_;
  const CUstream stream_ = reinterpret_cast<CUstream>(this);  // the double takes any value
  const size_t before_ = cuda_double_open_events();
  size_t left_ = 0;
  std::unique_ptr<Library> library_;
  std::unique_ptr<GpuMemory> memory_;
  std::unique_ptr<GpuPool> pool_;
};
class GpuEventsOff : public GpuEvents {
  Settings settings() const override { return without_threads(); }
};

TEST_P(GpuEvents, a_peer_that_waits_never_sees_a_byte_of_before) {
  const pinrail_handle_t handle = hold(*memory_);
  const pinrail_gpu_block_t block = block_of(*memory_);
  EXPECT_TRUE(has_event(block));
  memory_->put(5);
  expect_done(Task::open, block);
  cuda_double_begin_work(stream_);
  expect_done(Task::wait);
  EXPECT_EQ(done(Task::read).word, 5u) << "where nothing was recorded, there is nothing to wait for";
  cuda_double_end_work(stream_);
  for (uint32_t word = 6; word <= 20; ++word) {
    cuda_double_begin_work(stream_);
    record(handle);
    expect_done(Task::wait);
    peer.begin({Task::read, 0, {}});
    EXPECT_FALSE(peer.has_answered());
    memory_->put(word);
    cuda_double_end_work(stream_);
    EXPECT_EQ(peer.end().word, word);
  }
  EXPECT_EQ(done(Task::close).events, 0u);
  drop(handle);
}

TEST_P(GpuEvents, an_event_outlives_the_registration_and_serves_another_when_its_work_is_done) {
  const GpuMemory other(GetParam()), third(GetParam());
  const pinrail_handle_t handle = hold(*memory_);
  const pinrail_gpu_block_t block = block_of(*memory_);
  memory_->put(1);
  expect_done(Task::open, block);
  cuda_double_begin_work(stream_);
  record(handle);
  drop(handle);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_record(handle, stream_), PINRAIL_ERR_BAD_PARAM) << "it is gone";
  EXPECT_EQ(events(), 1u);
  const pinrail_handle_t next = hold(other);
  EXPECT_FALSE(same_event(block_of(other), block)) << "the peer would not wait for what was recorded first";
  EXPECT_EQ(pinrail_mpool_record(next, nullptr), PINRAIL_SUCCESS);
  drop(next);
  expect_done(Task::wait);
  peer.begin({Task::read, 0, {}});
  EXPECT_FALSE(peer.has_answered());
  memory_->put(2);
  cuda_double_end_work(stream_);
  EXPECT_EQ(peer.end().word, 2u);
  EXPECT_TRUE(same_event(block_of(third), block));
  expect_done(Task::wait);
  EXPECT_EQ(events(), 2u);
  EXPECT_EQ(cuda_double_calls("cuEventDestroy"), 0u);
  expect_done(Task::close);
}

TEST_P(GpuEvents, no_more_events_are_made_than_work_at_a_time) {
  for (int i = 0; i < 50; ++i) {
    cuda_double_begin_work(stream_);
    for (int of_these = 0; of_these < 2; ++of_these) {
      const pinrail_handle_t handle = hold(*memory_);
      record(handle);
      drop(handle);
      EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
    }
    cuda_double_end_work(stream_);
  }
  EXPECT_LE(events(), 4u);
}

TEST_P(GpuEvents, each_side_has_its_own_call) {
  const pinrail_handle_t handle = hold(*memory_);
  EXPECT_EQ(pinrail_mpool_wait(handle, nullptr), PINRAIL_ERR_NOT_SUPPORTED);
  expect_done(Task::open, block_of(*memory_));
  EXPECT_EQ(done(Task::record).status, PINRAIL_ERR_NOT_SUPPORTED);
  expect_done(Task::close);
  EXPECT_EQ(done(Task::wait).status, PINRAIL_ERR_BAD_PARAM) << "spent";
  EXPECT_EQ(pinrail_mpool_record({}, nullptr), PINRAIL_ERR_BAD_PARAM);
  drop(handle);
}

TEST_P(GpuEventsOff, blocks_have_none_unless_that_is_asked_for) {
  const pinrail_handle_t handle = hold(*memory_);
  const pinrail_gpu_block_t block = block_of(*memory_);
  EXPECT_FALSE(has_event(block));
  EXPECT_EQ(pinrail_mpool_record(handle, nullptr), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(cuda_double_calls("cuEventCreate"), 0u);
  expect_done(Task::open, block);
  EXPECT_EQ(done(Task::wait).status, PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(done(Task::close).opened, 0u);
  drop(handle);
}

TEST_P(GpuEvents, a_driver_that_has_none_is_named_once_and_memory_is_exported_without) {
  const GpuMemory other(GetParam());
  cuda_double_fail("cuIpcGetEventHandle", 1, CUDA_ERROR_NOT_SUPPORTED, 1);
  const std::string said = said_by([&] { EXPECT_FALSE(has_event(block_of(*memory_))); });
  EXPECT_NE(said.find("registrar_cuda_ipc_events is on"), std::string::npos) << said;
  EXPECT_EQ(said_by([&] { EXPECT_FALSE(has_event(block_of(other))); }), "");
  EXPECT_EQ(events(), 0u);
}

// Without slots a peer cannot tell the next block from the one that it has opened, whose event may serve another.
TEST_P(GpuEvents, without_slots_blocks_carry_none) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1, before.rlim_max};
  pool_.reset();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  pool_ = std::make_unique<GpuPool>("gpusm");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  const pinrail_gpu_block_t block = block_of(*memory_);
  EXPECT_EQ(block.segment, 0u);
  EXPECT_FALSE(has_event(block));
}

TEST_P(GpuEvents, two_that_wait_first_at_a_time_keep_one_event) {
  expect_done(Task::open, block_of(*memory_));
  const Answer raced = done(Task::race);
  EXPECT_EQ(raced.status, PINRAIL_SUCCESS);
  EXPECT_EQ(raced.opened, 2u);
  EXPECT_EQ(raced.destroyed, 1u);
  EXPECT_EQ(raced.events, 1u);
  EXPECT_EQ(done(Task::wait).opened, 0u) << "it is kept";
  EXPECT_EQ(done(Task::close).events, 0u);
}

TEST_P(GpuEvents, after_a_reset_a_peer_opens_the_event_again) {
  expect_done(Task::open, block_of(*memory_));
  expect_done(Task::wait);
  const Answer after = done(Task::reset);
  EXPECT_EQ(after.status, PINRAIL_SUCCESS);
  EXPECT_EQ(after.events + after.handles, 0u);
}

TEST_P(GpuEvents, whichever_call_of_the_owners_driver_fails_no_event_stays) {
  pool_.reset();
  uint64_t calls = 1;
  for (uint64_t n = 1; n <= calls + 1; ++n) {
    {
      const GpuPool pool("gpusm");
      cuda_double_forget();
      cuda_double_fail("*", n, CUDA_ERROR_UNKNOWN, 0);
      pinrail_handle_t handle{};
      const pinrail_status_t held =
          pinrail_mpool_register(pool.get(), memory_->pointer(), GpuMemory::kBytes, 0, 0, &handle);
      if (held == PINRAIL_SUCCESS) {
        pinrail_mpool_record(handle, stream_);
        EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS) << n;
      }
    }
    calls = std::max(calls, cuda_double_calls("*"));
    EXPECT_EQ(events(), 0u) << n;
    EXPECT_EQ(cuda_double_context_depth(), 1u) << n;
  }
  EXPECT_GT(calls, 10u);
}

TEST_P(GpuEvents, whichever_call_of_the_peers_driver_fails_no_event_stays) {
  const pinrail_gpu_block_t block = block_of(*memory_);
  memory_->put(8);
  uint64_t calls = 1, succeeded = 0;
  for (uint32_t n = 1; n <= calls + 1; ++n) {
    const Answer answer = done(Task::fail, block, n);
    calls = std::max(calls, answer.calls);
    EXPECT_EQ(answer.events + answer.handles, 0u) << n;
    if (answer.status != PINRAIL_SUCCESS) continue;
    EXPECT_EQ(answer.word, 8u) << n;
    ++succeeded;
  }
  EXPECT_GT(calls, 8u);
  EXPECT_GE(succeeded, 1u);
}

TEST_P(GpuEvents, a_restart_makes_new_ones_and_leaves_those_of_before) {
  const GpuMemory other(GetParam());
  const pinrail_handle_t held = hold(*memory_);
  const pinrail_gpu_block_t past = block_of(*memory_), idle = block_of(other);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_record(held, stream_), PINRAIL_ERR_BAD_PARAM);
  drop(held);
  const pinrail_gpu_block_t now = block_of(*memory_);
  EXPECT_TRUE(has_event(now));
  EXPECT_FALSE(same_event(now, past));
  EXPECT_FALSE(same_event(now, idle));
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_calls("cuEventDestroy"), 1u) << "the new life's";
  left_ = 2;
}

const auto kKinds = ::testing::Values(PINRAIL_GPU_IPC, PINRAIL_GPU_VMM, PINRAIL_GPU_POOL);
INSTANTIATE_TEST_SUITE_P(Kinds, GpuEvents, kKinds);
INSTANTIATE_TEST_SUITE_P(Kinds, GpuEventsOff, kKinds);

}  // namespace
}  // namespace pinrail::test
