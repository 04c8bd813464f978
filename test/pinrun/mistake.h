// SPDX-License-Identifier: BSD-3-Clause
// mistake.h - what the sanitizer in use must report.
#ifndef PINRAIL_TEST_PINRUN_MISTAKE_H
#define PINRAIL_TEST_PINRUN_MISTAKE_H

#include <climits>
#include <cstdlib>
#include <thread>

namespace pinrail::test {

// one: 1 at least.
inline void make_mistake(int one) {
  volatile int sum = INT_MAX;
  sum = sum + one;  // undefined: signed overflow
  auto* bytes = static_cast<volatile char*>(std::malloc(16));
  if (bytes == nullptr) return;
  // thread: data races. A race of two writes at the same moment may go unseen, so there is one at each byte.
  std::thread other([bytes] {
    for (int i = 0; i < 16; ++i) bytes[i] = 1;
  });
  for (int i = 15; i >= 0; --i) bytes[i] = 2;
  other.join();
#ifdef PINRAIL_TEST_ADDRESS
  bytes[15 + one] = 3;  // address: a write behind the block
#endif
  std::free(const_cast<char*>(bytes));
}

}  // namespace pinrail::test

#endif
