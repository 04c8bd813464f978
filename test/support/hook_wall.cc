// SPDX-License-Identifier: BSD-3-Clause
// The allocator's part of the hook wall: linked into a test, it ends the program when memory is taken or given back in
// a hook (base/sync/hook_scope.h). Debug builds only; elsewhere it is empty, and so it is beside a C library that does
// not give its allocator by other names.
#include <cstddef>

#if defined(PINRAIL_DEBUG) && defined(__GLIBC__)

#include <cerrno>

#include "base/sync/hook_scope.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define PINRAIL_SANITIZERS_ALLOCATOR 1
#endif
#endif

namespace {

void on_take() { pinrail::abort_in_hook_scope("memory is allocated"); }
void on_give() { pinrail::abort_in_hook_scope("memory is freed"); }

}  // namespace

#ifdef PINRAIL_SANITIZERS_ALLOCATOR

// Theirs stays; it reports each call. (GCC ships the function, but not the header.)
extern "C" int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void*, size_t),
                                                         void (*on_free)(const volatile void*));

namespace {

__attribute__((constructor)) void listen() {
  __sanitizer_install_malloc_and_free_hooks([](const volatile void*, size_t) { on_take(); },
                                            [](const volatile void*) { on_give(); });
}

}  // namespace

#else

// A program's own functions of these names come before libc's for all objects of the process, and lead on to libc's.
extern "C" {
void* __libc_malloc(size_t);
void __libc_free(void*);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

#define PINRAIL_EXPORTED __attribute__((visibility("default")))

// For tests that look at what libc's malloc gives back to the kernel.
extern const bool pinrail_debug_wall_leads_to_libc;
const bool pinrail_debug_wall_leads_to_libc = true;

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
