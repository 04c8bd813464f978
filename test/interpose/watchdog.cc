// SPDX-License-Identifier: BSD-3-Clause
#include "test/interpose/watchdog.h"

#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

namespace pinrail::interpose {
namespace {

constexpr int kMaxFrames = 40;

// The program is lost already: nothing here has to be safe, but it has to come out.
void print_frames(int) {
  void* frames[kMaxFrames];
  backtrace_symbols_fd(frames, backtrace(frames, kMaxFrames), STDERR_FILENO);
}

}  // namespace

Watchdog::Watchdog(std::vector<Beat>* beats, unsigned patience_s)
    : beats_(*beats), patience_s_(patience_s), last_(beats->size()), still_s_(beats->size()) {
  void* frame = nullptr;
  backtrace(&frame, 1);  // loads what it needs, while that can be loaded
  struct sigaction action {};
  action.sa_handler = print_frames;
  sigaction(SIGUSR2, &action, nullptr);
}

void Watchdog::look() {
  for (size_t i = 0; i < beats_.size(); ++i) {
    const uint64_t count = beats_[i].count.load();
    still_s_[i] = count != last_[i] || beats_[i].done.load() ? 0 : still_s_[i] + 1;
    last_[i] = count;
    if (still_s_[i] >= patience_s_) give_up(i);
  }
}

void Watchdog::give_up(size_t stuck) {
  std::fprintf(stderr, "interpose: thread %zu got no further for %u s; all threads:\n", stuck, patience_s_);
  for (size_t i = 0; i < beats_.size(); ++i) {
    const pid_t thread = beats_[i].thread.load();
    std::fprintf(stderr, "thread %zu (%d), after %llu operations, in: %s\n", i, thread,
                 static_cast<unsigned long long>(beats_[i].count.load()), beats_[i].doing.load());
    if (thread == 0 || beats_[i].done.load()) continue;
    syscall(SYS_tgkill, getpid(), thread, SIGUSR2);
    usleep(200000);  // one after the other
  }
  _exit(kStuckStatus);
}

}  // namespace pinrail::interpose
