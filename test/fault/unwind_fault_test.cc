// SPDX-License-Identifier: BSD-3-Clause
// R10, C4: an embedder's function that throws leaves no lock, request or count behind.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>

#include "test/support/leaving_registrar.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x100000;
constexpr size_t kLength = 0x1000;

struct Case {
  In where;
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
    drop(handle);
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
  drop(pool.must(2 * kBase, kLength));
  registrar.leave_in(GetParam().where);
  on_a_thread([&] {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pool.reg(kBase, kLength, &handle);
    if (status == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
  });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_release_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {0});
  registrar.leave_in(GetParam().where);
  on_a_thread([&] { pinrail_mpool_deregister(pool.must(kBase, kLength)); });
  expect_whole(&pool, registrar);
}

TEST_P(UnwindingBack, out_of_a_drain_leaves_nothing_behind) {
  const Library library;
  LeavingRegistrar registrar(GetParam().mode);
  Pool pool(registrar.table(), {1});
  for (uintptr_t i = 0; i < 200; ++i) drop(pool.must(kBase + 2 * i * kLength, kLength));
  pinrail_monitor_report(reinterpret_cast<void*>(kBase), 400 * kLength);
  registrar.leave_in(GetParam().where);
  on_a_thread([&] { pinrail_mpool_progress(pool.get()); });
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().dead_bytes, 0u);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  expect_whole(&pool, registrar);
}

const Case kBack[] = {{In::deregister_mem, PINRAIL_THREAD_CONCURRENT},
                      {In::deregister_mem, PINRAIL_THREAD_SERIALIZED},
                      {In::tail_fini, PINRAIL_THREAD_CONCURRENT}};
const Case kForth[] = {{In::register_mem, PINRAIL_THREAD_CONCURRENT},
                       {In::register_mem, PINRAIL_THREAD_SERIALIZED},
                       {In::tail_init, PINRAIL_THREAD_CONCURRENT}};
INSTANTIATE_TEST_SUITE_P(back, Unwinding, ::testing::ValuesIn(kBack));
INSTANTIATE_TEST_SUITE_P(forth, Unwinding, ::testing::ValuesIn(kForth));
INSTANTIATE_TEST_SUITE_P(back, UnwindingBack, ::testing::ValuesIn(kBack));

}  // namespace
}  // namespace pinrail::test
