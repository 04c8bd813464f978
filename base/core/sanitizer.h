// SPDX-License-Identifier: BSD-3-Clause
// sanitizer.h - macros for code that is compiled differently under a sanitizer.
#ifndef PINRAIL_BASE_CORE_SANITIZER_H
#define PINRAIL_BASE_CORE_SANITIZER_H

// For functions that catch abi::__forced_unwind: the runtime binds that reference to no object, and
// UndefinedBehaviorSanitizer would report it.
#if defined(__clang__) || defined(__GNUC__)
#define PINRAIL_CATCHES_FORCED_UNWIND __attribute__((no_sanitize("undefined")))
#else
#define PINRAIL_CATCHES_FORCED_UNWIND
#endif

// Defined under ThreadSanitizer, which must see each access: code with accesses in inline assembly has a plain variant
// then.
#if defined(__SANITIZE_THREAD__)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#endif
#endif

#endif
