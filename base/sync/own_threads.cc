// SPDX-License-Identifier: BSD-3-Clause
// Two counts, of the threads at work and of the forks under way. Each side raises its own before it reads the other
// one, so one of the two sees the other.
#include "base/sync/own_threads.h"

#include "base/core/kernel.h"

namespace pinrail::own_threads {

std::atomic<uint32_t> forks{0};

namespace {

std::atomic<uint32_t> at_work{0};
std::atomic<int64_t> last_fork_ms{0};  // when it began
// initial-exec: fork() may run in a signal handler, and the first access to any other kind of TLS may allocate.
__thread uint32_t works __attribute__((tls_model("initial-exec"))) = 0;  // of this thread, one inside the other
__thread bool is_forking __attribute__((tls_model("initial-exec"))) = false;

// A fork that has begun looks at the count again.
void count_out() {
  at_work.fetch_sub(1);
  if (forks.load() != 0) futex_call(&at_work, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr);
}

// Sleeps while the word is `seen`, until the time at most. False: the time is over.
bool sleep_until(int64_t time_ms, std::atomic<uint32_t>* word, uint32_t seen) {
  const int64_t left = time_ms - now_ms_hook();
  if (left <= 0) return false;
  const timespec most = {static_cast<time_t>(left / 1000), static_cast<long>(left % 1000) * 1000000};
  futex_call(word, FUTEX_WAIT_PRIVATE, seen, &most);
  return true;
}

// Waits while another thread forks, but no longer than a fork may take: one of its handlers may want a lock whose
// holder waits for what this thread has announced.
void count_in() {
  for (bool waits = !is_forking;;) {
    at_work.fetch_add(1);
    const uint32_t seen = forks.load();
    if (seen == 0 || !waits) return;
    count_out();
    waits = sleep_until(last_fork_ms.load() + kLongestForkMs, &forks, seen);
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
  last_fork_ms.store(now_ms_hook());
  forks.fetch_add(1);
  if (may_have_lock) return;
  for (uint32_t seen = at_work.load(); seen != 0; seen = at_work.load()) {
    if (!sleep_until(last_fork_ms.load() + kMostWaitMs, &at_work, seen)) return;
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
