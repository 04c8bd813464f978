// SPDX-License-Identifier: BSD-3-Clause
// thread.h - the one thread-local of Pinrail: what is known of the calling thread.
//
// Threads  current() anywhere but in a hook. An ending thread gives its index and its reference slots back.
#ifndef PINRAIL_BASE_REGISTRATION_THREAD_H
#define PINRAIL_BASE_REGISTRATION_THREAD_H

#include <pinrail/component.h>

namespace pinrail::thread {

// Threads with a lower index have statistics counters of their own; all others share one.
constexpr uint32_t kThreadsWithOwnCounters = 1024;

// The record of the calling thread, made on first use; NULL if there is no memory for it.
pinrail_thread_t* current_slow();

// In a forked child: the parent's threads are not here, and what they counted is nobody's. A record of theirs that a
// thread still has serves no hit, and is replaced when that thread asks for its own.
void fork_reinit();
inline bool is_left_behind(const pinrail_thread_t* thread) { return thread->size == 0; }

// Whether references of the thread are counted in reference slots of its own; see references.h.
bool has_ref_slots(const pinrail_thread_t* thread);

// The process's one epoch; see epoch.h.
uint64_t* epoch_word();
// The process's one line that notes of GPU memory hang on; see allocation_table.h.
pinrail_start_bucket_t* gpu_bucket_word();

// Initial-exec: this library is loaded at start or takes a few bytes of the static TLS reserve; one load per call.
// __thread, not thread_local: that one asks at each use whether there is something to initialise.
extern __thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec")));

inline pinrail_thread_t* current() {
  pinrail_thread_t* const thread = current_thread;
  return thread != nullptr && !is_left_behind(thread) ? thread : current_slow();
}

}  // namespace pinrail::thread

#endif
