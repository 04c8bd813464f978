// SPDX-License-Identifier: BSD-3-Clause
// Memory events in signal handlers (E3): a thread misses all the time, and a handler on it makes memory go away.
// Nothing may hang, and nothing that is registered later may be older than the event (E1).
//
//   signal_stress [SECONDS [HZ]]    of each case; 1 and 1,000 without arguments
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
#include <vector>

#include "test/support/host_table.h"

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegion = 16 * kPage;
constexpr size_t kRegions = 256;
constexpr unsigned kHangSeconds = 30;

char* memory = nullptr;  // regions that threads register
char* shared = nullptr;  // a region that the handler takes away, and another thread registers
pinrail_mpool_t* pool = nullptr;
std::atomic<uint32_t> taken_away{0};  // how often the handler has begun to take the shared region away
std::atomic<uint32_t> is_gone{0};     // how often it has done so
std::atomic<uint64_t> handled{0}, refused{0}, stale{0}, wrong{0};
std::atomic<bool> over{false};

// What the handler does.
enum class Act : uint8_t { reports, unmaps, calls, drops };
Act act = Act::reports;

// The key tells when the registration began.
pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t* reg) {
  reg->lkey = taken_away.load();
  return PINRAIL_SUCCESS;
}

pinrail_status_t use(char* base, pinrail_handle_t* handle_out) {
  return pinrail_mpool_register(pool, base, kRegion, PINRAIL_ACCESS_LOCAL_WRITE, 0, handle_out);
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

void map_and_unmap() {
  void* const page = mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page != MAP_FAILED) munmap(page, kPage);
}

// No handler should: the calls must come back at least.
void call() {
  pinrail_handle_t handle;
  const pinrail_status_t status = use(memory, &handle);
  if (status == PINRAIL_ERR_BUSY) refused.fetch_add(1);
  if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_BUSY) wrong.fetch_add(1);
  if (status == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
}

void on_signal(int) {
  handled.fetch_add(1);
  if (act == Act::calls) return call();
  if (act == Act::unmaps) map_and_unmap();
  // Each waits for uffd's reader, which may wait for a lock that the interrupted thread holds.
  for (int i = 0; act == Act::drops && i < 3; ++i) madvise(shared, kRegion, MADV_DONTNEED);
  take_shared_away();
}

void miss_all_the_time() {
  for (size_t n = 1; !over.load(); n = n % (kRegions - 1) + 1) {
    pinrail_handle_t handle;
    char* const base = memory + n * kRegion;
    if (use(base, &handle) == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
    if (act == Act::reports) pinrail_monitor_report(base, kRegion);
  }
}

// On another thread: a thread that has seen that the memory is gone must not get an older registration.
void watch_shared() {
  while (!over.load()) {
    const uint32_t gone = is_gone.load();
    pinrail_handle_t handle;
    if (use(shared, &handle) != PINRAIL_SUCCESS) continue;
    if (handle.reg->lkey < gone) stale.fetch_add(1);
    pinrail_mpool_deregister(handle);
  }
}

void send(pthread_t to, int seconds, long hertz) {
  const timespec pause = {0, 1000000000 / hertz};
  const time_t end = time(nullptr) + seconds;
  while (time(nullptr) < end) {
    nanosleep(&pause, nullptr);
    pthread_kill(to, SIGUSR1);
  }
  over.store(true);
}

// uffd alone keeps nothing on a kernel of today unless the program says that it never does what uffd cannot see.
bool open_library(const char* monitor) {
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  wanted.count_limit = kRegions / 8;
  const char* const never = act == Act::drops ? "guard_install,shmat_over" : "";
  pool = pinrail::test::open_library_with_table({{"monitor", monitor}, {"monitor_never", never}}, register_mem, wanted);
  return pool != nullptr;
}

int run_case(const char* monitor, Act what, const char* name, int seconds, long hertz) {
  act = what;
  handled = refused = stale = wrong = 0;
  over = false;
  if (!open_library(monitor)) {
    std::printf("signal_stress: %s: left out, the monitor does not work here\n", name);
    return 0;
  }
  alarm(static_cast<unsigned>(seconds) + kHangSeconds);  // a hang ends the process
  std::vector<std::thread> threads;
  threads.emplace_back(miss_all_the_time);
  const pthread_t interrupted = threads.back().native_handle();
  threads.emplace_back(watch_shared);
  send(interrupted, seconds, hertz);
  for (std::thread& thread : threads) thread.join();
  alarm(0);
  pinrail_status_t destroyed = pinrail_mpool_destroy(pool, 0);
  // pinrail.h: a call in a handler that interrupted a hit may leave a wrong count of references.
  if (act == Act::calls && destroyed == PINRAIL_ERR_BUSY) {
    destroyed = pinrail_mpool_destroy(pool, PINRAIL_DESTROY_FORCE);
  }
  const bool good = stale == 0 && wrong == 0 && handled != 0 && destroyed == PINRAIL_SUCCESS;
  std::printf("signal_stress: %s: %llu signals, %llu stale, %llu calls refused, %llu wrong, destroy %s\n", name,
              static_cast<unsigned long long>(handled.load()), static_cast<unsigned long long>(stale.load()),
              static_cast<unsigned long long>(refused.load()), static_cast<unsigned long long>(wrong.load()),
              pinrail_status_name(destroyed));
  std::fflush(stdout);
  return pinrail_finalize() == PINRAIL_SUCCESS && good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int seconds = argc > 1 ? std::atoi(argv[1]) : 1;
  const long hertz = argc > 2 ? std::atol(argv[2]) : 1000;
  const auto map = [](size_t bytes) {
    return static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  };
  memory = map(kRegions * kRegion);
  shared = map(kRegion);
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  int failed = run_case("external", Act::reports, "external", seconds, hertz);
  failed |= run_case("external", Act::calls, "calls in the handler", seconds, hertz);
  failed |= run_case("patcher", Act::unmaps, "patcher", seconds, hertz);
  failed |= run_case("uffd", Act::drops, "uffd", seconds, hertz);
  return failed;
}
