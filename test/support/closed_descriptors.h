// SPDX-License-Identifier: BSD-3-Clause
// closed_descriptors.h - what a daemon or a sandbox does: it closes descriptors that it did not open, and opens files
// of its own, which get the numbers.
//
// Threads  no other thread opens or closes descriptors of the test's meanwhile.
#ifndef PINRAIL_TEST_SUPPORT_CLOSED_DESCRIPTORS_H
#define PINRAIL_TEST_SUPPORT_CLOSED_DESCRIPTORS_H

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <vector>

namespace pinrail::test {

inline std::set<int> open_numbers() {
  std::set<int> numbers;
  for (int number = 0; number < 1024; ++number) {
    if (fcntl(number, F_GETFD) >= 0) numbers.insert(number);
  }
  return numbers;
}

// The numbers of all descriptors that function() opens and leaves open.
template <typename Function>
std::set<int> numbers_opened_by(Function&& function) {
  const std::set<int> before = open_numbers();
  function();
  std::set<int> opened;
  for (const int number : open_numbers()) {
    if (before.count(number) == 0) opened.insert(number);
  }
  return opened;
}

inline int make_memory_file() { return memfd_create("the program's", MFD_CLOEXEC); }

// A pipe of which nothing can be read without waiting for ever. Its other end stays open.
inline int make_silent_pipe() {
  int ends[2] = {-1, -1};
  return pipe2(ends, O_CLOEXEC) == 0 ? ends[0] : -1;
}

// Gives each number to a file of the program's own.
inline bool take_over(const std::set<int>& numbers, int (*make)()) {
  for (const int number : numbers) {
    const int own = make();
    if (own < 0 || dup3(own, number, O_CLOEXEC) != number) return false;
    close(own);
  }
  return true;
}

// Whether the program's files are open still and as they were made: without a byte.
inline bool are_untouched(const std::set<int>& numbers) {
  for (const int number : numbers) {
    struct stat about {};
    if (fstat(number, &about) != 0) return false;
    if (S_ISREG(about.st_mode) && about.st_size != 0) return false;
  }
  return true;
}

}  // namespace pinrail::test

#endif
