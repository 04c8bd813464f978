// SPDX-License-Identifier: BSD-3-Clause
// R10: our own calls are no cancellation points.
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "test/support/leaving_registrar.h"
#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x100000;
constexpr size_t kLength = 0x1000;

// R5: a thread that waits for another's registration is cancelled after our call has returned, not inside it.
TEST(Cancellation, does_not_end_a_wait_for_another_thread) {
  const Library library;
  LeavingRegistrar registrar;
  registrar.hold_registrations();
  Pool pool(registrar.table(), {1});
  std::thread first([&] { drop(pool.must(kBase, kLength)); });
  while (!registrar.is_inside) usleep(100);
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
  registrar.may_go_on = true;
  pthread_join(waiting, nullptr);
  first.join();
  EXPECT_TRUE(second.is_back);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

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

// R10: a request registers a queued chunk for the job, and other threads wait for that chunk.
TEST(Cancellation, does_not_end_a_request_for_a_queued_chunk) {
  alarm(60);
  const Library library;
  LeavingRegistrar registrar;
  std::atomic<int> calls{0};
  std::atomic<bool> may_go_on{false};
  registrar.in_register = [&] {
    if (calls++ != 0) return;
    while (!may_go_on) usleep(100);
  };
  Pool pool(registrar.table(), {1});
  pinrail_range_t range = {reinterpret_cast<void*>(kBase), 16 * kLength};
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.flags = PINRAIL_PREPIN_HUGE_PAGES;
  options.chunk_size = kLength;
  options.threads = 1;
  pinrail_prepin_t* prepin = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool.get(), &range, 1, 1, &options, &prepin), PINRAIL_SUCCESS);
  while (calls == 0) usleep(100);
  on_a_thread([&] {
    pthread_cancel(pthread_self());
    const pinrail_handle_t handle = pool.must(kBase + 8 * kLength, kLength);
    drop(handle);
    pthread_testcancel();
    ADD_FAILURE() << "it was not cancelled";
  });
  may_go_on = true;
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool.get(), &range, 1, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  alarm(0);
}

}  // namespace
}  // namespace pinrail::test
