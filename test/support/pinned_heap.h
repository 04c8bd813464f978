// SPDX-License-Identifier: BSD-3-Clause
// pinned_heap.h - for tests of fork(): a heap whose pages are pinned, so that the kernel copies each of them at a
// moment of its own, and a child that allocates.
//
// Threads  pin_heap() once, on the main thread.
#ifndef PINRAIL_TEST_SUPPORT_PINNED_HEAP_H
#define PINRAIL_TEST_SUPPORT_PINNED_HEAP_H

#include <linux/io_uring.h>
#include <malloc.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

namespace pinrail::test {

constexpr size_t kBlock = 40;  // bytes: of the sizes that glibc frees without a lock

// Has the kernel pin the main thread's heap, which it grows before. False: the kernel refuses that here.
inline bool pin_heap() {
  constexpr size_t kHeap = size_t{2} << 20, kPiece = 65536, kOnePage = 4096;
  mallopt(M_TRIM_THRESHOLD, int{kHeap} * 2);
  std::vector<void*> pieces;
  for (size_t i = 0; i < kHeap / kPiece; ++i) pieces.push_back(std::malloc(kPiece));
  const uintptr_t from = reinterpret_cast<uintptr_t>(pieces[0]) & ~uintptr_t{kOnePage - 1};
  const uintptr_t to = reinterpret_cast<uintptr_t>(sbrk(0));
  for (void* piece : pieces) std::free(piece);
  io_uring_params params{};
  const long ring = syscall(SYS_io_uring_setup, 1, &params);
  const iovec heap{reinterpret_cast<void*>(from), to - from};
  return ring >= 0 && syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &heap, 1) == 0;
}

// A child that finds the parent's allocator between two of its states ends by a signal of its own.
[[noreturn]] inline void allocate_and_end() {
  alarm(30);
  std::vector<void*> blocks;
  for (size_t i = 0; i < 2000; ++i) blocks.push_back(std::malloc(kBlock));
  for (void* block : blocks) std::free(block);
  _exit(0);
}

}  // namespace pinrail::test

#endif
