// SPDX-License-Identifier: BSD-3-Clause
// What pools record is whole whatever becomes of the process: exec, exit, signals, a thousand threads. Another process
// asks for what is held by waking a word that it may only read.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <pinrail/events.h>
#include <pinrail/figures.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <thread>

#include "contrib/tools/perf/trace.h"
#include "test/fake/fake_registrar.h"
#include "test/support/library.h"
#include "test/support/tasks.h"
#include "test/support/team.h"
#include "test/support/temp_folder.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x7e0000000000;

// The exit status of a child that runs the function; -1: it was ended by a signal.
template <typename Function>
int in_child(Function&& function) {
  const pid_t child = fork();
  if (child == 0) {
    function();
    _exit(99);
  }
  int how = 0;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

// The one trace of the folder; "" and its records' operations, or why it is refused.
std::string why_refused(const TempFolder& folder, std::string* ops_out) {
  std::string why = "there is no file";
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    perf::Trace trace;
    const perf::Result read = perf::read_trace(file.path(), &trace);
    why = read.ok() ? "" : read.why();
    for (const perf::TraceRecord& record : trace.records) *ops_out += static_cast<char>(record.op);
  }
  return why;
}

std::vector<pinrail_mpool_event_t> events_of(const Pool& pool) {
  std::vector<pinrail_mpool_event_t> events(1 << 13);
  events[0].size = sizeof(events[0]);
  uint64_t next = 0;
  size_t count = 0;
  EXPECT_EQ(pinrail_mpool_events(pool.get(), events.data(), events.size(), &next, &count), PINRAIL_SUCCESS);
  events.resize(count);
  return events;
}

// Registers and releases. The length tells the place.
void use_place(const Pool& pool, uintptr_t place) { pool.use(kBase + place * 0x1000000, (1 + place) * kPage); }
bool is_whole(const pinrail_mpool_event_t& event) {
  return event.length == (1 + (event.base - kBase) / 0x1000000) * kPage;
}

TEST(RecordLife, a_program_that_is_started_by_exec_has_neither_the_figures_nor_a_part_of_the_trace) {
  const TempFolder folder;
  const int status = in_child([&] {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    pool.use(kBase, kPage);
    // The output of the test may be a file in a folder of that name.
    const std::string look = "! ls -l /proc/self/fd/ | grep -q -e /memfd:pinrail -e " + folder.path("t");
    execl("/bin/sh", "sh", "-c", look.c_str(), nullptr);
  });
  EXPECT_EQ(status, 0) << "it has a descriptor of Pinrail's";
  std::string ops;
  EXPECT_NE(why_refused(folder, &ops).find("is empty"), std::string::npos) << ops;
}

// Each of these threads is inside some call when the process exits.
TEST(RecordLife, an_exit_while_threads_record_leaves_a_whole_trace) {
  const TempFolder folder;
  const int status = in_child([&] {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    std::atomic<int> started{0};
    for (uintptr_t i = 0; i < 32; ++i) {
      std::thread([&, i] {
        for (uintptr_t round = 0;; ++round) {
          use_place(pool, i);
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
  EXPECT_EQ(why_refused(folder, &ops), "");
  EXPECT_GT(ops.size(), size_t{32} * 2 * 4);
}

volatile sig_atomic_t reported = 0;

TEST(RecordLife, events_of_a_signal_handler_are_whole_and_counted) {
  const TempFolder folder;
  {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    struct sigaction action {};
    action.sa_handler = [](int) {
      report(kBase, kPage);
      reported = reported + 1;
    };
    action.sa_flags = SA_RESTART;
    ASSERT_EQ(sigaction(SIGALRM, &action, nullptr), 0);
    const itimerval often = {{0, 500}, {0, 500}}, never = {};
    setitimer(ITIMER_REAL, &often, nullptr);
    for (uintptr_t i = 0; reported < 50; ++i) use_place(pool, i % 8);
    setitimer(ITIMER_REAL, &never, nullptr);
    const std::vector<pinrail_mpool_event_t> events = events_of(pool);
    EXPECT_GT(events.size(), 8u);
    uint64_t ended = 0;
    for (size_t i = 0; i < events.size(); ++i) {
      if (events[i].kind == PINRAIL_EVENT_MEMORY) ended += events[i].count;
      EXPECT_TRUE(is_whole(events[i]) || events[i].kind == PINRAIL_EVENT_MEMORY) << events[i].number;
      EXPECT_TRUE(i == 0 || events[i].number > events[i - 1].number) << events[i].number;
    }
    EXPECT_EQ(ended, pool.stats().invalidations);
  }
  std::string ops;
  EXPECT_EQ(why_refused(folder, &ops), "");
  EXPECT_GE(std::count(ops.begin(), ops.end(), 'I'), 50);
}

TEST(RecordLife, a_thousand_threads_leave_whole_events_and_a_whole_trace) {
  constexpr uintptr_t kThreads = 1000;
  const TempFolder folder;
  {
    const Library library(Settings{{"mpool_base_record", folder.path("t")}});
    const fake::FakeRegistrar device;
    const Pool pool(device);
    std::promise<void> start;
    const std::shared_future<void> started = start.get_future().share();
    Team threads(kThreads, [&](uintptr_t i) {
      started.wait();
      for (int round = 0; round < 3; ++round) use_place(pool, i);
    });
    start.set_value();
    threads.join();
    const std::vector<pinrail_mpool_event_t> events = events_of(pool);
    EXPECT_EQ(events.size(), kThreads) << "one miss each";
    for (const pinrail_mpool_event_t& event : events) EXPECT_TRUE(is_whole(event)) << event.number;
    EXPECT_EQ(pool.stats().misses_cold, kThreads);
    EXPECT_EQ(pool.stats().hits, 2 * kThreads);
  }
  std::string ops;
  EXPECT_EQ(why_refused(folder, &ops), "");
  EXPECT_EQ(ops.size(), 6 * kThreads);
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
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    char target[64] = "";
    if (readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    if (std::string(target).find("/memfd:" PINRAIL_FIGURES_NAME) != 0) continue;
    const int own = open(path.c_str(), O_RDONLY | O_CLOEXEC);
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
