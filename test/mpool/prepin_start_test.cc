// SPDX-License-Identifier: BSD-3-Clause
// Ranges that helper threads register chunk by chunk: pinrail_mpool_prepin_start() and the calls on its handle. Beside
// events, other jobs, registrars that call back, and threads that end, what is reported as pinned is pinned, and
// nothing else stays.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/mpool/pinning.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kChunks = 32;

class PrepinStart : public PinningAsked {
 protected:
  // Registrations from the n-th on wait until open() is called.
  void close_gate(uint64_t n) {
    const std::lock_guard<std::mutex> guard(mutex_);
    open_until_ = n - 1;
    passed_ = arrived_ = 0;
    device_->on_register([this](const pinrail_register_request_t&, pinrail_registration_t*) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++arrived_;
      changed_.notify_all();
      changed_.wait(lock, [this] { return passed_ < open_until_; });
      ++passed_;
    });
  }
  void open(uint64_t until = UINT64_MAX) {
    const std::lock_guard<std::mutex> guard(mutex_);
    open_until_ = until;
    changed_.notify_all();
  }
  // Opens the gate once the work is being cancelled. Its first chunk, which begins at kBase, is registered by now.
  std::thread open_when_cancelled(pinrail_prepin_t* prepin) {
    return std::thread([this, prepin] {
      while (pinrail_prepin_wait_range(prepin, address(kBase), kPage) == PINRAIL_SUCCESS) std::this_thread::yield();
      open();
    });
  }
  void wait_for_arrivals(uint64_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= count; });
  }
  static pinrail_prepin_progress_t progress(pinrail_prepin_t* prepin) {
    auto now = sized<pinrail_prepin_progress_t>();
    EXPECT_EQ(pinrail_prepin_read_progress(prepin, &now), PINRAIL_SUCCESS);
    return now;
  }

  const Ranges whole_ = {range(kBase, kChunks* kChunk)};
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t open_until_ = UINT64_MAX, passed_ = 0, arrived_ = 0;
};

TEST_F(PrepinStart, each_chunk_is_one_registration_that_serves_requests_inside_it) {
  pinrail_prepin_t* const prepin = start(whole_, 2);
  ASSERT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), kChunks);
  const pinrail_prepin_progress_t now = progress(prepin);
  EXPECT_EQ(now.is_finished, 1);
  EXPECT_EQ(now.status, PINRAIL_SUCCESS);
  EXPECT_EQ(now.pinned_chunks, kChunks);
  EXPECT_EQ(now.total_chunks, kChunks);
  EXPECT_EQ(now.total_bytes, kChunks * kChunk);
  EXPECT_EQ(now.pinned_bytes, kChunks * kChunk);
  EXPECT_EQ(now.limit, nullptr);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  const uint64_t before = device_->register_calls();
  for (size_t i = 0; i < kChunks; ++i) pool_->use(kBase + i * kChunk, kChunk);
  EXPECT_EQ(device_->register_calls(), before);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY) << "the pins are there";
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

TEST_F(PrepinStart, a_chunk_is_usable_while_the_others_wait) {
  close_gate(3);
  pinrail_prepin_t* const prepin = start(whole_);
  wait_for_arrivals(3);
  EXPECT_EQ(progress(prepin).pinned_chunks, 2u);
  EXPECT_EQ(progress(prepin).is_finished, 0);
  const uint64_t before = device_->register_calls();
  pool_->use(kBase + kPage, kPage);
  pool_->use(kBase + kChunk, kChunk);
  EXPECT_EQ(device_->register_calls(), before);
  EXPECT_EQ(unpin(whole_), PINRAIL_ERR_NOT_FOUND) << "the range is not pinned before all of it is";
  open();
  finish(prepin);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// A chunk that serves the request lies under a range that is cut elsewhere.
TEST_F(PrepinStart, a_request_finds_the_queued_chunk_of_each_of_two_overlapping_ranges) {
  close_gate(1);
  pinrail_prepin_t* const prepin =
      start({range(kBase, kPage), range(kBase + 17 * kPage, kChunk), range(kBase + 18 * kPage, 3 * kChunk)}, 1);
  wait_for_arrivals(1);
  device_->on_register(nullptr);
  pool_->use(kBase + 31 * kPage, 2 * kPage);
  for (const fake::FakeRecord& each : device_->live()) {
    EXPECT_EQ(each.length, kChunk) << "a chunk, not the request's own range";
  }
  EXPECT_NE(device_->live_count(), 0u);
  open();
  finish(prepin);
  EXPECT_EQ(unpin({range(kBase, kPage), range(kBase + 17 * kPage, kChunk), range(kBase + 18 * kPage, 3 * kChunk)}),
            PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// The only helper thread is inside the device; the caller registers the chunk by itself, and it is no extra
// registration.
TEST_F(PrepinStart, a_request_inside_a_queued_chunk_registers_that_chunk_first) {
  std::atomic<int> calls{0};
  std::atomic<bool> released{false};
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (calls++ != 0) return;
    while (!released.load()) std::this_thread::yield();
  });
  pinrail_prepin_t* const prepin = start(whole_);
  while (calls.load() == 0) std::this_thread::yield();
  const uintptr_t last = kBase + (kChunks - 1) * kChunk;
  pool_->use(last + kPage, kPage);
  ASSERT_EQ(device_->live_count(), 1u);
  EXPECT_EQ(device_->live()[0].base, last);
  EXPECT_EQ(device_->live()[0].length, kChunk);
  EXPECT_EQ(pinrail_prepin_wait_range(prepin, address(kBase + 5 * kChunk - kPage), 2 * kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 3u);
  EXPECT_EQ(pinrail_prepin_wait_range(prepin, address(kBase - kPage), kPage), PINRAIL_ERR_NOT_FOUND);
  released = true;
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->register_calls(), kChunks);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// The only helper thread is inside the first chunk of all until the caller is inside the first of the two that it waits
// for, where the caller stays until the helper thread is inside its next one.
TEST_F(PrepinStart, helper_threads_go_on_with_the_range_that_is_waited_for) {
  std::atomic<int> calls{0};
  std::atomic<void*> third{nullptr};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    const int call = ++calls;
    if (call == 3) third = request.addr;
    while (calls < 3 && calls == call) std::this_thread::yield();
  });
  pinrail_prepin_t* const prepin = start(whole_);
  while (calls == 0) std::this_thread::yield();
  EXPECT_EQ(pinrail_prepin_wait_range(prepin, address(kBase + 20 * kChunk), 2 * kChunk), PINRAIL_SUCCESS);
  EXPECT_EQ(third, address(kBase + 21 * kChunk));
  finish(prepin);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

TEST_F(PrepinStart, what_is_cached_is_not_delayed_by_a_queued_chunk) {
  pool_->use(kBase + 20 * kChunk, 3 * kPage);
  close_gate(1);
  pinrail_prepin_t* const prepin = start(whole_);
  wait_for_arrivals(1);
  alarm(60);  // a request that registers the chunk waits for ever
  pool_->use(kBase + 20 * kChunk, kPage);
  pool_->use(kBase + 20 * kChunk + kPage, kPage);  // not where a registration begins: the pool has to find it
  alarm(0);
  EXPECT_EQ(pool_->stats().hits, 2u);
  open();
  finish(prepin);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  pool_->evict_all();
  expect_nothing_is_left();
}

// What a helper thread is registering would be abandoned under it.
TEST_F(PrepinStart, a_restart_waits_for_the_end_of_the_work) {
  close_gate(1);
  pinrail_prepin_t* const prepin = start(whole_);
  wait_for_arrivals(1);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_ERR_BUSY);
  open();
  finish(prepin);
  EXPECT_EQ(device_->live_count(), kChunks);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// For every n: it is cancelled when n chunks are registered. Before the first one is, nothing shows to the thread that
// opens the gate that the cancelling has begun, so either may come first.
TEST_F(PrepinStart, cancelled_at_any_chunk_it_gives_everything_back) {
  for (uint64_t n = 0; n <= kChunks; ++n) {
    SCOPED_TRACE(n);
    make_pool();
    close_gate(n + 1);
    pinrail_prepin_t* const prepin = start(whole_);
    if (n < kChunks) wait_for_arrivals(n + 1);
    if (n == kChunks) {
      EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
    }
    const bool is_either = n == 0;
    const bool is_finished = n == kChunks;
    std::thread opener = is_either || is_finished ? std::thread([this] { open(); }) : open_when_cancelled(prepin);
    EXPECT_EQ(pinrail_prepin_cancel(prepin), PINRAIL_SUCCESS);
    opener.join();
    const pinrail_status_t result = pinrail_prepin_wait(prepin, nullptr);
    if (!is_either) {
      EXPECT_EQ(result, is_finished ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND);
    }
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    EXPECT_EQ(unpin(whole_), result == PINRAIL_SUCCESS ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND);
    expect_nothing_is_left();
  }
}

// For every n: the n-th registrar call fails.
TEST_F(PrepinStart, after_any_failure_nothing_is_left) {
  for (uint64_t n = 1; n <= kChunks; ++n) {
    SCOPED_TRACE(n);
    make_pool();
    device_->fail_register(n, PINRAIL_ERR_PERM);
    pinrail_prepin_t* const prepin = start(whole_, 2);
    pinrail_status_t status = PINRAIL_SUCCESS;
    EXPECT_EQ(pinrail_prepin_wait(prepin, &status), PINRAIL_ERR_PERM);
    EXPECT_EQ(status, PINRAIL_ERR_PERM);
    EXPECT_EQ(progress(prepin).status, PINRAIL_ERR_PERM);
    for (const size_t at : {size_t{0}, kChunks - 1}) {  // what was registered is given back by now
      EXPECT_EQ(pinrail_prepin_wait_range(prepin, address(kBase + at * kChunk), kPage), PINRAIL_ERR_PERM);
    }
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
    EXPECT_EQ(unpin(whole_), PINRAIL_ERR_NOT_FOUND);
    expect_nothing_is_left();
  }
}

TEST_F(PrepinStart, with_partial_the_ranges_that_can_be_are_pinned) {
  device_->fail_register(3, PINRAIL_ERR_PERM);
  const Ranges ranges = {range(kBase + 8 * kChunk, 2 * kChunk), range(kBase, 4 * kChunk)};
  pinrail_prepin_t* const prepin = start(ranges, 1, PINRAIL_PREPIN_PARTIAL);
  pinrail_status_t statuses[2];
  EXPECT_EQ(pinrail_prepin_wait(prepin, statuses), PINRAIL_ERR_PERM);
  EXPECT_EQ(statuses[0], PINRAIL_SUCCESS);
  EXPECT_EQ(statuses[1], PINRAIL_ERR_PERM);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 2u);
  EXPECT_EQ(unpin({ranges[1]}), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(unpin({ranges[0]}), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

TEST_F(PrepinStart, a_limit_in_the_way_is_named) {
  make_pool({}, at_most_bytes(kChunks * kChunk / 2));
  pinrail_prepin_options_t wanted = PINRAIL_PREPIN_OPTIONS_INIT;
  wanted.chunk_size = kChunk;
  pinrail_prepin_t* prepin = nullptr;
  EXPECT_EQ(pinrail_mpool_prepin_start(pool_->get(), whole_.data(), 1, 1, &wanted, &prepin),
            PINRAIL_ERR_OUT_OF_RESOURCE)
      << "it can never fit";
  EXPECT_EQ(device_->register_calls(), 0u);

  const pinrail_handle_t held = pool_->must(kBase + 2 * kChunks * kChunk, kChunk);
  const Ranges half = {range(kBase, kChunks * kChunk / 2)};
  prepin = start(half, 2);
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  const char* const limit = progress(prepin).limit;
  ASSERT_NE(limit, nullptr);
  EXPECT_NE(std::string(limit).find("mpool_grdma_size_limit"), std::string::npos) << limit;
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  drop(held);
  pool_->evict_all();
  expect_nothing_is_left();
}

TEST_F(PrepinStart, locked_memory_is_named_only_where_it_bounds_this_process) {
  device_->fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  const rlimit small{kPage, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &small), 0);
  pinrail_prepin_t* const prepin = start(whole_);
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_ERR_OUT_OF_RESOURCE);
  const std::string limit = progress(prepin).limit;
  EXPECT_EQ(limit.find("ulimit -l") != std::string::npos, !may_lock(kChunk)) << limit;
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
}

TEST_F(PrepinStart, a_pool_is_busy_while_helpers_work_and_force_ends_them) {
  close_gate(2);
  pinrail_prepin_t* const prepin = start(whole_);
  wait_for_arrivals(2);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BUSY);
  std::thread opener = open_when_cancelled(prepin);
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  opener.join();
  EXPECT_EQ(device_->live_count(), 0u);
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
}

TEST_F(PrepinStart, a_registrar_for_its_callers_alone_has_no_helpers) {
  make_pool(fake::options_with(&fake::FakeOptions::thread_mode, PINRAIL_THREAD_CALLER));
  pinrail_prepin_t* prepin = nullptr;
  EXPECT_EQ(pinrail_mpool_prepin_start(pool_->get(), whole_.data(), 1, 1, nullptr, &prepin), PINRAIL_ERR_NOT_SUPPORTED);
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.threads = 4;
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), whole_.data(), 1, 1, &options, nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->most_at_once(), 1);
  EXPECT_EQ(unpin(whole_), PINRAIL_SUCCESS);
}

// The helper threads of the parent do not exist in the child, and may have held the lock of the job, whose pool may be
// gone already. A request inside a chunk that a helper thread registers would wait for that thread.
TEST_F(PrepinStart, a_forked_child_can_free_the_handle_and_nothing_else) {
  for (const bool is_pool_gone : {false, true}) {
    make_pool();
    close_gate(2);
    pinrail_prepin_t* const prepin = start(whole_);
    wait_for_arrivals(2);
    if (is_pool_gone) {
      open();
      ASSERT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
    }
    expect_success_in_child([&] {
      alarm(60);
      auto now = sized<pinrail_prepin_progress_t>();
      int wrong = pinrail_prepin_read_progress(prepin, &now) == PINRAIL_ERR_NOT_AVAILABLE ? 0 : 1;
      wrong |= pinrail_prepin_wait(prepin, nullptr) == PINRAIL_ERR_NOT_AVAILABLE ? 0 : 2;
      wrong |= pinrail_prepin_free(prepin) == PINRAIL_SUCCESS ? 0 : 4;
      if (!is_pool_gone) wrong |= pool_->answer_to(kBase + kChunk, kPage) == PINRAIL_ERR_NOT_AVAILABLE ? 0 : 8;
      return wrong;
    });
    open();
    EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  }
}

// A process may exit while helper threads are inside the device.
TEST_F(PrepinStart, a_process_may_exit_meanwhile) {
  const int status = exit_status_of([this]() -> int {
    alarm(60);
    make(settings_);
    close_gate(2);
    static const pinrail_prepin_t* const unfinished = start(whole_);  // not lost, as the leak checker sees it
    wait_for_arrivals(2);
    exit(unfinished != nullptr ? 0 : 1);
  });
  EXPECT_EQ(status, 0);
}

TEST_F(PrepinStart, a_pin_from_before_an_event_does_not_take_the_place_of_a_newer_one) {
  const pinrail_range_t first = range(kBase, kChunk), second = range(kBase + 100 * kChunk, kChunk);
  close_gate(2);
  pinrail_prepin_t* const slow = start({first, second});
  wait_for_arrivals(2);
  report(kBase, kChunk);
  device_->on_register(nullptr);
  ASSERT_EQ(pin({first}), PINRAIL_SUCCESS) << "what is mapped there now";
  open();
  finish(slow);
  EXPECT_TRUE(pool_->has(kBase, kChunk));
  EXPECT_EQ(unpin({first}), PINRAIL_SUCCESS);
  EXPECT_EQ(unpin({first, second}), PINRAIL_SUCCESS);
  expect_nothing_is_left();
}

// F1: a child would keep the memory of the dmabuf alive, and could not close what it does not know.
TEST_F(PrepinStart, a_dmabuf_may_be_closed_after_the_start_and_a_child_has_no_copy_of_the_descriptor) {
  make_pool(fake::options_with(&fake::FakeOptions::kinds, PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF));
  const int fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::atomic<int> copy{-1};
  std::atomic<bool> may_go{false};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    copy = request.fd;
    while (!may_go) std::this_thread::yield();
    EXPECT_EQ(request.kind, uint32_t{PINRAIL_KIND_DMABUF});
    EXPECT_GE(fcntl(request.fd, F_GETFD), 0);
  });
  pinrail_register_options_t wanted = PINRAIL_REGISTER_OPTIONS_INIT;
  wanted.dmabuf_fd = fd;
  pinrail_prepin_options_t options = in_chunks(0, 1);
  options.registration = &wanted;
  pinrail_prepin_t* job = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool_->get(), whole_.data(), 1, 1, &options, &job), PINRAIL_SUCCESS);
  close(fd);
  while (copy < 0) std::this_thread::yield();
  expect_success_in_child([&] { return fcntl(copy, F_GETFD) >= 0 ? 1 : 0; });
  may_go = true;
  finish(job);
  EXPECT_LT(fcntl(copy, F_GETFD), 0) << "the job's copy is closed, too";
}

// The helper threads would wait for the registrar call that the function is in.
TEST_F(PrepinStart, a_registrar_may_pin_and_ask_for_helper_threads) {
  make_pool(fake::options_with(&fake::FakeOptions::thread_mode, PINRAIL_THREAD_SERIALIZED));
  bool is_first = true;
  pinrail_status_t inner = PINRAIL_ERR_ERROR;
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!std::exchange(is_first, false)) {
      usleep(20000);  // a helper thread would have taken a chunk by then
      return;
    }
    const pinrail_prepin_options_t options = in_chunks(PINRAIL_PREPIN_PARTIAL, 2);
    const pinrail_range_t all = range(kBase + 100 * kChunk, 8 * kChunk);
    inner = pinrail_mpool_prepin(pool_->get(), &all, 1, 1, &options, nullptr);
  });
  alarm(20);
  pool_->use(kBase, kPage);
  alarm(0);
  EXPECT_EQ(inner, PINRAIL_ERR_NOT_SUPPORTED) << "R5: inside a registrar nothing is cached";
}

// Real memory: the pages are there, wherever the helper threads ran.
TEST_F(PrepinStart, the_memory_is_populated) {
  constexpr size_t kBytes = size_t{8} << 20;
  void* const memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.threads = 2;
  options.numa_node = 0;
  options.flags = PINRAIL_PREPIN_HUGE_PAGES;
  const pinrail_range_t one = {memory, kBytes};
  pinrail_prepin_t* prepin = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool_->get(), &one, 1, 1, &options, &prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_prepin_wait(prepin, nullptr), PINRAIL_SUCCESS);
  EXPECT_LE(progress(prepin).huge_bytes, kBytes);
  std::vector<unsigned char> resident(kBytes / kPage);
  ASSERT_EQ(mincore(memory, kBytes, resident.data()), 0);
  for (size_t i = 0; i < resident.size(); ++i) ASSERT_EQ(resident[i] & 1, 1) << "page " << i;
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_unpin(pool_->get(), &one, 1, 1), PINRAIL_SUCCESS);
  munmap(memory, kBytes);
}

// Looking at each chunk took a minute and gigabytes.
TEST_F(PrepinStart, a_length_that_cannot_be_is_refused_without_a_look_at_each_chunk) {
  make_pool({}, at_most_bytes(64 << 20));
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = kPage;
  options.threads = 2;
  constexpr size_t kMost = size_t{1} << 24;
  const pinrail_range_t wrong = range(kBase, size_t{1} << 52), too_many = range(kBase, (kMost + 1) * kPage),
                        most = range(kBase, kMost * kPage);
  const auto before = own_cpu_time();
  const auto statuses_of = [&](const pinrail_range_t& asked) {
    pinrail_prepin_t* none = nullptr;
    const auto started = pinrail_mpool_prepin_start(pool_->get(), &asked, 1, 1, &options, &none);
    EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), &asked, 1, 1, &options, nullptr), started);
    EXPECT_EQ(none, nullptr);
    return started;
  };
  EXPECT_EQ(statuses_of(wrong), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(statuses_of(too_many), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(statuses_of(most), PINRAIL_ERR_OUT_OF_RESOURCE) << "the limit";
  EXPECT_LT(own_cpu_time() - before, std::chrono::milliseconds(500));
  EXPECT_EQ(device_->register_calls(), 0u);
  expect_nothing_is_left();
}

// Each range has a chunk in nearly every page there is, and is none of the others' parts. All their chunks are 2^64 and
// 1,809.
TEST_F(PrepinStart, ranges_with_more_chunks_than_a_number_holds_are_refused) {
  constexpr uintptr_t kEnd = UINTPTR_MAX - 2 * kPage + 1, kTail = 10000 * kPage;
  Ranges wrong;
  for (uintptr_t i = 0; i < kPage; ++i) wrong.push_back(range(kPage + i, kEnd + 1 - kPage));
  wrong.push_back(range(kEnd + kPage - kTail, kTail + 1));
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = kPage;
  options.threads = 1;
  pinrail_prepin_t* none = nullptr;
  EXPECT_EQ(pinrail_mpool_prepin_start(pool_->get(), wrong.data(), wrong.size(), 1, &options, &none),
            PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(none, nullptr);
  EXPECT_EQ(pinrail_mpool_prepin(pool_->get(), wrong.data(), wrong.size(), 1, &options, nullptr),
            PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->register_calls(), 0u);
}

TEST_F(PrepinStart, a_job_of_no_ranges_is_finished) {
  pinrail_prepin_t* prepin = nullptr;
  ASSERT_EQ(pinrail_mpool_prepin_start(pool_->get(), nullptr, 0, 1, nullptr, &prepin), PINRAIL_SUCCESS);
  finish(prepin);
  EXPECT_EQ(pin({}), PINRAIL_SUCCESS);
  EXPECT_EQ(calls(), 0u);
}

}  // namespace
}  // namespace pinrail::test
