// SPDX-License-Identifier: BSD-3-Clause
// gate.h - one word that stops register and find while a monitor has taken a memory event but not delivered it.
//
// Each register and find reads the word first. kOpen: a cached registration may be returned. A value above kOpen: at
// least one monitor is taking events from the kernel or has not delivered them yet. The memory may already belong to
// another owner, so register and find wait. 0: open() was never called, or the process is a forked child that has not
// called open(): the kernel wipes the word in a child.
//
// Threads  All functions may run together.
// Hook     is_open(), is_child().
//
// A monitor holds the gate before it takes an event and releases it after all subscribers have handled the event. So a
// caller that knows that the memory is gone finds either the gate held or the registrations dead.
//
// gate/T3  An event that is under way in the kernel is seen by the monitor that is asked, before its memory can be
//     mapped again. When that monitor is quiet, it holds the gate for each event that it was not quiet for, or has
//     released it.
// gate/T2  A thread that holds the gate neither sleeps nor waits for another process. HookDepth::gates counts how often
//     a thread holds it, and hooks that may wait look at that count.
#ifndef PINRAIL_BASE_SYNC_GATE_H
#define PINRAIL_BASE_SYNC_GATE_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pinrail::gate {

constexpr uint32_t kOpen = 1;
constexpr uint32_t kHeld = 2;  // each holder adds it once
// A monitor learns of events only after they happened: each register and find asks it first (ask_first()).
constexpr uint32_t kAsked = 0x80000000;

// The word has a page of its own, because the kernel wipes whole pages.
constexpr size_t kPage = 4096;
struct alignas(kPage) Page {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> claimed{0};  // in a child: 1 once a thread has begun to reinitialise the inherited state
  char rest[kPage - 2 * sizeof(std::atomic<uint32_t>)] = {};
};
extern Page page __attribute__((visibility("hidden")));
extern std::atomic<bool> was_opened __attribute__((visibility("hidden")));  // in this process or in its parent

inline bool is_open() {
  // acquire: the gate is read before any state word; pairs with the release in release_hook().
  return page.word.load(std::memory_order_acquire) == kOpen;
}

// Opens the gate: at init, and in a forked child after the inherited state was reinitialised. Start-up context.
void open();
// Returns true in a child that was forked after open() and has not called open() itself. Callers ask before they take
// any lock that another thread of the parent may have held, and before they call any device. Any context.
// relaxed: a child reads the values that fork() left.
inline bool is_child() {
  return was_opened.load(std::memory_order_relaxed) && (page.word.load(std::memory_order_relaxed) & kOpen) == 0;
}
// In a child: returns true to one caller, which must reinitialise the inherited state and then call open(). The other
// callers return false after open() was called. API context, no lock held.
bool claim_child();

// A number of this process that its forked children, once they have called claim_child(), do not have: for what must
// not be used in a child. API context. relaxed: it changes before any other call of a child.
extern std::atomic<uint32_t> ancestors __attribute__((visibility("hidden")));
inline uint32_t process_number() { return ancestors.load(std::memory_order_relaxed); }

// Each hold_hook() needs one release_hook() on the same thread. The gate counts its holders.
void hold_hook();
void release_hook();

// Returns when no event is under way and the gate has no holder, or in a child. API context. The caller holds no lock
// that a hook takes.
void wait_until_released();

// From now on wait_until_released() calls is_quiet(arg) until it returns true, and is_open() is false. is_quiet NULL:
// ends that. Start-up and shut-down of a monitor; one monitor alone.
using IsQuiet = int (*)(void* arg);
void ask_first(IsQuiet is_quiet, void* arg);

}  // namespace pinrail::gate

#endif
