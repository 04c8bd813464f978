// SPDX-License-Identifier: BSD-3-Clause
// hook_scope.h - checks the hook wall (E3) in debug builds: each thread notes whether it is in a hook.
//
// Each entry into a hook makes a HookScope: monitors do so where the kernel or a patched function calls them, and the
// library does so where it delivers an event. Functions that a hook must not reach call abort_in_hook_scope(), which
// ends the program with a line that names what was called. They are: logs, help texts, registrar calls, locks that
// hooks may not take, and in tests the allocator (test/support/hook_wall.cc).
//
// Threads  The depth is per thread; a scope must end on the thread that made it.
// Hook     All functions. They change neither errno nor memory of others, unless they end the program.
//
// There is one depth per thread for all shared objects of the process: components take its address from the library. An
// object that does not find the library's symbol (one that was dlopened with RTLD_LOCAL) checks nothing.
#ifndef PINRAIL_BASE_SYNC_HOOK_SCOPE_H
#define PINRAIL_BASE_SYNC_HOOK_SCOPE_H

#ifdef PINRAIL_DEBUG

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "base/core/compiler.h"

// Returns the address of the calling thread's depth. It is defined in libpinrail, and in tests that are linked with its
// parts.
extern "C" __attribute__((weak, visibility("default"))) unsigned* pinrail_debug_hook_depth(void);

namespace pinrail {

// Returns NULL if the library's symbol was not found.
inline unsigned* hook_depth() { return pinrail_debug_hook_depth != nullptr ? pinrail_debug_hook_depth() : nullptr; }

inline bool is_in_hook_scope() {
  const unsigned* const depth = hook_depth();
  return depth != nullptr && *depth != 0;
}

// Ends the program if the calling thread is in a hook. Writes to the descriptor directly, because stdio would allocate.
inline void abort_in_hook_scope(const char* what) {
  if (!is_in_hook_scope()) return;
  *hook_depth() = 0;  // abort() may run handlers that are no hook code
  for (const char* part : {"pinrail: hook wall: ", what, " in a hook\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  std::abort();
}

// A compiler barrier. Compilers assume that malloc reads no memory of ours and would move the store across the call.
inline void keep_order() { __asm__ volatile("" ::: "memory"); }

// While an object of this class exists, its thread has that depth.
template <unsigned kDepth>
class DepthScope : NonCopyable {
 public:
  DepthScope() : depth_(hook_depth()), before_(depth_ != nullptr ? *depth_ : 0) {
    if (depth_ != nullptr) *depth_ = kDepth;
    keep_order();
  }
  ~DepthScope() {
    keep_order();
    if (depth_ != nullptr) *depth_ = before_;
  }

 private:
  unsigned* const depth_;
  const unsigned before_;
};

}  // namespace pinrail

#else

namespace pinrail {

constexpr void abort_in_hook_scope(const char*) {}
template <unsigned>
struct DepthScope {
  DepthScope() {}  // NOLINT(modernize-use-equals-default): so that a variable of this type counts as used
};

}  // namespace pinrail

#endif

namespace pinrail {

using HookScope = DepthScope<1>;  // its thread is in a hook
// Suspends the check while our hook calls the hook of another runtime, to which our hook wall does not apply.
using ForeignScope = DepthScope<0>;

}  // namespace pinrail

#endif
