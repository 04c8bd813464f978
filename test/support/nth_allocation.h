// SPDX-License-Identifier: BSD-3-Clause
// nth_allocation.h - the n-th operator new of the process fails: the library's, and the components', too, which resolve
// to the one of nth_allocation.cc.
#ifndef PINRAIL_TEST_SUPPORT_NTH_ALLOCATION_H
#define PINRAIL_TEST_SUPPORT_NTH_ALLOCATION_H

#include <atomic>

namespace pinrail::test {

extern std::atomic<long> allocations_left;  // until one fails; 0: none does

// body()'s n-th allocation fails, counted from 1. Whether it came to that.
template <typename Body>
bool with_nth_allocation_failing(long n, Body&& body) {
  allocations_left = n;
  body();
  return allocations_left.exchange(0) <= 0;
}

}  // namespace pinrail::test

#endif
