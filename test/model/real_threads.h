// SPDX-License-Identifier: BSD-3-Clause
// real_threads.h - threads as Pinrail knows them, made when a test case says so. Includes the code under test
// itself: one translation unit holds all of it.
#ifndef PINRAIL_TEST_MODEL_REAL_THREADS_H
#define PINRAIL_TEST_MODEL_REAL_THREADS_H

#include "base/registration/registration_arena.cc"
#include "base/registration/thread.cc"
#include "base/sync/gate.cc"
#include "test/model/explorer.h"

// Counts what the calling thread holds.
pinrail::HookDepth* pinrail::deferred::depth_hook() { return static_cast<HookDepth*>(model::own_memory()); }

namespace pinrail::thread {
namespace {

// So that each test case has the threads that it made, and no others.
void forget_all_threads() {
  Guard guard(mutex);
  all_records = free_records[0] = free_records[1] = nullptr;
  record_count = 0;
}

pinrail_thread_t* new_thread() {
  current_thread = &null_thread;
  return current_slow();
}

}  // namespace
}  // namespace pinrail::thread

#endif
