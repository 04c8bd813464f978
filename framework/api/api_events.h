// SPDX-License-Identifier: BSD-3-Clause
// api_events.h - what pools record (framework/mpool/recorder.h), and what is said of it.
//
// Threads  all functions may run together. The caller holds no lock, but for record_hook().
// Hook     record_hook().
#ifndef PINRAIL_FRAMEWORK_API_API_EVENTS_H
#define PINRAIL_FRAMEWORK_API_API_EVENTS_H

#include <pinrail/events.h>

#include "base/core/compiler.h"
#include "framework/mpool/mpool.h"

namespace pinrail::api {

// mpool_<name>_verbose from which on misses, and everything, is said; refusals from PINRAIL_LOG_INFO on.
constexpr int kLogMisses = 30, kLogAll = 50;

// Host service: see component_mpool.h.
void record_hook(pinrail_mpool_t* pool, const pinrail_mpool_event_t* event);

// Logs what was recorded since the last call, as far as the pool's verbosity asks for it.
void say_events(pinrail_mpool_t* pool);
inline void say_events_if_asked(pinrail_mpool_t* pool) {
  const std::atomic<int64_t>* const verbosity = pool->verbosity;
  if (unlikely(verbosity != nullptr && verbosity->load(std::memory_order_relaxed) >= PINRAIL_LOG_INFO)) {
    say_events(pool);
  }
}

// A register or find call has returned the handle. If the pool checks its hits and the device sees other memory than
// the process, says so with the life of the registration, treats its range as memory that went away, drops the
// reference and returns true. The thread is the calling one.
bool drop_stale(pinrail_mpool_t* pool, pinrail_thread_t* thread, const void* addr, size_t length,
                pinrail_handle_t handle);

// A request for this range found no room: says which limit is full, what is held and what to do, once a second. Not
// where the pool records no events.
void report_no_room(pinrail_mpool_t* pool, Span range, pinrail_status_t status);

}  // namespace pinrail::api

#endif
