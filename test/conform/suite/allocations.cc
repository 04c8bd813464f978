// SPDX-License-Identifier: BSD-3-Clause
// Counts this thread's allocations (E3). A program's own malloc comes before libc's for all objects of the process, and
// leads on to libc's. Elsewhere than on glibc, and under a sanitizer, nothing is counted.
#include <cerrno>
#include <cstddef>

#include "test/conform/suite/component.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#endif
#endif

#if defined(__GLIBC__) && !defined(PINRAIL_SANITIZERS_ALLOCATOR)

namespace {
__thread long count __attribute__((tls_model("initial-exec")));
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

#define PINRAIL_EXPORTED __attribute__((visibility("default")))

PINRAIL_EXPORTED void* malloc(size_t size) {
  ++count;
  return __libc_malloc(size);
}
PINRAIL_EXPORTED void free(void* memory) {
  ++count;
  __libc_free(memory);
}
PINRAIL_EXPORTED void* calloc(size_t number, size_t size) {
  ++count;
  return __libc_calloc(number, size);
}
PINRAIL_EXPORTED void* realloc(void* memory, size_t size) {
  ++count;
  return __libc_realloc(memory, size);
}
PINRAIL_EXPORTED void* aligned_alloc(size_t alignment, size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}
PINRAIL_EXPORTED void* memalign(size_t alignment, size_t size) {
  ++count;
  return __libc_memalign(alignment, size);
}
PINRAIL_EXPORTED int posix_memalign(void** memory_out, size_t alignment, size_t size) {
  ++count;
  if (alignment == 0 || alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0) return EINVAL;
  void* const memory = __libc_memalign(alignment, size);
  if (memory == nullptr) return ENOMEM;
  *memory_out = memory;
  return 0;
}
}

long pinrail::conform::allocations_of_thread() {
  const long since = count;
  count = 0;
  return since;
}

#else

long pinrail::conform::allocations_of_thread() { return -1; }

#endif
