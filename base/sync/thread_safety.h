// SPDX-License-Identifier: BSD-3-Clause
// thread_safety.h - names for the attributes of Clang's -Wthread-safety. They are empty under other compilers.
#ifndef PINRAIL_BASE_SYNC_THREAD_SAFETY_H
#define PINRAIL_BASE_SYNC_THREAD_SAFETY_H

#if defined(__clang__)
#define PINRAIL_TSA(x) __attribute__((x))
#else
#define PINRAIL_TSA(x)
#endif

#define CAPABILITY(x) PINRAIL_TSA(capability(x))
#define SCOPED_CAPABILITY PINRAIL_TSA(scoped_lockable)
#define GUARDED_BY(x) PINRAIL_TSA(guarded_by(x))
#define REQUIRES(...) PINRAIL_TSA(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) PINRAIL_TSA(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) PINRAIL_TSA(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) PINRAIL_TSA(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) PINRAIL_TSA(release_capability(__VA_ARGS__))
#define NO_THREAD_SAFETY_ANALYSIS PINRAIL_TSA(no_thread_safety_analysis)

#endif
