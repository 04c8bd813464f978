// SPDX-License-Identifier: BSD-3-Clause
// E4: dead and unreferenced registrations are deregistered without any call into the library.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <thread>
#include <vector>

#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr char kThread[] = "pinrail-gc";

Settings with_thread(const std::string& when, const std::string& gc_limit = "64M") {
  return {{"mpool_grdma_gc_thread", when}, {"mpool_grdma_gc_limit", gc_limit}};
}

class GcThread : public OnePool<Pool> {
 protected:
  void SetUp() override { make(with_thread("auto")); }
};

// A thread that was joined may be listed for a moment yet.
bool has_ended() {
  return comes_true([] { return !has_thread(kThread); });
}

// No thread calls into the library while it waits.
bool are_gone(const fake::FakeRegistrar& device) {
  return comes_true([&] { return device.live_count() == 0; });
}

TEST_F(GcThread, what_an_event_killed_goes_back_without_a_call) {
  for (int round = 0; round < 3; ++round) {
    pool_->use(kBase, kPage);
    pool_->use(kBase + 8 * kPage, kPage);
    report(kBase, 64 * kPage);
    EXPECT_EQ(device_->live_count(), 2u) << "a hook called the device";
    EXPECT_TRUE(are_gone(*device_));
  }
  EXPECT_EQ(device_->deregistered(PINRAIL_REASON_INVALIDATED), 6u);
}

TEST_F(GcThread, waits_a_while_for_calls_unless_the_limit_is_exceeded) {
  using Clock = std::chrono::steady_clock;
  make(with_thread("auto", "64K"));
  const auto time_of = [&](size_t pages) {
    pool_->use(kBase, pages * kPage);
    const auto began = Clock::now();
    report(kBase, kPage);
    EXPECT_TRUE(are_gone(*device_));
    return Clock::now() - began;
  };
  EXPECT_GE(time_of(1), std::chrono::milliseconds(100));
  EXPECT_TRUE(comes_true([&] { return time_of(64) < std::chrono::milliseconds(100); }));
}

// Events wake it when they exceed the limit, and not again while it drains.
TEST_F(GcThread, what_exceeds_the_limit_during_a_drain_does_not_wait_either) {
  using Clock = std::chrono::steady_clock;
  make(with_thread("auto", "64K"));
  const auto time_after_a_drain = [&] {
    std::atomic<bool> is_inside{false}, may_go{false};
    device_->on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
      if (is_inside.exchange(true)) return;
      while (!may_go) std::this_thread::yield();
    });
    for (uintptr_t i = 0; i < 16; ++i) pool_->use(kBase + i * 64 * kPage, 64 * kPage);
    report(kBase, kPage);
    EXPECT_TRUE(comes_true([&] { return is_inside.load(); }));
    report(kBase, 16 * 64 * kPage);
    const auto began = Clock::now();
    may_go = true;
    EXPECT_TRUE(are_gone(*device_));
    device_->on_deregister(nullptr);
    return Clock::now() - began;
  };
  EXPECT_TRUE(comes_true([&] { return time_after_a_drain() < std::chrono::milliseconds(90); }))
      << "100 ms is the time for what is below the limit";
}

TEST_F(GcThread, a_dead_one_that_is_held_stays_until_it_is_dropped) {
  const pinrail_handle_t held = pool_->must(kBase, kPage);
  pool_->use(kBase + 8 * kPage, kPage);
  report(kBase, 64 * kPage);
  EXPECT_TRUE(comes_true([&] { return device_->live_count() == 1; }));
  EXPECT_TRUE(device_->is_live(held.reg));
  drop(held);
  EXPECT_TRUE(are_gone(*device_));
}

// So that no single call waits for all of them.
TEST_F(GcThread, a_miss_gives_back_some_of_what_is_dead) {
  constexpr uintptr_t kMany = 128, kInOneCall = 32;
  const auto own = std::this_thread::get_id();
  size_t given_back = 0;
  device_->on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (std::this_thread::get_id() == own) ++given_back;
  });
  EXPECT_TRUE(comes_true([&] {  // the gc thread may come first, and leave nothing
    for (uintptr_t i = 1; i <= kMany; ++i) pool_->use(kBase + 2 * i * kPage, kPage);
    report(kBase, 2 * (kMany + 1) * kPage);
    given_back = 0;
    pool_->use(kBase, kPage);
    return given_back >= kInOneCall;
  }));
  EXPECT_TRUE(comes_true([&] { return device_->live_count() == 1; }));
  device_->on_deregister(nullptr);
}

TEST_F(GcThread, is_there_for_pools_that_keep_and_ends_with_the_library) {
  make(with_thread("auto"), {}, not_kept());
  EXPECT_TRUE(has_ended());
  make_pool();
  EXPECT_TRUE(comes_true([] { return has_thread(kThread); }));
  const auto blocked = static_cast<uint64_t>(blocked_signals_of(kThread));
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM}) {
    EXPECT_NE(blocked & (uint64_t{1} << (signal - 1)), 0u) << signal;
  }
  pool_.reset();
  library_.reset();
  EXPECT_TRUE(has_ended());
}

// gc_thread/W3: the one that was drained first in this round, too.
TEST_F(GcThread, an_event_while_it_drains_is_not_forgotten) {
  fake::FakeRegistrar second_device;
  Pool second(second_device);
  second_device.on_deregister([](pinrail_registration_t*, pinrail_reason_t) { report(kBase, kPage); });
  pool_->use(kBase, kPage);
  second.use(kBase + 8 * kPage, kPage);
  report(kBase + 8 * kPage, kPage);
  EXPECT_TRUE(are_gone(second_device));
  EXPECT_TRUE(are_gone(*device_));
}

TEST_F(GcThread, never_and_always_are_what_they_say) {
  make(with_thread("never"));
  EXPECT_TRUE(has_ended());
  pool_->use(kBase, kPage);
  report(kBase, kPage);
  EXPECT_EQ(device_->live_count(), 1u);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  make(with_thread("always"), {}, not_kept());
  EXPECT_TRUE(comes_true([] { return has_thread(kThread); }));
}

TEST_F(GcThread, a_registrar_that_its_caller_alone_may_call_never_meets_it) {
  fake::FakeOptions options;
  options.thread_mode = PINRAIL_THREAD_CALLER;
  options.needs_pool_scope = true;
  fake::FakeRegistrar other;
  make(with_thread("always", "4K"), options);
  EXPECT_TRUE(has_ended());
  Pool beside(other, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "beside"});
  const fake::PoolScope scope;
  pool_->use(kBase, 4 * kPage);
  beside.use(kBase, 4 * kPage);
  report(kBase, kPage);
  EXPECT_TRUE(are_gone(other));
  EXPECT_EQ(device_->live_count(), 1u);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  EXPECT_EQ(device_->violations(), std::vector<std::string>{});
}

// gc_thread/W2, R10.
TEST_F(GcThread, a_device_that_blocks_it_blocks_no_other_thread_and_destroy_waits_for_it) {
  make(with_thread("auto", "4K"));
  fake::FakeRegistrar other;
  std::atomic<bool> inside{false}, go_on{false}, done{false}, destroyed{false};
  Pool free(other, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "free"});
  device_->on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    inside = true;
    while (!go_on) usleep(1000);
    done = true;
  });
  pool_->use(kBase, 4 * kPage);
  report(kBase, kPage);
  ASSERT_TRUE(comes_true([&] { return inside.load(); }));
  // Everything else of this pool, and of others.
  pool_->use(kBase + 64 * kPage, kPage);
  pool_->use(kBase + 64 * kPage, kPage);
  free.use(kBase, 4 * kPage);
  report(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_progress(free.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(other.live_count(), 0u);
  EXPECT_EQ(free.close(), PINRAIL_SUCCESS);
  std::thread destroyer([&] {
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_TRUE(done.load()) << "destroyed while its device was being called";
    destroyed = true;
  });
  usleep(20000);  // so that it waits
  EXPECT_FALSE(destroyed.load());
  go_on = true;
  destroyer.join();
  EXPECT_EQ(device_->live_count(), 0u);
}

TEST_F(GcThread, is_not_in_a_forked_child_until_that_begins_anew) {
  pool_->use(kBase, kPage);
  ASSERT_TRUE(comes_true([] { return has_thread(kThread); }));
  expect_success_in_child([&] {
    alarm(60);
    int wrong = has_thread(kThread) ? 1 : 0;
    report(kBase, kPage);
#ifndef __SANITIZE_THREAD__
    {
      Library again(with_thread("auto"));
      fake::FakeRegistrar own;
      Pool pool_of_child(own);
      if (!has_thread(kThread)) usleep(100000);
      pool_of_child.use(kBase, kPage);
      report(kBase, kPage);
      if (!are_gone(own)) wrong = 2;
    }
    if (!has_ended()) wrong = 3;
#endif
    return wrong;
  });
  report(kBase, kPage);
  EXPECT_TRUE(are_gone(*device_));
}

// The last pinrail_finalize() ends all pools or none, beside helper threads that end; and what
// functions of registrars may not end.

constexpr unsigned kLimitSeconds = 60;

class Finalize : public testing::Test {
 protected:
  Finalize() {
    pinrail_set_message_function([](void*, int, const char*, const char*) {}, nullptr);  // refusals are expected
    alarm(kLimitSeconds);
  }
  ~Finalize() override {
    alarm(0);
    pinrail_set_message_function(nullptr, nullptr);
  }
};

// Refuses the last of three pages: what was pinned before is given back, and then nothing is referenced.
pinrail_status_t refuse_third(void*, const pinrail_register_request_t* request, pinrail_registration_t*) {
  return reinterpret_cast<uintptr_t>(request->addr) == kBase + 2 * kPage ? PINRAIL_ERR_PERM : PINRAIL_SUCCESS;
}

pinrail_prepin_t* start_job(pinrail_mpool_t* pool) {
  const pinrail_range_t range = {reinterpret_cast<void*>(kBase), 3 * kPage};  // NOLINT(performance-no-int-to-ptr)
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.threads = 1;
  options.chunk_size = kPage;
  pinrail_prepin_t* job = nullptr;
  EXPECT_EQ(pinrail_mpool_prepin_start(pool, &range, 1, 1, &options, &job), PINRAIL_SUCCESS);
  return job;
}

// The job may end between the check of its pool and the destroy.
TEST_F(Finalize, a_job_that_ends_meanwhile_leaves_no_pool_behind) {
  const int rounds = short_or_long(60, 200);
  pinrail_registrar_t table = host_table("test");
  table.register_mem = refuse_third;
  for (int i = 0; i < rounds; ++i) {
    pinrail_mpool_t *first = nullptr, *second = nullptr;
    pinrail_prepin_t* job = nullptr;
    {
      Library library(Settings{{"registrar", "none"}});
      first = make_grdma(table);
      second = make_grdma(table);
      job = start_job(first);
      pinrail_status_t status;
      do status = pinrail_finalize();
      while (status == PINRAIL_ERR_BUSY);
      ASSERT_EQ(status, PINRAIL_SUCCESS);
      library.status = PINRAIL_ERR_BUSY;  // finalized already
    }
    const Library next(Settings{{"registrar", "none"}});
    ASSERT_EQ(pinrail_mpool_destroy(second, 0), PINRAIL_ERR_BAD_PARAM) << "the pool outlived its components";
    EXPECT_EQ(pinrail_prepin_free(job), PINRAIL_SUCCESS);
  }
}

TEST_F(Finalize, a_pool_is_not_destroyed_in_record_and_wait) {
  struct Inside {
    const Pool* pool;
    std::vector<pinrail_status_t> statuses;
  } inside{};
  const Library library;
  pinrail_registrar_t table = host_table("test", &inside);
  table.record = table.wait = [](void* context, pinrail_registration_t*, void*) {
    auto* const at = static_cast<Inside*>(context);
    at->statuses.push_back(pinrail_mpool_destroy(at->pool->get(), PINRAIL_DESTROY_FORCE));
    return PINRAIL_SUCCESS;
  };
  Pool pool(table);
  inside.pool = &pool;
  const pinrail_handle_t handle = pool.must(kBase, kPage);
  EXPECT_EQ(pinrail_mpool_record(handle, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_wait(handle, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(inside.statuses, std::vector<pinrail_status_t>(2, PINRAIL_ERR_BUSY));
  drop(handle);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

TEST_F(Finalize, a_function_that_it_runs_may_call_it_again_and_is_refused) {
  std::vector<pinrail_status_t> inside;
  Library library;
  fake::FakeRegistrar device;
  const Pool pool(device);
  device.on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    inside.push_back(pinrail_init(nullptr));
    inside.push_back(pinrail_finalize());
    inside.push_back(Pool(device).status);
  });
  pool.use(kBase, kPage);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  library.status = PINRAIL_ERR_BUSY;  // finalized already
  EXPECT_EQ(inside, std::vector<pinrail_status_t>(3, PINRAIL_ERR_BUSY));
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BAD_PARAM) << "it has ended";
}

}  // namespace
}  // namespace pinrail::test
