// SPDX-License-Identifier: BSD-3-Clause
// record_test.cc - mpool_base_record: what a process asks of its pools is in the trace that it writes.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "contrib/tools/perf/trace.h"
#include "test/fake/fake_registrar.h"
#include "test/support/library.h"
#include "test/support/temp_folder.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x7e0000000000;

perf::Trace trace_in(const std::string& path) {
  perf::Trace trace;
  const perf::Result read = perf::read_trace(path, &trace);
  EXPECT_TRUE(read.ok()) << read.why();
  return trace;
}

// "RDRDI": the operations of the trace.
std::string ops_of(const perf::Trace& trace) {
  std::string ops;
  for (const perf::TraceRecord& record : trace.records) ops += static_cast<char>(record.op);
  return ops;
}

size_t count(const std::string& ops, char op) { return static_cast<size_t>(std::count(ops.begin(), ops.end(), op)); }

TEST(Record, each_call_and_each_event_is_in_the_trace_in_its_order) {
  const TempFolder folder;
  {
    const Library library(Settings{{"mpool_base_record", folder.path("t.%p")}});
    ASSERT_EQ(library.status, PINRAIL_SUCCESS);
    const fake::FakeRegistrar device;
    const Pool pool(device);
    const pinrail_handle_t first = pool.must(kBase + 0x10, 5000, 5);
    const pinrail_handle_t hit = pool.must(kBase + 0x10, 5000, 5);
    EXPECT_EQ(first.reg, hit.reg);
    EXPECT_TRUE(pool.has(kBase + 0x10, 100));
    drop(hit);
    report(kBase, kPage);
    drop(first);
    EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
    pool.use(kBase, 1, 1, PINRAIL_FLAG_CACHE_BYPASS);
  }
  const perf::Trace trace = trace_in(folder.path("t." + std::to_string(getpid())));
  EXPECT_EQ(ops_of(trace), "RRFDDIDERD");
  EXPECT_EQ(trace.records[0].addr, kBase + 0x10);
  EXPECT_EQ(trace.records[0].size, 5000u);
  EXPECT_EQ(trace.records[0].access, 5u);
  EXPECT_EQ(trace.records[5].addr, kBase);
  EXPECT_EQ(trace.records[5].size, kPage);
  EXPECT_EQ(trace.records[8].flags, uint32_t{PINRAIL_FLAG_CACHE_BYPASS});
}

TEST(Record, the_trace_has_what_is_set_for_the_pool_and_no_more) {
  const TempFolder folder;
  {
    const Library library(Settings{
        {"mpool_base_record", folder.path("t.%p")}, {"mpool_grdma_size_limit", "64M"}, {"rcache_base_verbose", "1"}});
    ASSERT_EQ(library.status, PINRAIL_SUCCESS);
    const fake::FakeRegistrar device;
    const Pool pool(device);
    pool.use(kBase, 1, 1);
  }
  const perf::Trace trace = trace_in(folder.path("t." + std::to_string(getpid())));
  ASSERT_EQ(trace.settings.size(), 1u);
  EXPECT_EQ(trace.settings[0].first, "mpool_grdma_size_limit");
  EXPECT_EQ(trace.settings[0].second, "64M");
}

TEST(Record, a_hit_that_was_quick_before_is_recorded_each_time) {
  const TempFolder folder;
  {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    for (int i = 0; i < 1000; i++) pool.use(kBase, kPage);
    EXPECT_EQ(pool.stats().hits, 999u);
  }
  const std::string ops = ops_of(trace_in(folder.path("t." + std::to_string(getpid()))));
  EXPECT_EQ(count(ops, 'R'), 1000u);
  EXPECT_EQ(count(ops, 'D'), 1000u);
}

TEST(Record, a_forked_child_has_a_file_of_its_own_with_its_own_calls) {
  const TempFolder folder;
  const Settings settings = {{"mpool_base_record", folder.path("t.%p.xz")}};
  pid_t child = 0;
  {
    const Library library(settings);
    const fake::FakeRegistrar device;
    const Pool pool(device);
    const pinrail_handle_t held = pool.must(kBase, kPage);
    child = fork();
    if (child == 0) {
      (void)pinrail_mpool_deregister(held);
      const Library own(settings);
      const fake::FakeRegistrar another;
      const Pool its(another);
      its.use(kBase, kPage);
      its.use(kBase, kPage);
      exit(testing::Test::HasFailure() ? 1 : 0);  // without finalize: the file is written at exit
    }
    expect_success_of(child);
    drop(held);
  }
  EXPECT_EQ(ops_of(trace_in(folder.path("t." + std::to_string(getpid()) + ".xz"))), "RD");
  EXPECT_EQ(ops_of(trace_in(folder.path("t." + std::to_string(child) + ".xz"))), "RDRD");
}

TEST(Record, a_child_that_only_exits_writes_nothing) {
  const TempFolder folder;
  const std::string path = folder.path("t." + std::to_string(getpid()));
  const Library library(Settings{{"mpool_base_record", folder.path("t")}});
  const fake::FakeRegistrar device;
  const Pool pool(device);
  pool.use(kBase, kPage);
  const pid_t child = fork();
  if (child == 0) exit(0);
  expect_success_of(child);
  EXPECT_EQ(read_whole(path), "") << "the parent has not ended";
}

TEST(Record, many_threads_and_events_leave_a_trace_whose_references_are_paired) {
  constexpr int kThreads = 64, kRounds = 200;
  const TempFolder folder;
  {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; i++) {
      threads.emplace_back([&pool, i] {
        for (int round = 0; round < kRounds; round++) {
          pinrail_handle_t handle{};
          const uintptr_t base = kBase + static_cast<uintptr_t>((i + round) % 7) * kPage;
          if (pool.reg(base, kPage, &handle) == PINRAIL_SUCCESS) (void)pinrail_mpool_deregister(handle);
          if (round % 16 == 0) report(base, kPage);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  const std::string ops = ops_of(trace_in(folder.path("t." + std::to_string(getpid()))));  // refuses what is unpaired
  EXPECT_EQ(count(ops, 'R'), size_t{kThreads} * kRounds);
  EXPECT_EQ(count(ops, 'I'), size_t{kThreads} * ((kRounds + 15) / 16));
}

TEST(Record, a_file_that_cannot_be_written_is_named_and_everything_else_works) {
  testing::internal::CaptureStderr();
  {
    const Library library(Settings{{"mpool_base_record", "/nonexistent/folder/t"}});
    ASSERT_EQ(library.status, PINRAIL_SUCCESS);
    const fake::FakeRegistrar device;
    const Pool pool(device);
    pool.use(kBase, kPage);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("record refused"), std::string::npos) << said;
  EXPECT_NE(said.find("/nonexistent/folder/t"), std::string::npos) << said;
  EXPECT_NE(said.find("No such file"), std::string::npos) << said;
}

}  // namespace
}  // namespace pinrail::test
