// SPDX-License-Identifier: BSD-3-Clause
// api_fork.h - rule api_fork/F1: what the first call in a forked child does with the inherited state.
//
// The kernel wipes the gate in the child (base/sync/gate.h), so the child's first register or find enters here; every
// other call that could take a lock or reach a device calls handle_fork(). The first such call replaces the parent's
// locks, lists and thread records by new ones. It neither locks, walks nor frees the old ones, because another thread
// of the parent may have been changing them. Their memory stays allocated. Handles may still be dropped; this does
// nothing.
//
// Threads  handle_fork() may run at any time, in API context. A hook must not call it: hooks ask gate::is_child() and
//          return.
//
// api_fork/F1  A parent's pool has a table of operations that do nothing, and an empty shortcut: no device is
//     called.
//
// A child of vfork or posix_spawn shares the parent's memory, and its gate was not wiped: nothing happens.
#ifndef PINRAIL_FRAMEWORK_API_API_FORK_H
#define PINRAIL_FRAMEWORK_API_API_FORK_H

#include "base/core/compiler.h"
#include "base/core/non_copyable.h"
#include "base/sync/gate.h"
#include "framework/mpool/mpool.h"

namespace pinrail::api {

// Re-initialises all inherited state in a forked child, once; other threads of the child wait until it is done. Takes
// no lock. API context.
void fork_reinit();

// Every API function calls this first, except on its hit path. Cheap where the process is no forked child.
inline void handle_fork() {
  if (unlikely(gate::is_child())) fork_reinit();
}

// Blocks forks on other threads while it is in scope. Init and finalize load and unload components; libc's loader does
// not survive a fork in the middle of that: the child's next dlopen would crash. Takes the lock of rank "fork".
class NoFork : NonCopyable {
 public:
  NoFork();
  ~NoFork();
  // False: this thread is inside its own fork(), in a handler of pthread_atfork, or in init or finalize, whose
  // callbacks may call again. Init and finalize then return BUSY.
  explicit operator bool() const { return entered_; }

 private:
  const bool entered_;
};

// Whether this thread is inside init or finalize: a registrar's function asks, which finalize has called.
bool is_in_init_or_finalize();

// Whether the pool was the parent's. The caller has called handle_fork().
inline bool is_inherited(const pinrail_mpool* pool) { return pool->former_ops != nullptr; }

}  // namespace pinrail::api

#endif
