// SPDX-License-Identifier: BSD-3-Clause
#include "test/support/cases.h"

#include <cstdlib>
#include <new>

// GCC takes malloc and free below for strangers to new and delete.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
#endif

namespace pinrail::test {

std::atomic<long> allocations_left{0};

static bool allocation_fails() { return allocations_left < 0 || (allocations_left > 0 && --allocations_left == 0); }

}  // namespace pinrail::test

void* operator new(size_t size) {
  void* memory = pinrail::test::allocation_fails() ? nullptr : std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return pinrail::test::allocation_fails() ? nullptr : std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
