// SPDX-License-Identifier: BSD-3-Clause
// R10, C4: an embedder's function that throws, or whose thread ends inside it, leaves no lock, request or count behind;
// and our own calls are no cancellation points.
#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <new>
#include <thread>

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

// R5: a thread that waits for another's registration is cancelled after our call has returned, not inside it.
TEST(Cancellation, does_not_end_a_wait_for_another_thread) {
  const Library library;
  LeavingRegistrar registrar;
  std::atomic<bool> is_inside{false}, may_go_on{false};
  registrar.in_register = [&] {
    is_inside = true;
    while (!may_go_on) usleep(100);
  };
  Pool pool(registrar.table(), {1});
  std::thread first([&] { EXPECT_EQ(pinrail_mpool_deregister(pool.must(kBase, kLength)), PINRAIL_SUCCESS); });
  while (!is_inside) usleep(100);
  struct Second {
    Pool* pool;
    std::atomic<bool> is_back{false};
  } second{&pool, {}};
  pthread_t waiting;
  const auto wait = [](void* pointer) -> void* {
    auto* own = static_cast<Second*>(pointer);
    pinrail_mpool_deregister(own->pool->must(kBase, kLength));
    own->is_back = true;
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&waiting, nullptr, wait, &second), 0);
  usleep(20000);
  pthread_cancel(waiting);
  usleep(20000);
  may_go_on = true;
  pthread_join(waiting, nullptr);
  first.join();
  EXPECT_TRUE(second.is_back);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
