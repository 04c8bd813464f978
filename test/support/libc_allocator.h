// SPDX-License-Identifier: BSD-3-Clause
// libc_allocator.h - for one source of a program: an allocator that says each call, by on_take() and on_give() of that
// source, and leads on to libc's. A program's own functions of these names come before libc's for all objects of the
// process. PINRAIL_SANITIZERS_ALLOCATOR: there is none, for a sanitizer has its own.
#ifndef PINRAIL_TEST_SUPPORT_LIBC_ALLOCATOR_H
#define PINRAIL_TEST_SUPPORT_LIBC_ALLOCATOR_H

#include <cerrno>
#include <cstddef>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#endif
#endif

#if defined(__GLIBC__) && !defined(PINRAIL_SANITIZERS_ALLOCATOR)

namespace {
void on_take();
void on_give();
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

#define PINRAIL_EXPORTED __attribute__((visibility("default")))

PINRAIL_EXPORTED void* malloc(size_t size) {
  on_take();
  return __libc_malloc(size);
}
PINRAIL_EXPORTED void free(void* memory) {
  on_give();
  __libc_free(memory);
}
PINRAIL_EXPORTED void* calloc(size_t count, size_t size) {
  on_take();
  return __libc_calloc(count, size);
}
PINRAIL_EXPORTED void* realloc(void* memory, size_t size) {
  on_take();
  return __libc_realloc(memory, size);
}
PINRAIL_EXPORTED void* memalign(size_t alignment, size_t size) {
  on_take();
  return __libc_memalign(alignment, size);
}
PINRAIL_EXPORTED void* aligned_alloc(size_t alignment, size_t size) {
  on_take();
  return __libc_memalign(alignment, size);
}
PINRAIL_EXPORTED int posix_memalign(void** memory_out, size_t alignment, size_t size) {
  on_take();
  if (alignment == 0 || alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* const memory = __libc_memalign(alignment, size);
  if (memory == nullptr) return ENOMEM;
  *memory_out = memory;
  return 0;
}
}

#endif

#endif
