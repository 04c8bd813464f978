// SPDX-License-Identifier: BSD-3-Clause
// deferred_hook: a signal handler that causes a memory event comes at each instruction of the delivery of another one.
#include "base/sync/deferred_hook.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>

#include "base/core/compiler.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"

#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)

namespace pinrail {
namespace {

HookMutex mutex{LockRank::index, deferred::kLocks};

// How often the two events were delivered: the first one is deferred, the second one is the handler's.
int delivered[2];
void note_hook(void* event, uintptr_t, size_t) { ++*static_cast<int*>(event); }

// As a hook: it takes a lock, unless its thread holds one. Another handler interrupts it there, and defers.
void handle_signal(int) {
  const bool is_held = deferred::must_defer_hook();
  if (!is_held) mutex.lock();
  deferred::defer_hook(note_hook, &delivered[1], 4096, 4096);
  if (!is_held) mutex.unlock();
}

// Exit statuses of the child: what it found after the signal.
enum Found : int { kEventLost = 1, kGateShut, kNotTraced };

// Shared with the tracing parent: whether the child delivers.
std::atomic<bool>* delivers;

// Stops before each delivery, so that the parent chooses the instruction at which the signal comes.
[[noreturn]] void deliver_for_ever() {
  struct sigaction action {};
  action.sa_handler = handle_signal;
  sigaction(SIGUSR1, &action, nullptr);
  gate::open();
  if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(kNotTraced);
  for (;;) {
    delivered[0] = delivered[1] = 0;
    mutex.lock();
    deferred::defer_hook(note_hook, &delivered[0], 4096, 4096);
    delivers->store(true);
    raise(SIGSTOP);
    mutex.unlock();
    delivers->store(false);
    if (delivered[0] == 0 || delivered[1] == 0) _exit(kEventLost);
    if (!gate::is_open()) _exit(kGateShut);
  }
}

// Lets the child run so many instructions. False: it ended.
bool run_instructions(pid_t child, int count, int* status_out) {
  for (int i = 0; i < count && delivers->load(); ++i) {
    ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr);
    waitpid(child, status_out, 0);
    if (!WIFSTOPPED(*status_out)) return false;
  }
  return true;
}

TEST(Deferred, an_event_may_come_at_any_instruction_of_the_delivery_of_another) {
  delivers =
      new (mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<bool>(false);
  const pid_t child = fork();
  if (child == 0) deliver_for_ever();
  int status = 0, instructions = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status)) GTEST_SKIP() << "no process may be traced here";
  while (WIFSTOPPED(status)) {
    if (!run_instructions(child, ++instructions, &status) || !delivers->load()) break;
    ptrace(PTRACE_CONT, child, nullptr, SIGUSR1);
    waitpid(child, &status, 0);
  }
  EXPECT_TRUE(WIFSTOPPED(status)) << "at instruction " << instructions << ": status " << WEXITSTATUS(status);
  EXPECT_GT(instructions, 50);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
}

}  // namespace
}  // namespace pinrail

#endif
