// SPDX-License-Identifier: BSD-3-Clause
// heap_bytes.h - what the allocator has handed out and not got back.
//
// Threads  all functions; another thread's allocations count as well.
#ifndef PINRAIL_TEST_SUPPORT_HEAP_BYTES_H
#define PINRAIL_TEST_SUPPORT_HEAP_BYTES_H

#include <malloc.h>

#include <cstddef>

#include "base/core/compiler.h"

namespace pinrail::test {

// 0: this C library does not tell, or a sanitizer has the allocator.
inline size_t heap_bytes() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

}  // namespace pinrail::test

#endif
