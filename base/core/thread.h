// SPDX-License-Identifier: BSD-3-Clause
// thread.h - the one thread-local of Pinrail: what is known of the calling thread.
//
// Threads  current() anywhere but in a hook. An ending thread gives its index and its cells back.
#ifndef PINRAIL_BASE_CORE_THREAD_H
#define PINRAIL_BASE_CORE_THREAD_H

#include <pinrail/component.h>

namespace pinrail::thread {

// The record of the calling thread, made on first use; NULL if there is no memory for it.
pinrail_thread_t* current_slow();

// In a forked child: the parent's threads are not here, and what they counted is nobody's. A record of theirs that a
// thread still has serves no hit, and is replaced when that thread asks for its own.
void leave_parents_life();
inline bool is_left_behind(const pinrail_thread_t* thread) { return thread->size == 0; }

// Whether references of the thread are counted in cells of its own; see references.h.
bool has_cells(const pinrail_thread_t* thread);

// The process's one epoch; see epoch.h.
uint64_t* epoch_word();
// The process's one line that notes of GPU memory hang on; see allocations.h.
pinrail_start_line_t* line_of_gpu_memory();

// Initial-exec: this library is loaded at start or takes a few bytes of the static TLS reserve; one load per call.
// __thread, not thread_local: that one asks at each use whether there is something to initialise.
extern __thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec")));

inline pinrail_thread_t* current() {
  pinrail_thread_t* const thread = current_thread;
  return thread != nullptr && !is_left_behind(thread) ? thread : current_slow();
}

}  // namespace pinrail::thread

#endif
