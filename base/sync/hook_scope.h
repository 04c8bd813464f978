// SPDX-License-Identifier: BSD-3-Clause
// hook_scope.h - the hook wall (E3), watched in debug builds: which threads are in hook context just now.
//
// Every way into a hook makes a HookScope: monitors where the kernel or a patched function leads to them, the library
// where an event is delivered. What no hook may do says refuse_in_hook(), which ends the program with a line that names
// it: logs, help, registrar calls, locks that hooks may not take, and in tests the allocator
// (test/support/hook_wall.cc).
//
// Threads  each knows of itself alone.
// Hook     all of it. Neither errno nor memory is touched, unless the program ends.
//
// hook_scope/W1  One count per thread, for all objects of the process: components ask the library for it. An object
//     that sees no library (one that was dlopened with RTLD_LOCAL) checks nothing.
// hook_scope/W2  Without --enable-debug nothing of this is in the code.
#ifndef PINRAIL_BASE_SYNC_HOOK_SCOPE_H
#define PINRAIL_BASE_SYNC_HOOK_SCOPE_H

#ifdef PINRAIL_DEBUG

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <initializer_list>

// The calling thread's depth of hooks. In libpinrail, or in a test that is linked with its parts.
extern "C" __attribute__((weak, visibility("default"))) unsigned* pinrail_debug_hook_depth(void);

namespace pinrail {

inline unsigned* hook_depth() { return pinrail_debug_hook_depth != nullptr ? pinrail_debug_hook_depth() : nullptr; }

inline bool in_hook() {
  const unsigned* const depth = hook_depth();
  return depth != nullptr && *depth != 0;
}

// Straight to the descriptor: stdio would allocate.
inline void refuse_in_hook(const char* what) {
  if (!in_hook()) return;
  *hook_depth() = 0;  // what abort() runs is no hook
  for (const char* part : {"pinrail: hook wall: ", what, " in a hook\n"}) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  std::abort();
}

// Compilers know that malloc reads no memory of ours: without this the count would rise and fall beside it.
inline void keep_order() { __asm__ volatile("" ::: "memory"); }

class HookScope {
 public:
  HookScope() : depth_(hook_depth()) {
    if (depth_ != nullptr) ++*depth_;
    keep_order();
  }
  ~HookScope() {
    keep_order();
    if (depth_ != nullptr) --*depth_;
  }
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  unsigned* const depth_;
};

// While a hook calls on to another runtime's, which has a wall of its own or none.
class ForeignScope {
 public:
  ForeignScope() : depth_(hook_depth()), before_(depth_ != nullptr ? *depth_ : 0) {
    if (depth_ != nullptr) *depth_ = 0;
    keep_order();
  }
  ~ForeignScope() {
    keep_order();
    if (depth_ != nullptr) *depth_ = before_;
  }
  ForeignScope(const ForeignScope&) = delete;
  ForeignScope& operator=(const ForeignScope&) = delete;

 private:
  unsigned* const depth_;
  const unsigned before_;
};

}  // namespace pinrail

#else

namespace pinrail {

constexpr void refuse_in_hook(const char*) {}
struct HookScope {
  HookScope() {}  // NOLINT(modernize-use-equals-default): so that it counts as used
};
struct ForeignScope {
  ForeignScope() {}  // NOLINT(modernize-use-equals-default): likewise
};

}  // namespace pinrail

#endif

#endif
