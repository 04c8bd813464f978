// SPDX-License-Identifier: BSD-3-Clause
// hook_locks.h - the two functions by which a lock that hooks take counts itself for its thread (deferred_hook.h).
//
// Components get them from the host table. Without them, as in some tests, locks are not counted.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_SYNC_HOOK_LOCKS_H
#define PINRAIL_BASE_SYNC_HOOK_LOCKS_H

#include <pinrail/component.h>

namespace pinrail {

using HookDepth = pinrail_hook_depth_t;

struct HookLocks {
  HookDepth* (*depth_hook)(void) = nullptr;  // the calling thread's depth
  void (*deliver_hook)(void) = nullptr;      // delivers deferred events; the caller holds no lock that hooks take

  static HookLocks of(const pinrail_host_t* host) {
    return host == nullptr ? HookLocks{} : HookLocks{host->depth_hook, host->deliver_deferred_hook};
  }
};

}  // namespace pinrail

#endif
