// SPDX-License-Identifier: BSD-3-Clause
// open(): start-up. is_child(), hold_hook() and release_hook(): any context. claim_child() and wait_until_released():
// API, with no lock held. No function takes a lock.
#include "base/sync/gate.h"

#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <time.h>

#include "base/core/calling_thread.h"
#include "base/sync/deferred_hook.h"

namespace pinrail::gate {

Page page;
std::atomic<bool> was_opened{false};
std::atomic<uint32_t> ancestors{0};  // how many forks lie between this process and the first one that called open()

namespace {

pthread_once_t once = PTHREAD_ONCE_INIT;

void wipe() {
  page.word.store(0);
  page.claimed.store(0);
}

// Kernels before 4.14, and machines whose page is not kPage long, refuse MADV_WIPEONFORK. There a fork handler wipes
// the word.
void prepare() {
  if (madvise(&page, sizeof(page), MADV_WIPEONFORK) != 0) pthread_atfork(nullptr, nullptr, wipe);
}

std::atomic<IsQuiet> asked{nullptr};
std::atomic<void*> asked_arg{nullptr};

// Without a monitor that must be asked, and in a child, nothing is under way.
bool is_quiet() {
  if ((page.word.load() & kAsked) == 0) return true;
  const IsQuiet ask = asked.load();
  return ask == nullptr || ask(asked_arg.load()) != 0;
}

// acquire: as in is_open().
bool is_held() { return (page.word.load(std::memory_order_acquire) & ~kAsked) > kOpen; }

}  // namespace

void open() {
  pthread_once(&once, prepare);
  page.word.fetch_or(kOpen);  // fetch_or: a monitor may hold the gate already
  was_opened.store(true);
}

// In a forked child: true for one caller, which must reinitialise the inherited state and call open(); the others
// return false after that.
bool claim_child() {
  if (page.claimed.exchange(1) == 0) {
    ++ancestors;
    return true;
  }
  while (is_child()) sched_yield();
  return false;
}

// Stops register and find until the matching release_hook(). The thread's own count is changed by one instruction,
// because a signal handler may interrupt this function and hold the gate for an event that it defers.
void hold_hook() {
  __atomic_fetch_add(&deferred::depth_hook()->gates, 1, __ATOMIC_RELAXED);
  page.word.fetch_add(kHeld);
}

// A signal handler may have forked while its thread held the gate. The child's word was wiped; and where the child was
// initialised meanwhile, the thread holds nothing, and the word is other threads'.
void release_hook() {
  uint32_t* const gates = &deferred::depth_hook()->gates;
  if (*gates == 0) return;
  uint32_t word = page.word.load(std::memory_order_relaxed);
  // release: the registrations are dead before the gate opens; pairs with is_open().
  while ((word & ~kAsked) >= kHeld &&
         !page.word.compare_exchange_weak(word, word - kHeld, std::memory_order_release, std::memory_order_relaxed)) {
  }
  __atomic_fetch_sub(gates, 1, __ATOMIC_RELAXED);
}

void ask_first(IsQuiet is_quiet, void* arg) {
  if (is_quiet == nullptr) page.word.fetch_and(~kAsked);
  asked_arg.store(arg);
  asked.store(is_quiet);
  if (is_quiet != nullptr) page.word.fetch_or(kAsked);
}

// The gate is held for a few microseconds, as a rule. The waiter sleeps after kYields: if it only yielded, a waiter of
// high priority would starve the monitor's thread. It asks first (gate/T3).
void wait_until_released() {
  constexpr int kYields = 1000;
  constexpr timespec kNap = {0, 50000};
  if (page.word.load(std::memory_order_acquire) <= kOpen) return;  // acquire: as in is_open()
  const NoCancel no_cancel;
  auto is_ready = [was_quiet = false]() mutable {
    was_quiet = was_quiet || is_quiet();
    return was_quiet && !is_held();
  };
  for (int i = 0; !is_ready(); ++i) {
    if (i < kYields) {
      sched_yield();
    } else {
      nanosleep(&kNap, nullptr);
    }
  }
}

}  // namespace pinrail::gate
