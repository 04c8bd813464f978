// SPDX-License-Identifier: BSD-3-Clause
// R10, C4: an embedder's function that throws leaves no lock, request or count behind.
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <functional>

#include "test/support/library.h"
#include "test/support/registrars.h"

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

// R10: our own calls are no cancellation points.

// Calls body() on a thread that is to be cancelled, and returns whether it came back.
bool comes_back(const std::function<void()>& body) {
  std::atomic<bool> is_back{false};
  on_a_thread([&] {
    pthread_cancel(pthread_self());
    body();
    is_back = true;
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
  });
  return is_back;
}

// R10: whatever a call reads or says.
TEST(Cancellation, ends_no_call) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  Pool pool(registrar.table(), {1});
  static char memory[4 * kLength];
  pinrail_range_t range = {memory, sizeof(memory)};
  auto machine = sized<pinrail_machine_t>();
  auto param = sized<pinrail_param_info_t>();
  auto component = sized<pinrail_component_info_t>();
  auto kind = sized<pinrail_memory_kind_t>();
  auto allocations = sized<pinrail_alloc_stats_t>();
  const struct {
    const char* name;
    std::function<void()> make;
  } calls[] = {
      {"machine_read", [&] { EXPECT_EQ(pinrail_machine_read(&machine), PINRAIL_SUCCESS); }},
      {"component_at", [&] { EXPECT_EQ(pinrail_component_at(0, &component), PINRAIL_SUCCESS); }},
      {"memory_kind_at", [&] { EXPECT_EQ(pinrail_memory_kind_at(0, &kind), PINRAIL_SUCCESS); }},
      {"monitors_at_work", [] { EXPECT_NE(pinrail_monitors_at_work(), nullptr); }},
      {"param_find", [&] { EXPECT_EQ(pinrail_param_find("mpool", &param), PINRAIL_SUCCESS); }},
      {"param_set", [] { EXPECT_EQ(pinrail_param_set("mca_base_verbose", "many"), PINRAIL_ERR_BAD_PARAM); }},
      {"monitor_subscribe",
       [] {
         pinrail_subscription_t* subscription = nullptr;
         (void)pinrail_monitor_subscribe([](void*, void*, size_t) {}, nullptr, &subscription);
         pinrail_monitor_unsubscribe(subscription);
       }},
      {"register", [&] { pool.use(reinterpret_cast<uintptr_t>(memory), kLength); }},
      {"a wrong register", [&] { EXPECT_EQ(pool.reg(0, 0, nullptr), PINRAIL_ERR_BAD_PARAM); }},
      {"register_with",
       [&] {
         pinrail_register_options_t options = PINRAIL_REGISTER_OPTIONS_INIT;
         pinrail_handle_t handle{};
         EXPECT_EQ(pinrail_mpool_register_with(pool.get(), memory, 1, 1, 0, &options, &handle), PINRAIL_SUCCESS);
         drop(handle);
       }},
      {"evict", [&] { (void)pinrail_mpool_evict(pool.get()); }},
      {"progress", [&] { EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS); }},
      {"checkpoint", [&] { EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS); }},
      {"alloc",
       [&] {
         void* at = nullptr;
         EXPECT_EQ(pinrail_mpool_alloc(pool.get(), 100, 0, PINRAIL_NODE_ANY, &at), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_realloc(pool.get(), at, size_t{4} << 20, &at), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool.get(), &allocations), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_free(pool.get(), at), PINRAIL_SUCCESS);
       }},
      {"chunk_stream",
       [&] {
         pinrail_chunk_stream_t* stream = nullptr;
         pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
         options.chunk_size = kLength;
         options.ahead = 2;
         EXPECT_EQ(pinrail_chunk_stream_open(pool.get(), memory, sizeof(memory), 1, &options, &stream),
                   PINRAIL_SUCCESS);
         pinrail_handle_t handle{};
         EXPECT_EQ(pinrail_chunk_stream_next(stream, &handle, nullptr, nullptr), PINRAIL_SUCCESS);
         drop(handle);
         EXPECT_EQ(pinrail_chunk_stream_close(stream), PINRAIL_SUCCESS);
       }},
      {"prepin",
       [&] {
         pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
         options.flags = PINRAIL_PREPIN_HUGE_PAGES;  // counting them opens a file
         EXPECT_EQ(pinrail_mpool_prepin(pool.get(), &range, 1, 1, &options, nullptr), PINRAIL_SUCCESS);
         pinrail_pinned_t pinned{};
         EXPECT_EQ(pinrail_mpool_query(pool.get(), memory, 1, 1, &pinned, nullptr, 0, nullptr), PINRAIL_SUCCESS);
         EXPECT_EQ(pinrail_mpool_unpin(pool.get(), &range, 1, 1), PINRAIL_SUCCESS);
       }},
  };
  for (const auto& call : calls) EXPECT_TRUE(comes_back(call.make)) << call.name;
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  alarm(0);
}

}  // namespace
}  // namespace pinrail::test
