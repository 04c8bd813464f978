// SPDX-License-Identifier: BSD-3-Clause
// libc_malloc.h - whether this process allocates by the C library, or by a sanitizer's or another allocator.
#ifndef PINRAIL_TEST_SUPPORT_LIBC_MALLOC_H
#define PINRAIL_TEST_SUPPORT_LIBC_MALLOC_H

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>

// There if the program's own malloc leads to libc's.
extern "C" __attribute__((weak)) const bool pinrail_debug_wall_leads_to_libc;

namespace pinrail::test {

inline uintptr_t libc_function(const char* name) {
#ifdef __GLIBC__
  void* const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
#else
  void* const libc = dlopen("libc.so", RTLD_LAZY | RTLD_NOLOAD);
#endif
  return reinterpret_cast<uintptr_t>(dlsym(libc, name));
}

// Whether malloc is libc's own, or the hook wall's (test/support/hook_wall.cc), which leads there.
inline bool malloc_is_libcs() {
  const bool interposed = libc_function("malloc") != reinterpret_cast<uintptr_t>(&malloc);
  return !interposed || &pinrail_debug_wall_leads_to_libc != nullptr;
}

}  // namespace pinrail::test

#endif
