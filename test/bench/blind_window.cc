// SPDX-License-Identifier: BSD-3-Clause
// blind_window - how long after another library laid its patch over Pinrail's does a stale registration still answer?
// components/monitor/patcher/README tells what its lines mean. Each sample is a process of its own, for patches stay.
#include <dlfcn.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/patch/system_call.h"
#include "test/support/host_table.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::bench {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPool = 40000;  // pages cached beforehand, one for each look
constexpr int kSamples = 21;
constexpr double kNever = 1e9;

enum class Writer : uint8_t { by_libc, by_itself };  // how the other one makes code writable
enum class Caller : uint8_t { misses, only_hits };

using Clock = std::chrono::steady_clock;
using patch::system_call_hook;

double microseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

pinrail_mpool_t* make_pool() {
  const pinrail_registrar_t registrar = test::host_table("zero-cost");
  const pinrail_setting_t settings[] = {{"monitor", "patcher"}};
  pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
  init.settings = settings;
  init.setting_count = 1;
  if (pinrail_init(&init) != PINRAIL_SUCCESS) return nullptr;
  pinrail_registrar_choice_t choice{};
  choice.table = &registrar;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = 1;
  pinrail_mpool_t* pool = nullptr;
  return pinrail_mpool_create("grdma", &choice, nullptr, &options, &pool) == PINRAIL_SUCCESS ? pool : nullptr;
}

// The other library's munmap: it makes the system call itself and reports nothing.
int deaf_munmap(void* base, size_t length) {
  return static_cast<int>(system_call_hook(SYS_munmap, reinterpret_cast<long>(base), static_cast<long>(length)));
}

void protect(Writer writer, uintptr_t page, int protection) {
  if (writer == Writer::by_libc) {
    mprotect(reinterpret_cast<void*>(page), 2 * kPage, protection);
  } else {
    system_call_hook(SYS_mprotect, static_cast<long>(page), 2 * kPage, protection);
  }
}

// Thirteen bytes, as Open MPI lays them.
void lay_patch(Writer writer) {
  unsigned char code[13] = {0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3};
  const auto target = reinterpret_cast<uintptr_t>(&deaf_munmap);
  std::memcpy(code + 2, &target, sizeof(target));
  void* const function = dlsym(dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD), "munmap");
  const uintptr_t page = reinterpret_cast<uintptr_t>(function) & ~(kPage - 1);
  protect(writer, page, PROT_READ | PROT_WRITE | PROT_EXEC);
  std::memcpy(function, code, sizeof(code));
  protect(writer, page, PROT_READ | PROT_EXEC);
}

void use(pinrail_mpool_t* pool, char* at) {
  pinrail_handle_t handle{};
  if (pinrail_mpool_register(pool, at, kPage, 0, 0, &handle) == PINRAIL_SUCCESS) pinrail_mpool_deregister(handle);
}

bool answers(pinrail_mpool_t* pool, char* at) {
  pinrail_handle_t handle{};
  if (pinrail_mpool_find(pool, at, kPage, 0, &handle) != PINRAIL_SUCCESS) return false;
  pinrail_mpool_deregister(handle);
  return true;
}

// Microseconds from the patch to the last stale answer; 0: there was none.
double sample(Writer writer, Caller caller) {
  pinrail_mpool_t* const pool = make_pool();
  if (pool == nullptr) return -1;
  void* const reserved = mmap(nullptr, 2 * kPool * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  auto* const pages = static_cast<char*>(reserved);
  for (size_t i = 0; i < kPool; ++i) use(pool, pages + i * kPage);
  usleep(static_cast<useconds_t>(getpid() % 97 * 1000));  // anywhere between two looks of the monitor
  lay_patch(writer);
  const auto begin = Clock::now();
  double last_stale = 0;
  for (size_t i = 0; i < kPool && microseconds_since(begin) < 1e6; ++i) {
    char* const page = pages + i * kPage;
    munmap(page, kPage);
    if (caller == Caller::misses) use(pool, pages + (kPool + i) * kPage);
    if (answers(pool, page)) {
      last_stale = microseconds_since(begin);
    } else if (!answers(pool, pages + (i + 1) % kPool * kPage)) {
      return last_stale;  // all was given up: it has been found
    }
    if (caller == Caller::only_hits) usleep(20);
  }
  return kNever;
}

double sample_in_child(Writer writer, Caller caller) {
  int ends[2];
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
    const double took = sample(writer, caller);
    _exit(write(ends[1], &took, sizeof(took)) == sizeof(took) ? 0 : 1);
  }
  close(ends[1]);
  double took = -1;
  if (read(ends[0], &took, sizeof(took)) != sizeof(took)) took = -1;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  return took;
}

bool measure(const char* name, Writer writer, Caller caller) {
  std::vector<double> took;
  for (int i = 0; i < kSamples; ++i) took.push_back(sample_in_child(writer, caller));
  std::sort(took.begin(), took.end());
  std::printf("%-44s median %10.0f us  longest %10.0f us\n", name, took[kSamples / 2], took.back());
  return took.front() >= 0 && took.back() < kNever;
}

}  // namespace
}  // namespace pinrail::bench

int main() {
  using namespace pinrail::bench;
  const bool by_libc = measure("writable by libc's mprotect, only hits", Writer::by_libc, Caller::only_hits);
  const bool by_itself = measure("writable by its own system call, only hits", Writer::by_itself, Caller::only_hits);
  const bool misses = measure("writable by its own system call, misses too", Writer::by_itself, Caller::misses);
  return by_libc && by_itself && misses ? 0 : 1;
}

#else

int main() {
  std::puts("blind_window: patching is for x86-64 Linux with glibc");
  return 77;
}

#endif
