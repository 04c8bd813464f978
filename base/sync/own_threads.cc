// SPDX-License-Identifier: BSD-3-Clause
// Two counts, of the threads at work and of the forks under way. Each side raises its own before it reads the other
// one, so one of the two sees the other.
#include "base/sync/own_threads.h"

#include "base/core/kernel.h"
#include "base/sync/futex_lock.h"

namespace pinrail::own_threads {

std::atomic<uint32_t> forks{0};

namespace {

std::atomic<uint32_t> at_work{0};
// initial-exec: fork() may run in a signal handler, and the first access to any other kind of TLS may allocate.
__thread uint32_t works __attribute__((tls_model("initial-exec"))) = 0;  // of this thread, one inside the other
__thread bool is_forking __attribute__((tls_model("initial-exec"))) = false;

// A fork that has begun looks at the count again.
void count_out() {
  at_work.fetch_sub(1);
  if (forks.load() != 0) futex_call(&at_work, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
}

void count_in() {
  for (;;) {
    at_work.fetch_add(1);
    if (forks.load() == 0) return;
    count_out();
    for (uint32_t seen = forks.load(); seen != 0; seen = forks.load()) {
      futex_call(&forks, FUTEX_WAIT_PRIVATE, seen, nullptr);
    }
  }
}

}  // namespace

void begin() {
  if (works == 0) count_in();
  ++works;
}

void end() {
  --works;
  if (works == 0) count_out();
}

Whole::Whole() {
  if (works != 0) ++works;
}
Whole::~Whole() {
  if (works != 0) --works;
}

void pass_slowly() {
  if (works != 1) return;
  end();
  begin();
}

void leave_for_fork() {
  if (works != 0) count_out();
}

void before_fork(bool may_have_lock) {
  is_forking = true;
  forks.fetch_add(1);
  if (may_have_lock) return;
  const int64_t deadline = now_ms_hook() + kMostWaitMs;
  for (uint32_t seen = at_work.load(); seen != 0; seen = at_work.load()) {
    const int64_t left = deadline - now_ms_hook();
    if (left <= 0) return;
    const timespec time = {static_cast<time_t>(left / 1000), static_cast<long>(left % 1000) * 1000000};
    futex_call(&at_work, FUTEX_WAIT_PRIVATE, seen, &time);
  }
}

void after_fork() {
  if (!is_forking) return;
  is_forking = false;
  if (forks.fetch_sub(1) == 1) futex_call(&forks, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
  if (works != 0) count_in();
}

void in_child() {
  if (is_forking) fork_reinit();
}

void fork_reinit() {
  is_forking = false;
  forks.store(0);
  at_work.store(works != 0 ? 1 : 0);
}

}  // namespace pinrail::own_threads
