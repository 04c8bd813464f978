// SPDX-License-Identifier: BSD-3-Clause
// A process may exit in any state (R10). Each round is a child that initialises the library, lets threads work, and
// exits in the middle of it: by exit() or by a return from main, in turns. A child that ends by a signal or does not
// end is a failure.
//
//   exit_stress [ROUNDS [STATE]]    rounds for each of the six states, or for that one; 20 without an argument
#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>

#include "test/support/host_table.h"

namespace {

constexpr size_t kRegion = 65536;
constexpr size_t kRegions = 256;
constexpr unsigned kHangSeconds = 60;

// What the process exits in the middle of.
enum class State : uint8_t {
  hits,       // threads hit
  misses,     // threads miss and evict
  reports,    // threads miss, and report memory events
  gc,         // as reports, with a gc thread that always has something to give back
  callbacks,  // exit() is called by a worker, inside its registrar's callback
  threads,    // threads that hit come and go
};
constexpr State kStates[] = {State::hits, State::misses, State::reports, State::gc, State::callbacks, State::threads};
constexpr const char* kNames[] = {"hits", "misses", "reports", "gc", "callbacks", "threads"};

char* memory = nullptr;
pinrail_mpool_t* pool = nullptr;
std::atomic<int> calls_until_exit{0};  // of register_mem; 0: it does not exit

pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  if (calls_until_exit.load() != 0 && calls_until_exit.fetch_sub(1) == 1) std::exit(0);
  return PINRAIL_SUCCESS;
}

bool open_library(State state) {
  pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
  if (state == State::misses) wanted.count_limit = kRegions / 8;
  const char* const gc_limit = state == State::gc ? "64K" : "64M";
  pool = pinrail::test::open_library_with_table({{"monitor", "external"}, {"mpool_grdma_gc_limit", gc_limit}},
                                                register_mem, wanted);
  return pool != nullptr;
}

void* region(size_t n) { return memory + n % kRegions * kRegion; }

void use(size_t n) {
  pinrail_handle_t handle;
  if (pinrail_mpool_register(pool, region(n), kRegion, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) == PINRAIL_SUCCESS) {
    pinrail_mpool_deregister(handle);
  }
}

// One step of a worker.
void work(State state, size_t n) {
  switch (state) {
    case State::hits: use(n % 4); break;
    case State::misses: use(n * 7); break;
    case State::reports:
    case State::gc:
    case State::callbacks:
      use(n);
      pinrail_monitor_report(region(n), kRegion);
      break;
    case State::threads: std::thread([n] { use(n % 4); }).join(); break;
  }
}

void pause_for(long microseconds) {
  const timespec time = {0, microseconds * 1000};
  nanosleep(&time, nullptr);
}

// In the child. Returns, or exits in a callback.
int live_and_exit(State state, unsigned round) {
  alarm(kHangSeconds);
  memory = static_cast<char*>(
      mmap(nullptr, kRegions * kRegion, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (!open_library(state)) return 2;
  std::atomic<int> started{0};
  for (size_t first : {0, 1}) {
    std::thread([state, first, &started] {
      for (size_t n = first;; n += 2) {
        work(state, n);
        if (n == first) started.fetch_add(1);
      }
    }).detach();
  }
  while (started.load() != 2) pause_for(20);
  if (state == State::callbacks) calls_until_exit.store(1 + static_cast<int>(round % 16));
  pause_for(round * 37 % 1500);
  while (state == State::callbacks) use(0);
  if (round % 2 == 0) std::exit(0);
  return 0;
}

bool ended_well(pid_t child, const char* name, unsigned round) {
  int status = 0;
  if (waitpid(child, &status, 0) != child) return false;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return true;
  const bool by_signal = WIFSIGNALED(status);
  std::printf("exit_stress: %s, round %u: %s %d\n", name, round, by_signal ? "signal" : "status",
              by_signal ? WTERMSIG(status) : WEXITSTATUS(status));
  return false;
}

}  // namespace

// ThreadSanitizer: a process that exits while threads run has threads that were never joined.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();  // NOLINT: its name
const char* __tsan_default_options() { return "report_thread_leaks=0"; }

int main(int argc, char** argv) {
  const unsigned rounds = argc > 1 ? static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)) : 20;
  unsigned failed = 0;
  for (const State state : kStates) {
    const char* const name = kNames[static_cast<size_t>(state)];
    if (argc > 2 && std::string(argv[2]) != name) continue;
    unsigned of_state = 0;
    for (unsigned round = 0; round < rounds; ++round) {
      std::fflush(stdout);
      const pid_t child = fork();
      if (child == 0) return live_and_exit(state, round);
      if (child < 0 || !ended_well(child, name, round)) ++of_state;
    }
    std::printf("exit_stress: %s: %u of %u failed\n", name, of_state, rounds);
    failed += of_state;
  }
  return failed == 0 ? 0 : 1;
}
