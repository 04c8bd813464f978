// SPDX-License-Identifier: BSD-3-Clause
// Counts and records a pool's events, without a lock and without allocating. Hook or API context.
#include "framework/mpool/recorder.h"

#include <cstring>
#include <ctime>

namespace pinrail::mpool {
namespace {

void add_hook(uint64_t* figure, uint64_t amount) { __atomic_fetch_add(figure, amount, __ATOMIC_RELAXED); }
uint64_t two_hook(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

// The words of an event after its state, in the order of pinrail_figures_event_t.
constexpr size_t kWords = sizeof(pinrail_figures_event_t) / sizeof(uint64_t) - 1;
uint64_t* words_of_hook(pinrail_figures_event_t* slot) { return &slot->time_ns; }

}  // namespace

uint64_t Recorder::now_ns_hook() {
  timespec now;
  if (clock_gettime(CLOCK_MONOTONIC_COARSE, &now) != 0) return 0;
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}

// relaxed: figures, each right by itself.
void Recorder::count_hook(const pinrail_mpool_event_t& event) {
  switch (event.kind) {
    case PINRAIL_EVENT_MISS: add_hook(&figures_->misses[event.reason & 15], 1); break;
    case PINRAIL_EVENT_MEMORY:
      add_hook(&figures_->memory_events, 1);
      add_hook(&figures_->invalidations, event.count);
      break;
    case PINRAIL_EVENT_REFUSED: add_hook(&figures_->refusals, 1); break;
    default:
      add_hook(&figures_->released[event.reason & 3], 1);
      add_hook(&figures_->registered_count, UINT64_MAX);
      add_hook(&figures_->registered_bytes, 0 - event.length);
      break;
  }
}

// The place of the next event; NULL: another thread still writes there (recorder/J2).
pinrail_figures_event_t* Recorder::take_slot_hook(uint64_t* number_out) {
  const uint64_t mask = figures_->ring_count - 1;
  uint64_t number = __atomic_load_n(&figures_->events, __ATOMIC_RELAXED);
  for (;;) {
    pinrail_figures_event_t* const slot = &ring_[number & mask];
    // acquire: pairs with the last store of the thread that wrote here before.
    const uint64_t complete = __atomic_load_n(&slot->state, __ATOMIC_ACQUIRE);
    if (complete == (number > mask ? number - mask : 0)) {
      if (!__atomic_compare_exchange_n(&figures_->events, &number, number + 1, true, __ATOMIC_ACQ_REL,
                                       __ATOMIC_RELAXED))
        continue;
      *number_out = number;
      return slot;
    }
    const uint64_t again = __atomic_load_n(&figures_->events, __ATOMIC_RELAXED);
    if (again == number) return nullptr;
    number = again;
  }
}

void Recorder::record_hook(const pinrail_mpool_event_t& event) {
  count_hook(event);
  if (figures_->ring_count == 0) return;
  uint64_t number;
  pinrail_figures_event_t* const slot = take_slot_hook(&number);
  if (slot == nullptr) return;
  __atomic_store_n(&slot->state, kBusy, __ATOMIC_RELAXED);  // before the words, each of which is a release
  uint64_t call;
  std::memcpy(&call, event.call, sizeof(call));
  const uint64_t words[kWords] = {now_ns_hook(),
                                  event.base,
                                  event.length,
                                  two_hook(event.kind, event.reason),
                                  two_hook(static_cast<uint32_t>(event.status), static_cast<uint32_t>(event.error)),
                                  event.count,
                                  call};
  for (size_t i = 0; i < kWords; ++i) __atomic_store_n(&words_of_hook(slot)[i], words[i], __ATOMIC_RELEASE);
  __atomic_store_n(&slot->state, number + 1, __ATOMIC_RELEASE);  // pairs with read() and with the next writer
}

}  // namespace pinrail::mpool
