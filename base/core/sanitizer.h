// SPDX-License-Identifier: BSD-3-Clause
// sanitizer.h - whether this is compiled for ThreadSanitizer, which has to see each access.
#ifndef PINRAIL_BASE_CORE_SANITIZER_H
#define PINRAIL_BASE_CORE_SANITIZER_H

#if defined(__SANITIZE_THREAD__)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#endif
#endif

#endif
