// SPDX-License-Identifier: BSD-3-Clause
// record_test.cc - mpool_base_record: what a process asks of its pools is in the trace that it writes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pinrail/events.h>
#include <pinrail/figures.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "contrib/tools/perf/trace.h"
#include "test/fake/fake_registrar.h"
#include "test/support/files.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace {
std::atomic<bool> is_disk_full{false};
}

extern "C" __attribute__((visibility("default"))) int close(int file) {
  struct stat about {};
  const bool is_lost = is_disk_full && fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_nlink == 1;
  const auto closed = static_cast<int>(syscall(SYS_close, file));
  if (is_lost) errno = ENOSPC;
  return is_lost ? -1 : closed;
}

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

class Record : public OnePool<Pool> {
 protected:
  void SetUp() override {}
  // Begins to record.
  void start(const Settings& more = {}) { make(with({{"mpool_base_record", folder_.path("t")}}, more)); }
  // The trace, which is whole when the library has ended.
  perf::Trace end(const std::string& suffix = "") {
    pool_.reset();
    library_.reset();
    return trace_in(folder_.path("t." + std::to_string(getpid()) + suffix));
  }

  const TempFolder folder_;
};

TEST_F(Record, each_call_and_each_event_is_in_the_trace_in_its_order) {
  start();
  const pinrail_handle_t first = pool_->must(kBase + 0x10, 5000, 5);
  const pinrail_handle_t hit = pool_->must(kBase + 0x10, 5000, 5);
  EXPECT_EQ(first.reg, hit.reg);
  EXPECT_TRUE(pool_->has(kBase + 0x10, 100));
  drop(hit);
  report(kBase, kPage);
  drop(first);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_ERR_NOT_FOUND);
  pool_->use(kBase, 1, 1, PINRAIL_FLAG_CACHE_BYPASS);
  const perf::Trace trace = end();
  EXPECT_EQ(ops_of(trace), "RRFDDIDERD");
  EXPECT_EQ(trace.records[0].addr, kBase + 0x10);
  EXPECT_EQ(trace.records[0].size, 5000u);
  EXPECT_EQ(trace.records[0].access, 5u);
  EXPECT_EQ(trace.records[5].addr, kBase);
  EXPECT_EQ(trace.records[5].size, kPage);
  EXPECT_EQ(trace.records[8].flags, uint32_t{PINRAIL_FLAG_CACHE_BYPASS});
}

// One such call of a program would make the whole trace one that no tool reads.
TEST_F(Record, what_cannot_be_replayed_is_left_out) {
  pool_.reset();
  make(with({{"mpool_base_record", folder_.path("t")}}, {}),
       fake::options_with(&fake::FakeOptions::on_demand, PINRAIL_ON_DEMAND_IMPLICIT));
  void* const wild = reinterpret_cast<void*>(~uintptr_t{0} - 16 * kPage + 1);
  pinrail_handle_t none;
  device_->fail_every_register(PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_register(pool_->get(), wild, kPage, 1, 0, &none), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_find(pool_->get(), wild, kPage, 1, &none), PINRAIL_ERR_NOT_FOUND);
  device_->fail_every_register(PINRAIL_SUCCESS);
  pool_->use(kBase, kPage, 1 | PINRAIL_TRAIT_ON_DEMAND);
  const pinrail_registrar_choice_t choice = lend(*device_);
  pinrail_mpool_t* on_demand = nullptr;
  ASSERT_EQ(pinrail_mpool_create("odp", &choice, nullptr, nullptr, &on_demand), PINRAIL_SUCCESS);
  pinrail_handle_t handle;
  ASSERT_EQ(pinrail_mpool_register(on_demand, reinterpret_cast<void*>(kBase), kPage, 1, 0, &handle), PINRAIL_SUCCESS);
  drop(handle);
  EXPECT_EQ(pinrail_mpool_destroy(on_demand, 0), PINRAIL_SUCCESS);
  pool_->use(kBase, kPage);
  EXPECT_EQ(ops_of(end()), "RD");
}

// As NFS says that at last when a file is closed.
TEST_F(Record, a_file_that_finds_no_room_when_it_is_closed_is_lost_with_a_message) {
  start();
  pool_->use(kBase, kPage);
  pool_.reset();
  is_disk_full = true;
  const std::string said = said_by([this] { library_.reset(); });
  is_disk_full = false;
  EXPECT_TRUE(has(said, "record lost") && has(said, "No space left")) << said;
}

TEST_F(Record, the_trace_has_what_is_set_for_the_pool_and_no_more) {
  start({{"mpool_base_record", folder_.path("t.%p")}, {"mpool_grdma_size_limit", "64M"}, {"rcache_base_verbose", "1"}});
  pool_->use(kBase, 1, 1);
  const perf::Trace trace = end();
  ASSERT_EQ(trace.settings.size(), 1u);
  EXPECT_EQ(trace.settings[0].first, "mpool_grdma_size_limit");
  EXPECT_EQ(trace.settings[0].second, "64M");
}

TEST_F(Record, a_hit_that_was_quick_before_is_recorded_each_time) {
  start();
  for (int i = 0; i < 1000; i++) pool_->use(kBase, kPage);
  EXPECT_EQ(pool_->stats().hits, 999u);
  const std::string ops = ops_of(end());
  EXPECT_EQ(count(ops, 'R'), 1000u);
  EXPECT_EQ(count(ops, 'D'), 1000u);
}

TEST_F(Record, a_forked_child_has_a_file_of_its_own_with_its_own_calls) {
  const Settings settings = {{"mpool_base_record", folder_.path("t.%p.xz")}};
  start(settings);
  const pinrail_handle_t held = pool_->must(kBase, kPage);
  const pid_t child = fork();
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
  EXPECT_EQ(ops_of(end(".xz")), "RD");
  EXPECT_EQ(ops_of(trace_in(folder_.path("t." + std::to_string(child) + ".xz"))), "RDRD");
}

TEST_F(Record, no_start_writes_over_a_file_that_is_there) {
  const std::string process = std::to_string(getpid());
  for (const std::string& file : {"t." + process, "u." + process, "t." + process + ".2"}) {
    start({{"mpool_base_record", folder_.path(file.substr(0, 1))}});
    pool_->use(kBase + (file[0] == 't' ? 0 : kPage), kPage);
    pool_.reset();
    library_.reset();
    EXPECT_EQ(trace_in(folder_.path(file)).records[0].addr, kBase + (file[0] == 't' ? 0 : kPage)) << file;
  }
  EXPECT_EQ(ops_of(trace_in(folder_.path("t." + process))), "RD");
}

TEST_F(Record, the_process_is_in_the_name_of_the_file_and_not_of_its_folder) {
  const std::string folder = folder_.path("a%pb");
  ASSERT_TRUE(std::filesystem::create_directory(folder));
  start({{"mpool_base_record", folder + "/t"}});
  pool_->use(kBase, kPage);
  pool_.reset();
  library_.reset();
  EXPECT_EQ(ops_of(trace_in(folder + "/t." + std::to_string(getpid()))), "RD");
}

TEST_F(Record, a_child_that_only_exits_writes_nothing) {
  start();
  pool_->use(kBase, kPage);
  const pid_t child = fork();
  if (child == 0) exit(0);
  expect_success_of(child);
  EXPECT_EQ(read_whole(folder_.path("t." + std::to_string(getpid()))), "") << "the parent has not ended";
}

TEST_F(Record, a_file_that_cannot_be_written_is_named_and_everything_else_works) {
  const std::string said = said_by([this] {
    start({{"mpool_base_record", "/nonexistent/folder/t"}});
    pool_->use(kBase, kPage);
    pool_.reset();
    library_.reset();
  });
  for (const char* const part : {"record refused", "/nonexistent/folder/t", "No such file"}) {
    EXPECT_TRUE(has(said, part)) << said;
  }
  const std::string said_of_length = said_by([] {
    const Library library({{"mpool_base_record", "/long" + std::string(5000, 'g')}});
  });
  EXPECT_TRUE(has(said_of_length, "/longggg") && has(said_of_length, "too long")) << said_of_length;
}

// What pools record is whole whatever becomes of the process: exec, exit, signals, a thousand threads. Another process
// asks for what is held by waking a word that it may only read.

class RecordLife : public Record {
 protected:
  // The one trace of the folder; "" and its records' operations, or why it is refused.
  std::string why_refused(std::string* ops_out) const {
    std::string why = "there is no file";
    for (const auto& file : std::filesystem::directory_iterator(folder_.path())) {
      perf::Trace trace;
      const perf::Result read = perf::read_trace(file.path(), &trace);
      why = read.ok() ? "" : read.why();
      *ops_out = ops_of(trace);
    }
    return why;
  }
};

// Registers and releases. The length tells the place.
void use_place(const Pool& pool, uintptr_t place) { pool.use(kBase + place * 0x1000000, (1 + place) * kPage); }
bool is_whole(const pinrail_mpool_event_t& event) {
  return event.length == (1 + (event.base - kBase) / 0x1000000) * kPage;
}

TEST_F(RecordLife, a_program_that_is_started_by_exec_has_neither_the_figures_nor_a_part_of_the_trace) {
  const int status = exit_status_of([&]() -> int {
    start();
    pool_->use(kBase, kPage);
    // The output of the test may be a file in a folder of that name.
    const std::string look = "! ls -l /proc/self/fd/ | grep -q -e /memfd:pinrail -e " + folder_.path("t");
    execl("/bin/sh", "sh", "-c", look.c_str(), nullptr);
    return 99;
  });
  EXPECT_EQ(status, 0) << "it has a descriptor of Pinrail's";
  std::string ops;
  EXPECT_NE(why_refused(&ops).find("is empty"), std::string::npos) << ops;
}

// "ulimit -f": a write above it ends a process. What the child says may go to a file, too.
TEST_F(RecordLife, a_trace_that_is_longer_than_a_file_may_be_is_lost_and_ends_no_process) {
  const int status = exit_status_of([&]() -> int {
    const rlimit few{64, 64};
    if (freopen("/dev/null", "w", stderr) == nullptr || setrlimit(RLIMIT_FSIZE, &few) != 0) return 99;
    start();
    pool_->use(kBase, kPage);
    pool_.reset();
    library_.reset();
    return 0;
  });
  EXPECT_EQ(status, 0);
}

// Each of these threads is inside some call when the process exits.
TEST_F(RecordLife, an_exit_while_threads_record_leaves_a_whole_trace) {
  const int status = exit_status_of([&]() -> int {
    start();
    std::atomic<int> started{0};
    for (uintptr_t i = 0; i < 32; ++i) {
      std::thread([&, i] {
        for (uintptr_t round = 0;; ++round) {
          use_place(*pool_, i);
          if (round % 4 == 0) report(kBase + i * 0x1000000, kPage);
          if (round == 4) ++started;
          usleep(100);
        }
      }).detach();
    }
    while (started.load() != 32) usleep(1000);
    exit(0);
  });
  EXPECT_EQ(status, 0);
  std::string ops;
  EXPECT_EQ(why_refused(&ops), "");
  EXPECT_GT(ops.size(), size_t{32} * 2 * 4);
}

volatile sig_atomic_t reported = 0;

TEST_F(RecordLife, an_exit_while_another_thread_finalizes_leaves_a_whole_trace) {
  constexpr int kUses = 100000;
  const int status = exit_status_of([&]() -> int {
    start();
    for (int i = 0; i < kUses; ++i) pool_->use(kBase, kPage);
    std::thread([&] {
      pool_.reset();
      library_.reset();
    }).detach();
    const std::string file = folder_.path("t." + std::to_string(getpid()));
    while (std::filesystem::file_size(file) == 0) usleep(100);  // until the other thread writes
    exit(0);
  });
  EXPECT_EQ(status, 0);
  std::string ops;
  EXPECT_EQ(why_refused(&ops), "");
  EXPECT_EQ(ops.size(), size_t{2} * kUses);
}

// Static objects that a message function uses are gone when the library's own end begins.
TEST_F(RecordLife, a_trace_that_is_lost_at_exit_is_said_without_the_message_function_of_the_program) {
  static bool is_over = false;
  const int status = exit_status_of([&]() -> int {
    start();
    const auto function = [](void*, int, const char*, const char*) {
      if (is_over) _exit(98);
    };
    pinrail_set_message_function(function, nullptr);
    pool_->use(kBase, kPage);
    std::filesystem::remove_all(folder_.path());
    if (freopen("/dev/null", "w", stderr) == nullptr || std::atexit([] { is_over = true; }) != 0) return 99;
    exit(0);
  });
  EXPECT_EQ(status, 0);
}

// It would wait a minute for the thread that writes: itself.
TEST_F(RecordLife, an_exit_in_the_message_that_the_trace_is_lost_waits_for_nobody) {
  const int status = exit_status_of([&]() -> int {
    start();
    const auto function = [](void*, int, const char*, const char* text) {
      alarm(30);
      if (has(text, "record lost")) exit(3);
    };
    pinrail_set_message_function(function, nullptr);
    std::filesystem::remove_all(folder_.path());
    pool_.reset();
    library_.reset();
    return 99;
  });
  EXPECT_EQ(status, 3);
}

TEST_F(RecordLife, events_of_a_signal_handler_are_whole_and_counted) {
  start();
  struct sigaction action {};
  action.sa_handler = [](int) {
    report(kBase, kPage);
    reported = reported + 1;
  };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
  const itimerval often = {{0, 500}, {0, 500}}, never = {};
  setitimer(ITIMER_REAL, &often, nullptr);
  for (uintptr_t i = 0; reported < 50; ++i) {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pool_->reg(kBase + i % 8 * 0x1000000, (1 + i % 8) * kPage, &handle);
    if (status == PINRAIL_SUCCESS) drop(handle);
    // R13: on a slow machine an event comes during each try.
    EXPECT_TRUE(status == PINRAIL_SUCCESS || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) << status;
  }
  setitimer(ITIMER_REAL, &never, nullptr);
  const std::vector<pinrail_mpool_event_t> events = pool_->events();
  EXPECT_GT(events.size(), 8u);
  uint64_t ended = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    if (events[i].kind == PINRAIL_EVENT_MEMORY) ended += events[i].count;
    EXPECT_TRUE(is_whole(events[i]) || events[i].kind == PINRAIL_EVENT_MEMORY) << events[i].number;
    EXPECT_TRUE(i == 0 || events[i].number > events[i - 1].number) << events[i].number;
  }
  EXPECT_EQ(ended, pool_->stats().invalidations);
  pool_.reset();
  library_.reset();
  std::string ops;
  EXPECT_EQ(why_refused(&ops), "");
  EXPECT_GE(std::count(ops.begin(), ops.end(), 'I'), 50);
}

TEST(Use, what_is_held_idle_or_dead_is_told_apart) {
  const Library library(Settings{{"mpool_grdma_gc_thread", "never"}});
  const fake::FakeRegistrar device;
  const Pool pool(device);
  const Held held = pool.hold(kBase, kPage);
  pool.use(kBase + 16 * kPage, 2 * kPage);
  pool.use(kBase + 32 * kPage, 4 * kPage);
  report(kBase + 32 * kPage, kPage);
  const auto expect = [&](uint64_t held_pages, uint64_t held_count, uint64_t dead_pages, uint64_t dead_count) {
    const pinrail_mpool_stats_t stats = pool.stats();
    EXPECT_EQ(stats.held_bytes, held_pages * kPage);
    EXPECT_EQ(stats.held_count, held_count);
    EXPECT_EQ(stats.dead_bytes, dead_pages * kPage);
    EXPECT_EQ(stats.dead_count, dead_count);
    EXPECT_EQ(stats.registered_bytes, 7 * kPage);
  };
  expect(1, 1, 4, 1);
  report(kBase, kPage);
  expect(1, 1, 4, 1);  // it is held, dead or not
}

// The shortest and the sum of what ten registrations and ten ways back count, of a registrar that takes so long for
// each.
struct Times {
  uint64_t shortest, sum;
};
Times times_in_registrar(const char* print_stats, std::chrono::nanoseconds each) {
  const Library library(Settings{{"mpool_grdma_gc_thread", "never"}, {"mpool_grdma_print_stats", print_stats}});
  fake::FakeRegistrar device;
  device.on_register([each](auto&&...) { std::this_thread::sleep_for(each); });
  device.on_deregister([each](auto&&...) { std::this_thread::sleep_for(each); });
  const Pool pool(device);
  Times times{UINT64_MAX, 0};
  const auto count = [&] {
    const uint64_t taken = pool.stats().registrar_ns - times.sum;
    times = {std::min(times.shortest, taken), times.sum + taken};
  };
  for (int i = 0; i < 10; ++i) {
    pool.use(kBase, kPage);
    count();
    report(kBase, kPage);
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    count();
  }
  return times;
}

TEST(TimeInRegistrar, is_exact_if_it_is_printed_in_the_end) {
  EXPECT_GE(times_in_registrar("yes", std::chrono::microseconds(100)).shortest, uint64_t{100000});
}

TEST(TimeInRegistrar, otherwise_goes_by_the_ticks_of_the_kernel) {
  timespec tick;
  ASSERT_EQ(clock_getres(CLOCK_MONOTONIC_COARSE, &tick), 0);
  const auto nanoseconds = static_cast<uint64_t>(tick.tv_nsec);
  // Twenty calls of two ticks each; a tick of a busy machine may come late, so one call alone may count as none.
  EXPECT_GE(times_in_registrar("no", std::chrono::nanoseconds(2 * nanoseconds)).sum, 20 * nanoseconds);
}

TEST(TimeInRegistrar, counts_what_was_refused) {
  const Library library(Settings{{"mpool_grdma_print_stats", "yes"}});
  fake::FakeRegistrar device;
  device.on_register([](auto&&...) { std::this_thread::sleep_for(std::chrono::microseconds(100)); });
  device.fail_every_register(PINRAIL_ERR_ERROR);
  const Pool pool(device);
  pinrail_handle_t refused;
  EXPECT_EQ(pinrail_mpool_register(pool.get(), reinterpret_cast<void*>(kBase), kPage, 1, 0, &refused),
            PINRAIL_ERR_ERROR);
  EXPECT_GE(pool.stats().registrar_ns, uint64_t{100000});
}

// The figures of this process's newest pool, mapped as another process maps them; NULL: there are none.
const pinrail_figures_t* figures() {
  for (int file = 1023; file > 2; --file) {
    if (file_behind(file).find("/memfd:" PINRAIL_FIGURES_NAME) != 0) continue;
    const int own = open(("/proc/self/fd/" + std::to_string(file)).c_str(), O_RDONLY | O_CLOEXEC);
    void* const at = mmap(nullptr, sizeof(pinrail_figures_t), PROT_READ, MAP_SHARED, own, 0);
    close(own);
    return at == MAP_FAILED ? nullptr : static_cast<const pinrail_figures_t*>(at);
  }
  return nullptr;
}
bool has_futex_waitv() { return syscall(449, nullptr, 0, 0, nullptr, 0) != 0 && errno != ENOSYS && errno != EPERM; }

TEST(Use, is_shown_to_a_reader_that_rings_and_not_before_with_the_names_of_pool_registrar_and_monitors) {
  if (!has_futex_waitv()) GTEST_SKIP() << "this kernel has no futex_waitv";
  const Library library(Settings{{"mpool_grdma_gc_thread", "auto"}});
  const fake::FakeRegistrar device;
  const Pool pool(device);
  const Held held = pool.hold(kBase, 3 * kPage);
  const pinrail_figures_t* const shown = figures();
  ASSERT_NE(shown, nullptr);
  EXPECT_EQ(std::string(shown->pool) + " " + shown->registrar + " " + shown->monitors, "grdma fake external");
  for (int round = 0; round < 2; ++round) {  // when the second one begins, all of the first one has been done
    pool.use(kBase + 64 * kPage, kPage);
    report(kBase + 64 * kPage, kPage);
    EXPECT_TRUE(comes_true([&] { return device.live_count() == 1; }));
  }
  EXPECT_EQ(__atomic_load_n(&shown->looks, __ATOMIC_ACQUIRE), 0u) << "what wakes the thread otherwise is no bell";
  const auto ring = [&] {
    syscall(SYS_futex, &shown->bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    return __atomic_load_n(&shown->looks, __ATOMIC_ACQUIRE) != 0;
  };
  EXPECT_TRUE(comes_true(ring));
  EXPECT_EQ(shown->held_bytes, 3 * kPage);
  EXPECT_EQ(shown->held_count, 1u);
  EXPECT_EQ(shown->bell, 0u);
}

}  // namespace
}  // namespace pinrail::test
