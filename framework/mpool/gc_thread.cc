// SPDX-License-Identifier: BSD-3-Clause
// The gc thread. API context; `mutex` guards the members, and no lock is held while a member drains. The thread holds
// no reference.
#include "framework/mpool/gc_thread.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "base/core/kernel.h"
#include "base/registration/thread.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/lock.h"
#include "base/sync/own_threads.h"

namespace pinrail::gc {
namespace {

constexpr int64_t kRetryMs = 100;
constexpr int64_t kMaxIntervalMs = 10000;
constexpr int64_t kNoDeadline = -1;

struct Member {
  Drain drain;
  void* arg;
  uint32_t interval_ms;  // 0: drained only after a wake
  uint64_t round;        // the last round that drained it
  const uint32_t* bell;  // not NULL: it is called only in rounds for which another process has asked
};

// As futex_waitv of <linux/futex.h>, which older headers lack.
struct SleepOn {
  uint64_t value, word;
  uint32_t flags, reserved;
};
struct Time {
  int64_t seconds, nanoseconds;
};
constexpr long kFutexWaitv = 449;
constexpr uint32_t kOf32Bits = 2, kPrivate = FUTEX_PRIVATE_FLAG;

Mutex mutex{LockRank::leaf};
Condition drained;
Forever<std::vector<Member*>> members GUARDED_BY(mutex);
const Member* under_way GUARDED_BY(mutex) = nullptr;
unsigned pauses GUARDED_BY(mutex) = 0;
bool running GUARDED_BY(mutex) = false;
OwnThread worker;                 // started while running
std::atomic<uint64_t> rounds{0};  // that a thread has begun
std::atomic<bool> stopping{false};
bool is_asked = false;  // the thread's own: a bell has woken it since its last round

// Marks the next member that this round has not drained as under way and returns it; NULL: none, or drains are paused.
Member* begin_next_drain(uint64_t round, bool has_asked) {
  Guard guard(mutex);
  if (pauses != 0) return nullptr;
  for (Member* member : *members) {
    if (member->round == round || (member->bell != nullptr && !has_asked)) continue;
    member->round = round;
    under_way = member;
    return member;
  }
  return nullptr;
}

// Drains all members. Returns true if a member must be checked again.
bool drain_all(uint64_t round, bool has_asked) {
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return true;  // no memory: try again later
  bool is_left = false;
  while (Member* member = begin_next_drain(round, has_asked)) {
    if (member->drain(member->arg, thread) != 0) is_left = true;
    Guard guard(mutex);
    under_way = nullptr;
    drained.notify_all();
  }
  return is_left;
}

// The shortest interval of a member; -1: no member has one.
int64_t shortest_interval() {
  Guard guard(mutex);
  int64_t shortest = kNoDeadline;
  for (const Member* member : *members) {
    if (member->interval_ms == 0) continue;
    shortest = shortest == kNoDeadline ? member->interval_ms : std::min(shortest, int64_t{member->interval_ms});
  }
  return shortest;
}

Bells read_bells() {
  Bells bells;
  bells.version = word.version.load();  // before the list: a bell that comes meanwhile ends the sleep
  Guard guard(mutex);
  for (const Member* member : *members) {
    if (member->bell != nullptr && bells.count < Bells::kMost) bells.words[bells.count++] = member->bell;
  }
  return bells;
}

// Sleeps until a wake "now", until a bell rings, until 100 ms after a wake "soon", or until the given time has passed.
void wait_for_work(int64_t look_after_ms) {
  const int64_t began = now_ms_hook();
  int64_t deadline = look_after_ms == kNoDeadline ? INT64_MAX : began + look_after_ms;
  bool is_soon = false;
  while (!stopping.load()) {
    const uint32_t seen = word.when.load();
    if (seen == PINRAIL_GC_NOW) return;
    const int64_t now = now_ms_hook();
    if (seen == PINRAIL_GC_SOON && !is_soon) {
      is_soon = true;
      deadline = std::min(deadline, now + kRetryMs);
    }
    if (now >= deadline) return;
    is_asked = word.sleep(seen, deadline == INT64_MAX ? kNoDeadline : deadline - now, read_bells());
    if (is_asked) return;
  }
}

void run(void*);

// Starts the thread if it does not run. False: no thread could be started.
bool start_locked() REQUIRES(mutex) {
  if (running) return true;
  stopping.store(false);
  running = worker.start("pinrail-gc", run, nullptr);
  return running;
}

// The thread: waits for a wake or an interval, then drains all members. After a drain that left something it looks
// again after 100 ms, and then after twice the last time, at most 10 s.
void run(void*) {
  int64_t look_after_ms = kNoDeadline;
  for (uint64_t round = ++rounds; !stopping.load(); round = ++rounds) {
    const int64_t interval = shortest_interval();
    const bool is_sooner = interval != kNoDeadline && (look_after_ms == kNoDeadline || interval < look_after_ms);
    wait_for_work(is_sooner ? interval : look_after_ms);
    const own_threads::Work work;
    // Before the drain: a wake during the drain counts for the next one (gc_thread/W3).
    const bool is_woken = word.when.exchange(0) != 0;
    if (stopping.load()) break;
    const int64_t last = is_woken || look_after_ms == kNoDeadline ? kRetryMs / 2 : look_after_ms;
    look_after_ms = drain_all(round, std::exchange(is_asked, false)) ? std::min(2 * last, kMaxIntervalMs) : kNoDeadline;
  }
}

}  // namespace

// A bell may be unmapped meanwhile: the call then fails, and the caller reads the bells again.
bool Word::sleep(uint32_t seen, int64_t milliseconds, const Bells& bells) {
  constexpr size_t kOwn = 2;
  static std::atomic<bool> has_waitv{true};
  if (has_waitv.load(std::memory_order_relaxed)) {
    SleepOn words[kOwn + Bells::kMost] = {
        {seen, reinterpret_cast<uintptr_t>(&when), kOf32Bits | kPrivate, 0},
        {bells.version, reinterpret_cast<uintptr_t>(&version), kOf32Bits | kPrivate, 0}};
    for (size_t i = 0; i < bells.count; ++i)
      words[kOwn + i] = {0, reinterpret_cast<uintptr_t>(bells.words[i]), kOf32Bits, 0};
    const auto end_ns = static_cast<int64_t>(now_ns_hook()) + milliseconds * 1000000;
    const Time until = {end_ns / 1000000000, end_ns % 1000000000};
    const long woken =
        syscall(kFutexWaitv, words, kOwn + bells.count, 0, milliseconds < 0 ? nullptr : &until, CLOCK_MONOTONIC);
    if (woken >= 0) return woken >= static_cast<long>(kOwn);
    if (errno != ENOSYS && errno != EPERM) return false;
    has_waitv.store(false, std::memory_order_relaxed);
  }
  const timespec time = {static_cast<time_t>(milliseconds / 1000), static_cast<long>(milliseconds % 1000) * 1000000};
  futex_call(&when, FUTEX_WAIT_PRIVATE, seen, milliseconds < 0 ? nullptr : &time);
  return false;
}

// Adds a member, for whose drain the thread runs unless it has a bell; `arg` must live until leave(). May throw
// bad_alloc.
Status join(Drain drain, void* arg, uint32_t interval_ms, const uint32_t* bell, void** member_out) {
  auto member = std::make_unique<Member>(Member{drain, arg, interval_ms, 0, bell});
  Guard guard(mutex);
  members->reserve(members->size() + 1);
  if (bell == nullptr && !start_locked()) return PINRAIL_ERR_OUT_OF_RESOURCE;
  members->push_back(member.get());
  *member_out = member.release();
  if (interval_ms != 0) wake_hook(PINRAIL_GC_NOW);  // the thread may be asleep for longer than that
  if (bell == nullptr) return success();
  word.version.fetch_add(1);
  futex_call(&word.version, FUTEX_WAKE_PRIVATE, 1, nullptr);
  return success();
}

// Removes a member and waits for its drain under way.
void leave(void* member_pointer) {
  auto* member = static_cast<Member*>(member_pointer);
  {
    Guard guard(mutex);
    members->erase(std::remove(members->begin(), members->end(), member), members->end());
    while (under_way == member) drained.wait(mutex);
  }
  delete member;
}

// Ends the thread and waits for it. Shut-down, without members.
void stop() {
  {
    Guard guard(mutex);
    if (!running) return;
    running = false;
  }
  stopping.store(true);
  wake_hook(PINRAIL_GC_NOW);
  worker.join();
  word.when.store(0);
}

Pause::Pause() {
  Guard guard(mutex);
  ++pauses;
  while (under_way != nullptr) drained.wait(mutex);
}

Pause::~Pause() {
  {
    Guard guard(mutex);
    --pauses;
  }
  wake_hook(PINRAIL_GC_SOON);  // a round that began meanwhile ended early
}

// Forgets members and thread in a forked child; takes no lock, because a thread of the parent may have held it.
void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  replace_in_child(&drained);
  replace_in_child(&members);
  under_way = nullptr;
  pauses = 0;
  running = false;
  worker.forget();
  stopping.store(false);
  word.when.store(0);
}

// Hook context. The caller has already recorded the event; this only wakes the thread.

Word word;

// Raises the word to `when` and wakes the thread, unless an equal or more urgent wake is pending. Preserves errno.
void wake_hook(pinrail_gc_when_t when) {
  const auto wanted = static_cast<uint32_t>(when);
  // A read-modify-write, not a load: it is ordered with the thread's exchange. If it comes first, that exchange makes
  // the thread see what the caller wrote before.
  uint32_t seen = word.when.fetch_add(0);
  do {
    if (seen >= wanted) return;
  } while (!word.when.compare_exchange_weak(seen, wanted));
  futex_call(&word.when, FUTEX_WAKE_PRIVATE, 1, nullptr);
}

}  // namespace pinrail::gc
