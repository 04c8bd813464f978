// SPDX-License-Identifier: BSD-3-Clause
#include "framework/monitor/loader_call.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace pinrail::monitor {
namespace {

// The thread that is in such a call, and the one that forks. One word, because a signal handler may fork at any moment.
std::atomic<pthread_t> holder{};
std::atomic<bool> is_fork{false};  // the holder forks

bool take() {
  pthread_t none{};
  return holder.compare_exchange_strong(none, pthread_self());
}

}  // namespace

// A handler of pthread_atfork may be inside its thread's own fork.
LoaderCall::LoaderCall() : entered_(take()) {}

LoaderCall::~LoaderCall() {
  if (entered_) holder.store(pthread_t{});
}

// The calls take some ten microseconds.
void before_fork() {
  constexpr useconds_t kNap = 50;
  if (holder.load() == pthread_self()) return;
  while (!take()) usleep(kNap);
  is_fork.store(true);
}

void after_fork() {
  if (holder.load() != pthread_self() || !is_fork.load()) return;
  is_fork.store(false);
  holder.store(pthread_t{});
}

void fork_reinit_loader_calls() {
  is_fork.store(false);
  holder.store(pthread_t{});
}

}  // namespace pinrail::monitor
