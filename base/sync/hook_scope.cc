// SPDX-License-Identifier: BSD-3-Clause
// The calling thread's depth in hooks, for debug builds. Any context, no lock.
#include "base/sync/hook_scope.h"

#ifdef PINRAIL_DEBUG

namespace {

// initial-exec: hooks run inside allocators, and the first access to any other kind of TLS may allocate.
__thread unsigned depth __attribute__((tls_model("initial-exec"))) = 0;

}  // namespace

unsigned* pinrail_debug_hook_depth(void) { return &depth; }

#endif
