// SPDX-License-Identifier: BSD-3-Clause
// likely.h - tells the compiler which way a condition usually goes.
//
// The usual way then has no taken branch. A hit has some twenty conditions, and a processor takes about one branch in a
// cycle, so this counts on the hit path.
//
// Threads  Any.
// Hook     May be called in a hook.
#ifndef PINRAIL_BASE_CORE_LIKELY_H
#define PINRAIL_BASE_CORE_LIKELY_H

namespace pinrail {

__attribute__((always_inline)) constexpr bool likely(bool condition) { return __builtin_expect(condition, true) != 0; }
__attribute__((always_inline)) constexpr bool unlikely(bool condition) {
  return __builtin_expect(condition, false) != 0;
}

}  // namespace pinrail

#endif
