// SPDX-License-Identifier: BSD-3-Clause
// hook_locks.h - how a lock that hooks take lets its thread know: see deferred_hook.h. Components get the two functions
// from the host table; without them (in some tests) nothing is counted.
#ifndef PINRAIL_BASE_SYNC_HOOK_LOCKS_H
#define PINRAIL_BASE_SYNC_HOOK_LOCKS_H

#include <pinrail/component.h>

namespace pinrail {

using HookDepth = pinrail_hook_depth_t;

struct HookLocks {
  HookDepth* (*depth_hook)(void) = nullptr;  // of the calling thread
  void (*deliver_hook)(void) = nullptr;      // what was deferred; no lock of hooks is held

  static HookLocks of(const pinrail_host_t* host) {
    return host == nullptr ? HookLocks{} : HookLocks{host->depth_hook, host->deliver_deferred_hook};
  }
};

}  // namespace pinrail

#endif
