// SPDX-License-Identifier: BSD-3-Clause
// sanitizer.h - what differs when this is compiled for a sanitizer.
#ifndef PINRAIL_BASE_CORE_SANITIZER_H
#define PINRAIL_BASE_CORE_SANITIZER_H

// For functions that catch abi::__forced_unwind: the runtime binds that reference to no object, which
// UndefinedBehaviorSanitizer reports otherwise.
#if defined(__clang__) || defined(__GNUC__)
#define PINRAIL_CATCHES_FORCED_UNWIND __attribute__((no_sanitize("undefined")))
#else
#define PINRAIL_CATCHES_FORCED_UNWIND
#endif

// ThreadSanitizer has to see each access.
#if defined(__SANITIZE_THREAD__)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#endif
#endif

#endif
