// SPDX-License-Identifier: BSD-3-Clause
// front_fork.h - rule front_fork/F1: what a forked child does with what it inherited, on its first call of any kind.
//
// The kernel wipes the gate in the child (base/sync/gate.h), so the first register or find there comes by here, and so
// does every other call that could take a lock or reach a device. The first of them sets aside what was the parent's:
// nothing is locked, walked or given back that another thread may have been in the middle of. The memory stays where it
// is; handles may be dropped, and that is all.
//
// Threads  handle_fork() at any time. Not in hook context: hooks ask gate::is_child() and do nothing.
//
// front_fork/F1  A pool of the parent has a table of operations that do nothing, and an empty shortcut: no device is
//     called.
// front_fork/F2  Locks, lists, thread records and free memory are new: no call waits for a thread that is not here.
// front_fork/F3  A child that was made by vfork or posix_spawn shares the memory, its gate was not wiped: nothing
//     happens.
#ifndef PINRAIL_FRAMEWORK_FRONT_FRONT_FORK_H
#define PINRAIL_FRAMEWORK_FRONT_FRONT_FORK_H

#include "base/sync/gate.h"
#include "framework/mpool/mpool.h"

namespace pinrail::front {

void fork_reinit();

// Before anything else that is not a hit. Cheap.
inline void handle_fork() {
  if (__builtin_expect(gate::is_child(), 0)) fork_reinit();
}

// Init and finalize load and unload components, and libc's loader does not survive a fork in the middle of that: the
// child's next dlopen would end it. So a fork on another thread waits until this goes out of scope.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

// Whether the pool was the parent's. After handle_fork().
inline bool is_inherited(const pinrail_mpool* pool) { return pool->former_ops != nullptr; }

}  // namespace pinrail::front

#endif
