// SPDX-License-Identifier: BSD-3-Clause
// R10, C4: an embedder's function that throws, or whose thread ends inside it, leaves no lock, request or count behind.
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <new>
#include <thread>
#include <vector>

#include "test/support/leaving_registrar.h"
#include "test/support/library.h"
#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x100000;
constexpr size_t kLength = 0x1000;

struct Case {
  In where;
  Leave how;
  pinrail_thread_mode_t mode;
};

// A hang is a failure.
class Unwinding : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }
};
// Out of what gives a registration back.
class UnwindingBack : public Unwinding {};

// The same range can be registered afterwards, no reference is counted that is not held, and the pool can be destroyed.
void expect_whole(Pool* pool, const LeavingRegistrar& registrar) {
  EXPECT_TRUE(registrar.has_left());
  on_a_thread([&] {
    const pinrail_handle_t handle = pool->must(kBase, kLength);
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  });
  EXPECT_TRUE(pool->invariants_hold());
  EXPECT_EQ(pool->stats().registered_count, pool->stats().indexed);
  EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
}

TEST_P(Unwinding, out_of_a_miss_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {1, PINRAIL_UNSET, 1});
  // In the pool's way, so that a miss gives something back as well.
  EXPECT_EQ(pinrail_mpool_deregister(pool.must(2 * kBase, kLength)), PINRAIL_SUCCESS);
  registrar.leave_in(GetParam().where, GetParam().how);
  on_a_thread([&] {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pool.reg(kBase, kLength, &handle);
    if (status == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
    EXPECT_EQ(GetParam().how, Leave::throws) << "the thread should have ended";
  });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_release_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {0});
  registrar.leave_in(GetParam().where, GetParam().how);
  on_a_thread([&] { pinrail_mpool_deregister(pool.must(kBase, kLength)); });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_drain_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {1});
  for (uintptr_t i = 0; i < 200; ++i) {
    EXPECT_EQ(pinrail_mpool_deregister(pool.must(kBase + 2 * i * kLength, kLength)), PINRAIL_SUCCESS);
  }
  pinrail_monitor_report(reinterpret_cast<void*>(kBase), 400 * kLength);
  registrar.leave_in(GetParam().where, GetParam().how);
  on_a_thread([&] { pinrail_mpool_progress(pool.get()); });
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().dead_bytes, 0u);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  expect_whole(&pool, registrar);
}

const Case kBack[] = {{In::deregister_mem, Leave::throws, PINRAIL_THREAD_CONCURRENT},
                      {In::deregister_mem, Leave::exits, PINRAIL_THREAD_SERIALIZED},
                      {In::deregister_mem, Leave::is_cancelled, PINRAIL_THREAD_CONCURRENT},
                      {In::tail_fini, Leave::throws, PINRAIL_THREAD_CONCURRENT},
                      {In::tail_fini, Leave::exits, PINRAIL_THREAD_CONCURRENT},
                      {In::tail_fini, Leave::is_cancelled, PINRAIL_THREAD_SERIALIZED}};
const Case kForth[] = {{In::register_mem, Leave::throws, PINRAIL_THREAD_CONCURRENT},
                       {In::register_mem, Leave::exits, PINRAIL_THREAD_CONCURRENT},
                       {In::register_mem, Leave::is_cancelled, PINRAIL_THREAD_SERIALIZED},
                       {In::tail_init, Leave::throws, PINRAIL_THREAD_CONCURRENT},
                       {In::tail_init, Leave::exits, PINRAIL_THREAD_SERIALIZED},
                       {In::tail_init, Leave::is_cancelled, PINRAIL_THREAD_CONCURRENT}};
INSTANTIATE_TEST_SUITE_P(back, Unwinding, ::testing::ValuesIn(kBack));
INSTANTIATE_TEST_SUITE_P(forth, Unwinding, ::testing::ValuesIn(kForth));
INSTANTIATE_TEST_SUITE_P(back, UnwindingBack, ::testing::ValuesIn(kBack));

// R5, R10: what waits for a miss goes on when that is unwound.
TEST(Cancellation, of_a_miss_wakes_the_call_that_waits_for_it) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  registrar.hold_registrations();
  Pool pool(registrar.table(), {1});
  registrar.leave_in(In::register_mem, Leave::exits);
  std::thread first([&] { on_a_thread([&] { pool.must(kBase, kLength); }); });
  while (!registrar.is_inside) usleep(100);
  std::thread second([&] { EXPECT_EQ(pinrail_mpool_deregister(pool.must(kBase, kLength)), PINRAIL_SUCCESS); });
  usleep(20000);
  registrar.may_go_on = true;
  first.join();
  second.join();
  expect_whole(&pool, registrar);
  alarm(0);
}

// R10: a job ends when it has released its registrations; the threads that wait for it are woken then.
TEST(UnwindingOf, out_of_a_job_that_gives_back_ends_the_job) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  registrar.in_register = [] { usleep(1000); };
  pinrail_range_t ranges[] = {{reinterpret_cast<void*>(kBase), 100 * kLength},
                              {reinterpret_cast<void*>(kBase + 200 * kLength), kLength}};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = kLength;
  options.threads = 1;
  pinrail_prepin_t* prepin = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool.get(), ranges, 2, 1, &options, &prepin), PINRAIL_SUCCESS);
  for (const pinrail_range_t& range : ranges) {
    EXPECT_EQ(pinrail_prepin_wait_range(prepin, range.addr, kLength), PINRAIL_SUCCESS);
  }
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pinrail_prepin_cancel(prepin); });
  EXPECT_NE(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_TRUE(registrar.has_left());
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "it keeps no reference";
  alarm(0);
}

size_t mapped_pages() {
  std::ifstream file("/proc/self/statm");
  size_t pages = 0;
  file >> pages;
  return pages;
}

// R10: the allocator's mapping ends with its registration.
TEST(UnwindingOf, out_of_an_allocation_or_a_free_leaves_nothing_mapped) {
  constexpr size_t kLarge = size_t{1} << 30;
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  const auto alloc = [&] {
    void* at = nullptr;
    pinrail_mpool_alloc(pool.get(), kLarge, 0, PINRAIL_NODE_ANY, &at);
    return at;
  };
  const size_t before = mapped_pages();
  registrar.leave_in(In::register_mem, Leave::exits);
  on_a_thread([&] { alloc(); });
  EXPECT_TRUE(registrar.has_left());
  void* const at = alloc();
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pinrail_mpool_free(pool.get(), at); });
  EXPECT_TRUE(registrar.has_left());
  EXPECT_LT(mapped_pages(), before + kLarge / 4096 / 2);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

struct NamedPool : AnyPool {
  NamedPool(const char* mpool, const LeavingRegistrar& registrar) {
    PoolOptions options;
    options.leave_pinned = PINRAIL_UNSET;
    make(mpool, lend(registrar.table()), options);
  }
  ~NamedPool() { close(PINRAIL_DESTROY_FORCE); }
  pinrail_status_t reg(const void* at, size_t length, pinrail_handle_t* handle_out, uint32_t flags = 0) const {
    return pinrail_mpool_register(pool_, const_cast<void*>(at), length, 1, flags, handle_out);
  }
  pinrail_status_t use(const void* at, size_t length) const {
    pinrail_handle_t handle;
    const pinrail_status_t answer = reg(at, length, &handle);
    return answer == PINRAIL_SUCCESS ? pinrail_mpool_deregister(handle) : answer;
  }
};

// R10: the device is told once of each, and what was displaced together goes back all the same.
TEST(UnwindingOf, out_of_a_pool_on_demand_leaves_nothing_behind) {
  alarm(60);
  const Library library(Settings{{"mpool_odp_tile_size", "4K"}});
  LeavingRegistrar registrar;
  registrar.page_on_demand();
  NamedPool pool("odp", registrar);
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  auto* const base = reinterpret_cast<char*>(uintptr_t{kBase});
  pinrail_handle_t handle;
  ASSERT_EQ(pool.reg(base, kLength, &handle, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pinrail_mpool_deregister(handle); });
  EXPECT_TRUE(registrar.has_left());
  EXPECT_EQ(pool.stats().registered_count, 0u);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(pool.use(base + i * kLength, kLength), PINRAIL_SUCCESS);
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pool.use(base, 4 * kLength); });
  EXPECT_TRUE(registrar.has_left());
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_count, 1u);
  EXPECT_EQ(registrar.tails.load(), 1);
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
  alarm(0);
}

// gc_thread/W4, E4: what the thread would have given back is given back by the next one.
TEST(UnwindingOf, out_of_the_gc_thread_another_one_takes_its_place) {
  alarm(60);
  const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}});
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  for (int round = 0; round < 3; ++round) {
    for (uintptr_t i = 0; i < 4; ++i) pool.use(kBase + 4 * i * kLength, kLength);
    registrar.leave_in(In::deregister_mem, round == 1 ? Leave::is_cancelled : Leave::exits);
    report(kBase, 64 * kLength);
    EXPECT_TRUE(comes_true([&] { return pool.stats().registered_count == 0; }));
    EXPECT_TRUE(registrar.has_left());
  }
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
  alarm(0);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // the patcher does not see what they unmap
// A call that waits for the thread gets an error, and the next one an answer.
TEST(UnwindingOf, out_of_the_thread_that_registers_everything_no_caller_waits_for_ever) {
  alarm(60);
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  LeavingRegistrar registrar;
  NamedPool pool("mrall", registrar);
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  for (const In where : {In::register_mem, In::tail_init, In::deregister_mem, In::tail_fini}) {
    constexpr size_t kMapped = size_t{1} << 20;
    void* at = mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    registrar.leave_in(where, Leave::exits);
    const bool is_back = where == In::deregister_mem || where == In::tail_fini;
    const size_t hole = is_back ? kMapped / 2 : kPage;
    EXPECT_EQ(munmap(at, hole), 0);
    void* const second = static_cast<char*>(at) + kMapped / 2;
    EXPECT_TRUE(comes_true([&] {
      pinrail_status_t status = PINRAIL_ERR_ERROR;
      // A longer registration may have displaced the one that is used: then its last drop, which gives it back, may be
      // what does not return.
      on_a_thread([&] { status = pool.use(second, kMapped / 2); });
      return status == PINRAIL_SUCCESS && registrar.has_left();
    }));
    EXPECT_EQ(munmap(static_cast<char*>(at) + hole, kMapped - hole), 0);  // the hole may be another thread's by now
  }
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
  alarm(0);
}
#endif

// R10: an advice's own reference is dropped outside of destructors, which a thread that ends must not leave.
TEST(UnwindingOf, out_of_an_advice_that_gives_back_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar;
  registrar.page_on_demand();
  Pool pool(registrar.table(), {0});
  void* const at = reinterpret_cast<void*>(kBase);
  ASSERT_EQ(pinrail_mpool_advise(pool.get(), at, kLength, 1, PINRAIL_ADVICE_PREFETCH), PINRAIL_SUCCESS);
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] {
    (void)pinrail_mpool_advise(pool.get(), at, kLength, 1, PINRAIL_ADVICE_PREFETCH);
    ADD_FAILURE() << "the thread should have ended";
  });
  expect_whole(&pool, registrar);
}

// R10: what was registered ahead and an event has ended since goes back when the stream is closed.
TEST(UnwindingOf, out_of_the_close_of_a_stream_drops_the_rest) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  pinrail_chunk_stream_t* stream = nullptr;
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = kLength;
  options.ahead = 8;
  ASSERT_EQ(pinrail_chunk_stream_open(pool.get(), reinterpret_cast<void*>(kBase), 8 * kLength, 1, &options, &stream),
            PINRAIL_SUCCESS);
  EXPECT_TRUE(comes_true([&] { return pool.stats().indexed == 8; }));
  report(kBase, 8 * kLength);
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pinrail_chunk_stream_close(stream); });
  EXPECT_TRUE(registrar.has_left());
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS) << "the first close did not come to that";
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  alarm(0);
}

// R10: the pins are removed before the first one is given back.
TEST(UnwindingOf, out_of_an_unpin_drops_the_rest) {
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  std::vector<pinrail_range_t> ranges;
  for (uintptr_t i = 0; i < 8; ++i) ranges.push_back({reinterpret_cast<void*>(kBase + 4 * i * kLength), kLength});
  ASSERT_EQ(pinrail_mpool_prepin(pool.get(), ranges.data(), ranges.size(), 1, nullptr, nullptr), PINRAIL_SUCCESS);
  registrar.leave_in(In::deregister_mem, Leave::exits);
  on_a_thread([&] { pinrail_mpool_unpin(pool.get(), ranges.data(), ranges.size(), 1); });
  EXPECT_TRUE(registrar.has_left());
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
