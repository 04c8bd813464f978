// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/loader_call.h"

#include <pthread.h>

#include <atomic>
#include <new>

#include "base/sync/lock.h"

namespace pinrail::monitor {
namespace {

Mutex mutex{LockRank::loader};
std::atomic<pthread_t> calling_thread{};  // holds the mutex for a LoaderCall
std::atomic<pthread_t> forking_thread{};  // holds the mutex for its fork()

bool is_calling() { return calling_thread.load() == pthread_self(); }
bool is_forking() { return forking_thread.load() == pthread_self(); }

}  // namespace

// A handler of pthread_atfork may be inside its thread's own fork.
LoaderCall::LoaderCall() NO_THREAD_SAFETY_ANALYSIS : entered_(!is_forking() && mutex.try_lock()) {
  if (entered_) calling_thread.store(pthread_self());
}

LoaderCall::~LoaderCall() NO_THREAD_SAFETY_ANALYSIS {
  if (!entered_) return;
  calling_thread.store(pthread_t{});
  mutex.unlock();
}

void before_fork() NO_THREAD_SAFETY_ANALYSIS {
  if (is_calling()) return;
  mutex.lock();
  forking_thread.store(pthread_self());
}

void after_fork() NO_THREAD_SAFETY_ANALYSIS {
  if (!is_forking()) return;
  forking_thread.store(pthread_t{});
  mutex.unlock();
}

void fork_reinit_loader_calls() {
  new (&mutex) Mutex(LockRank::loader);
  calling_thread.store(pthread_t{});
  forking_thread.store(pthread_t{});
}

}  // namespace pinrail::monitor
