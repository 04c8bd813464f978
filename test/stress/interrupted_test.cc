// SPDX-License-Identifier: BSD-3-Clause
// What interrupts threads anywhere: the process exits (R10), or a signal handler makes memory go away (E3). With
// PINRAIL_TEST_SOAK=1 2,000 exits in each state instead of 20, and a minute of signals instead of a second.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "test/support/cases.h"
#include "test/support/host_table.h"
#include "test/support/threads.h"

// ThreadSanitizer: a process that exits while threads run has threads that were never joined.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();  // NOLINT: its name
const char* __tsan_default_options() { return "report_thread_leaks=0"; }

namespace pinrail::test {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegion = 16 * kPage;
constexpr size_t kRegions = 256;
constexpr unsigned kHangSeconds = 60;

char* map(size_t bytes) {
  return static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}
char* const memory = map(kRegions * kRegion);  // regions that threads register
pinrail_mpool_t* pool = nullptr;

char* region(size_t n) { return memory + n % kRegions * kRegion; }
pinrail_status_t take(char* base, pinrail_handle_t* handle_out) {
  return pinrail_mpool_register(pool, base, kRegion, PINRAIL_ACCESS_LOCAL_WRITE, 0, handle_out);
}
void use(char* base) {
  pinrail_handle_t handle;
  if (take(base, &handle) == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
}

// Exits. Each is a child that lets threads work, and exits in the middle of it. One that ends by a signal, or does not
// end, is a failure.

enum class State : uint8_t {
  hits,       // threads hit
  misses,     // threads miss and evict
  reports,    // threads miss, and report memory events
  gc,         // as reports, with a gc thread that always has something to give back
  callbacks,  // exit() is called by a worker, inside its registrar's callback
  threads,    // threads that hit come and go
};

std::atomic<int> calls_until_exit{0};  // of register_mem; 0: it does not exit

pinrail_status_t register_or_exit(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  if (calls_until_exit.load() != 0 && calls_until_exit.fetch_sub(1) == 1) std::exit(0);
  return PINRAIL_SUCCESS;
}

// One step of a worker.
void work(State state, size_t n) {
  switch (state) {
    case State::hits: use(region(n % 4)); break;
    case State::misses: use(region(n * 7)); break;
    case State::reports:
    case State::gc:
    case State::callbacks:
      use(region(n));
      pinrail_monitor_report(region(n), kRegion);
      break;
    case State::threads: std::thread([n] { use(region(n % 4)); }).join(); break;
  }
}

// Exits here or in a callback; returns what is wrong.
int live_and_exit(State state, unsigned round) {
  alarm(kHangSeconds);
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  if (state == State::misses) wanted.count_limit = kRegions / 8;
  const char* const gc_limit = state == State::gc ? "64K" : "64M";
  pool =
      open_library_with_table({{"monitor", "external"}, {"mpool_grdma_gc_limit", gc_limit}}, register_or_exit, wanted);
  if (pool == nullptr) return 2;
  std::atomic<int> started{0};
  for (size_t first : {0, 1}) {
    std::thread([state, first, &started] {
      for (size_t n = first;; n += 2) {
        work(state, n);
        if (n == first) started.fetch_add(1);
      }
    }).detach();
  }
  while (started.load() != 2) usleep(20);
  if (state == State::callbacks) calls_until_exit.store(1 + static_cast<int>(round % 16));
  usleep(round * 37 % 1500);
  while (state == State::callbacks) use(region(0));
  std::exit(0);
}

bool is_soak() { return std::getenv("PINRAIL_TEST_SOAK") != nullptr; }

class Exits : public testing::TestWithParam<State> {};

TEST_P(Exits, in_the_middle_of_whatever_threads_do_are_safe) {
  for (unsigned round = 0; round < (is_soak() ? 2000u : 20u); ++round) {
    ASSERT_EQ(exit_status_of([round] { return live_and_exit(GetParam(), round); }), 0) << round;
  }
}

INSTANTIATE_TEST_SUITE_P(States, Exits,
                         testing::Values(State::hits, State::misses, State::reports, State::gc, State::callbacks,
                                         State::threads));

// Signals. A thread misses all the time, and a handler on it makes memory go away. Nothing may hang, and nothing that
// is registered later may be older than the event (E1).

struct Handler {
  const char* monitor;
  enum class Act : uint8_t { reports, unmaps, calls, drops } act;
};
using Act = Handler::Act;

Act act = Act::reports;
char* const shared = map(kRegion);    // a region that the handler takes away, and another thread registers
std::atomic<uint32_t> taken_away{0};  // how often the handler has begun to take the shared region away
std::atomic<uint32_t> is_gone{0};     // how often it has done so
std::atomic<uint64_t> handled{0}, refused{0}, stale{0}, wrong{0};
std::atomic<bool> over{false};

// The key tells when the registration began.
pinrail_status_t register_with_time(void*, const pinrail_register_request_t*, pinrail_registration_t* reg) {
  reg->lkey = taken_away.load();
  return PINRAIL_SUCCESS;
}

void take_shared_away() {
  const uint32_t now = taken_away.fetch_add(1) + 1;
  if (act == Act::reports) {
    pinrail_monitor_report(shared, kRegion);
  } else {
    madvise(shared, kRegion, MADV_DONTNEED);
  }
  is_gone.store(now);
}

// No handler should: the calls must come back at least.
void call() {
  pinrail_handle_t handle;
  const pinrail_status_t status = take(memory, &handle);
  if (status == PINRAIL_ERR_BUSY) refused.fetch_add(1);
  if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_BUSY) wrong.fetch_add(1);
  if (status == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
}

void on_signal(int) {
  handled.fetch_add(1);
  if (act == Act::calls) return call();
  if (act == Act::unmaps) munmap(mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), kPage);
  // Each waits for uffd's reader, which may wait for a lock that the interrupted thread holds.
  for (int i = 0; act == Act::drops && i < 3; ++i) madvise(shared, kRegion, MADV_DONTNEED);
  take_shared_away();
}

void miss_all_the_time() {
  for (size_t n = 1; !over.load(); n = n % (kRegions - 1) + 1) {
    use(region(n));
    if (act == Act::reports) pinrail_monitor_report(region(n), kRegion);
  }
}

// On another thread: a thread that has seen that the memory is gone must not get an older registration.
void watch_shared() {
  while (!over.load()) {
    const uint32_t gone = is_gone.load();
    pinrail_handle_t handle;
    if (take(shared, &handle) != PINRAIL_SUCCESS) continue;
    if (handle.reg->lkey < gone) stale.fetch_add(1);
    pinrail_mpool_deregister(handle);
  }
}

class Signals : public testing::TestWithParam<Handler> {};

TEST_P(Signals, whose_handlers_make_memory_go_away_leave_nothing_stale) {
  const int seconds = is_soak() ? 60 : 1;
  act = GetParam().act;
  handled = refused = stale = wrong = 0;
  over = false;
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  wanted.count_limit = kRegions / 8;
  // uffd alone keeps nothing on a kernel of today unless the program says that it never does what uffd cannot see.
  const char* const never = act == Act::drops ? "guard_install,shmat_over" : "";
  pool =
      open_library_with_table({{"monitor", GetParam().monitor}, {"monitor_never", never}}, register_with_time, wanted);
  if (pool == nullptr) {
    pinrail_finalize();
    GTEST_SKIP() << "monitor " << GetParam().monitor << " does not work here";
  }
  std::signal(SIGUSR1, on_signal);
  alarm(static_cast<unsigned>(seconds) + kHangSeconds);  // a hang ends the process
  std::thread interrupted(miss_all_the_time), other(watch_shared);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  do {
    usleep(1000);
    pthread_kill(interrupted.native_handle(), SIGUSR1);
  } while (std::chrono::steady_clock::now() < end);
  over.store(true);
  interrupted.join();
  other.join();
  alarm(0);
  pinrail_status_t destroyed = pinrail_mpool_destroy(pool, 0);
  // pinrail.h: a call in a handler that interrupted a hit may leave a wrong count of references.
  if (act == Act::calls && destroyed == PINRAIL_ERR_BUSY)
    destroyed = pinrail_mpool_destroy(pool, PINRAIL_DESTROY_FORCE);
  EXPECT_EQ(destroyed, PINRAIL_SUCCESS);
  EXPECT_EQ(stale, 0u);
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(handled, 0u);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  std::printf("%ju signals, %ju calls refused\n", uintmax_t{handled}, uintmax_t{refused});
}

INSTANTIATE_TEST_SUITE_P(Handlers, Signals,
                         testing::Values(Handler{"external", Act::reports}, Handler{"external", Act::calls},
                                         Handler{"patcher", Act::unmaps}, Handler{"uffd", Act::drops}));

}  // namespace
}  // namespace pinrail::test
