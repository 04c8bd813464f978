// SPDX-License-Identifier: BSD-3-Clause
// gate.h - one word that each register and find looks at first: may a cached registration be the answer now?
//
// kOpen: yes. More: a monitor is taking memory events from the kernel, or has taken some and not acted on them; memory
// may be somebody else's already, so answers wait. 0: open() was never called, or this is a forked child that has not
// noticed yet, for the kernel wipes the word there.
//
// Threads  all functions at any time.
// Hook     what ends in _hook, and is_open(), is_child().
//
// gate/T1  Who holds the gate before it takes an event, and releases it after all subscribers were told, is never
//     overtaken: a caller that knows that the memory is gone sees the gate held, or the registrations dead.
#ifndef PINRAIL_BASE_SYNC_GATE_H
#define PINRAIL_BASE_SYNC_GATE_H

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pinrail::gate {

constexpr uint32_t kOpen = 1;
constexpr uint32_t kHeld = 2;  // added once for each holder

// A page of its own, for that is what the kernel wipes.
constexpr size_t kPage = 4096;
struct alignas(kPage) Page {
  std::atomic<uint32_t> word{0};
  std::atomic<uint32_t> claimed{0};  // in a child: somebody is setting aside what it inherited
  char rest[kPage - 2 * sizeof(std::atomic<uint32_t>)] = {};
};
extern Page page __attribute__((visibility("hidden")));

inline bool is_open() {
  // acquire: looked at before any state word; pairs with the release in release_hook().
  return page.word.load(std::memory_order_acquire) == kOpen;
}

// At init, and in a forked child when what it inherited has been set aside.
void open();
// Whether this is a child that was forked after open(), and has not called open() itself. Looked at before any lock
// that another thread may have held when it was forked, and before any device is called.
bool is_child();
// In a child: true for the one caller that shall set aside what was inherited, and open() then; the others come back
// when that is done.
bool claim_child();

void hold_hook();
void release_hook();

// Returns when nobody holds the gate, or in a child. No lock may be held that a hook takes. API context.
void wait_until_released();

}  // namespace pinrail::gate

#endif
