// SPDX-License-Identifier: BSD-3-Clause
// The allocator's part of the hook wall: linked into a test, it ends the program when memory is taken or given back in
// a hook (base/sync/hook_scope.h). Debug builds only; elsewhere it is empty, and so it is beside a C library that does
// not give its allocator by other names.
#include <cstddef>

#if defined(PINRAIL_DEBUG) && defined(__GLIBC__)

#include "base/sync/hook_scope.h"
#include "test/support/libc_allocator.h"

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

// For tests that look at what libc's malloc gives back to the kernel.
extern "C" {
extern const bool pinrail_debug_wall_leads_to_libc;
const bool pinrail_debug_wall_leads_to_libc = true;
}

#endif

#endif
