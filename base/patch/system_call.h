// SPDX-License-Identifier: BSD-3-Clause
// system_call.h - system calls without the C library, whose own functions may be patched.
//
// Hook     All functions. The result is a value or -errno; where code can be patched, errno does not change.
#ifndef PINRAIL_BASE_PATCH_SYSTEM_CALL_H
#define PINRAIL_BASE_PATCH_SYSTEM_CALL_H

#include <features.h>
#include <unistd.h>

#include <cerrno>

#include "base/core/compiler.h"

// Code can be patched on Linux: on x86-64 with glibc or musl, on 64-bit Arm with glibc. Elsewhere prepare() returns
// NOT_SUPPORTED; so it does under ThreadSanitizer, which crashes in hooks of a thread that is ending.
#ifndef PINRAIL_CAN_PATCH
#if !defined(PINRAIL_UNDER_THREAD_SANITIZER) && (defined(__x86_64__) || defined(__aarch64__)) && defined(__LP64__) && \
    defined(__linux__)
#define PINRAIL_CAN_PATCH 1
#else
#define PINRAIL_CAN_PATCH 0
#endif
#endif

namespace pinrail::patch {

#if PINRAIL_CAN_PATCH
inline long raw_call_hook(long number, long a = 0, long b = 0, long c = 0, long d = 0, long e = 0, long f = 0) {
#ifdef __aarch64__
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "0"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#endif
}
#else
template <typename... Longs>
long raw_call_hook(long number, Longs... args) {
  const long result = syscall(number, args...);
  return result == -1 ? -errno : result;
}
#endif

// The arguments are pointers and integers alike, as the kernel takes them.
template <typename... Args>
long system_call_hook(long number, Args... args) {
  return raw_call_hook(number, (long)args...);  // NOLINT
}

// Returns whether the result of a system call is an error.
constexpr bool is_error_hook(long result) { return result < 0 && result >= -4095; }

}  // namespace pinrail::patch

#endif
