// SPDX-License-Identifier: BSD-3-Clause
// cost.cc - what a hit, a miss and the start cost, counted and not timed ("make soak").
//   cost hit [THREADS [REGIONS [inner]]]
//     instructions of a hit beside many threads. So many threads use the pool and stay; the last of them hits 10,000
//     times, spread over so many regions, in a function that callgrind counts by itself. Before, a pool that checks its
//     hits has come and gone. inner: the regions are parts of one registration
//   cost miss
//     instructions of a miss with its eviction. One thread asks for 2,048 ranges in turn, of which the pool keeps
//     1,024, so that each request is a miss; after three rounds ten are made in a function that callgrind counts by
//     itself
//   cost start [MOST]
//     system calls of the first thread for init, a pool and the first registration, with the default monitors. A call
//     that answers ENOENT is not counted, because the loader looks for libraries that are not there in as many folders
//     as its version and the machine have. Fails if there are more than MOST; without it, than with all components on
//     x86-64 and glibc
// The registrar reads no memory, and the addresses of hits and misses have none.
#include <linux/ptrace.h>
#include <pinrail/pinrail.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "test/support/host_table.h"

namespace {

constexpr size_t kHits = 10000;
constexpr uintptr_t kFirst = uintptr_t{1} << 43;
constexpr size_t kLength = 65536;
constexpr size_t kRanges = 2048, kRounds = 10;

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}

bool use(pinrail_mpool_t* pool, size_t region, size_t length) {
  pinrail_handle_t handle;
  void* const memory = reinterpret_cast<void*>(kFirst + region * kLength);  // NOLINT(performance-no-int-to-ptr)
  return pinrail_mpool_register(pool, memory, length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) == PINRAIL_SUCCESS &&
         pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
}

size_t regions = 1;
bool is_inner = false;

bool use_each(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < regions; ++i) well = use(pool, i + is_inner, kLength) && well;
  return well;
}

bool use_all(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < kRanges; ++i) well = use(pool, i, kLength) && well;
  return well;
}

}  // namespace

// Named in C, for callgrind.
extern "C" __attribute__((noinline)) bool pinrail_test_hit_often(pinrail_mpool_t* pool) {
  bool well = true;
  constexpr size_t kFarAway = 7919;  // a prime number
  for (size_t i = 0, region = 0; i < kHits; ++i, region = (region + kFarAway) % regions)
    well = use(pool, region + is_inner, kLength) && well;
  return well;
}

extern "C" __attribute__((noinline)) bool pinrail_test_miss_often(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < kRounds; ++i) well = use_all(pool) && well;
  return well;
}

namespace {

int hit(int argc, char** argv) {
  const size_t threads = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 1024;
  if (argc > 3) regions = std::strtoul(argv[3], nullptr, 10);
  is_inner = argc > 4;
  pinrail_mpool_t* const checked = pinrail::test::open_library_with_table(
      {{"monitor", "external"}, {"mpool_grdma_check", "sample"}}, register_nothing);
  if (checked == nullptr || pinrail_mpool_destroy(checked, 0) != PINRAIL_SUCCESS) return 1;
  if (pinrail_finalize() != PINRAIL_SUCCESS) return 1;
  pinrail_mpool_t* const pool = pinrail::test::open_library_with_table({{"monitor", "external"}}, register_nothing);
  if (pool == nullptr) return 1;
  if (is_inner && !use(pool, 0, (regions + 1) * kLength)) return 1;
  std::atomic<size_t> ready{0};
  std::atomic<bool> well{true};
  std::mutex until_over;
  until_over.lock();
  std::vector<std::thread> all;
  for (size_t i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      well = use_each(pool) && use_each(pool) && use_each(pool) && well;
      if (i + 1 == threads) well = pinrail_test_hit_often(pool) && well;
      ++ready;
      const std::lock_guard<std::mutex> over(until_over);
    });
    while (ready != i + 1) std::this_thread::yield();
  }
  until_over.unlock();
  for (std::thread& thread : all) thread.join();
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  const bool counted =
      pinrail_mpool_read_stats(pool, &stats) == PINRAIL_SUCCESS && stats.misses == (is_inner ? 1 : regions);
  std::printf("cost: %zu threads, %llu hits, %llu misses\n", threads, static_cast<unsigned long long>(stats.hits),
              static_cast<unsigned long long>(stats.misses));
  return well && counted ? 0 : 1;
}

int miss() {
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.count_limit = kRanges / 2;
  pinrail_mpool_t* const pool =
      pinrail::test::open_library_with_table({{"monitor", "external"}}, register_nothing, options);
  if (pool == nullptr) return 1;
  bool well = true;
  for (size_t i = 0; i < 3; ++i) well = use_all(pool) && well;
  well = pinrail_test_miss_often(pool) && well;
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  const bool counted =
      pinrail_mpool_read_stats(pool, &stats) == PINRAIL_SUCCESS && stats.misses == (3 + kRounds) * kRanges;
  std::printf("cost: %llu misses\n", static_cast<unsigned long long>(stats.misses));
  return well && counted ? 0 : 1;
}

char buffer[65536];

long trace(long request, pid_t child, unsigned long address, void* data) {
  return syscall(SYS_ptrace, request, child, address, data);
}

// The process that is traced. It starts the library when its parent lets it go on.
[[noreturn]] void start_library() {
  if (trace(PTRACE_TRACEME, 0, 0, nullptr) != 0 || raise(SIGSTOP) != 0) _exit(77);
  pinrail_mpool_t* const pool = pinrail::test::open_library_with_table({}, register_nothing);
  pinrail_handle_t handle;
  const bool well = pool != nullptr && pinrail_mpool_register(pool, buffer, sizeof(buffer), PINRAIL_ACCESS_LOCAL_WRITE,
                                                              0, &handle) == PINRAIL_SUCCESS;
  _exit(well ? 0 : 1);
}

// Lets the child go on to its next system call, or to that call's end. False: it has ended.
bool go_on(pid_t child, int* status) {
  return trace(PTRACE_SYSCALL, child, 0, nullptr) == 0 && waitpid(child, status, 0) == child && WIFSTOPPED(*status);
}

int start(int argc, char** argv) {
  const unsigned long most = argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 430;
  const pid_t child = fork();
  if (child == 0) start_library();
  int status = 0;
  waitpid(child, &status, 0);
  trace(PTRACE_SETOPTIONS, child, 0,
        reinterpret_cast<void*>(PTRACE_O_TRACESYSGOOD));  // NOLINT(performance-no-int-to-ptr)
  unsigned long calls = 0;
  while (go_on(child, &status)) {
    ptrace_syscall_info call{};
    trace(PTRACE_GET_SYSCALL_INFO, child, sizeof(call), &call);
    if (call.op == PTRACE_SYSCALL_INFO_EXIT && call.exit.rval != -ENOENT) ++calls;
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    std::fprintf(stderr, "cost: the child did not start\n");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  std::printf("cost: %lu system calls; at most %lu\n", calls, most);
  return calls != 0 && calls <= most ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "hit") return hit(argc, argv);
  if (what == "miss") return miss();
  if (what == "start") return start(argc, argv);
  std::fprintf(stderr, "usage: cost hit [THREADS [REGIONS [inner]]] | miss | start [MOST]\n");
  return 2;
}
