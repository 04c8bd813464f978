// SPDX-License-Identifier: BSD-3-Clause
// cases.h - small things that cases of GoogleTest share: what they need, children that answer, few descriptors.
#ifndef PINRAIL_TEST_SUPPORT_CASES_H
#define PINRAIL_TEST_SUPPORT_CASES_H

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "test/support/process.h"

// Skips a case that needs what glibc has and musl has not.
#ifdef __GLIBC__
#define NEED_GLIBC(why) static_cast<void>(0)
#else
#define NEED_GLIBC(why) GTEST_SKIP() << "not with musl: " why
#endif

namespace pinrail::test {

// What a child process of a test answers. That it does is expected.
inline ChildAnswer answer_of(const std::function<ChildAnswer()>& function) {
  ChildAnswer answer{};
  if (in_child(function, &answer)) return answer;
  ADD_FAILURE() << "the child process ended without an answer";
  answer.fill(INT64_MIN);
  return answer;
}

// The exit status of a child process that runs the function; -1: it ended otherwise.
template <typename Function>
int exit_status_of(Function&& function) {
  const pid_t child = fork();
  if (child == 0) _exit(function());
  int how = -1;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}
// That it is 0.
template <typename Function>
void expect_success_in_child(Function&& function) {
  EXPECT_EQ(exit_status_of(function), 0);
}

// Of a function, mostly in a child process, that returns the number of the first step that is not as it should be.
#define STEP(number, condition) \
  if (!(condition)) return number

// A time in which this process can open no files, or only a few.
class FewDescriptors {
 public:
  // left: how many can be opened.
  explicit FewDescriptors(rlim_t left = 0) {
    EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &before_), 0);
    const int lowest_free = dup(STDIN_FILENO);
    EXPECT_GE(lowest_free, 0);
    ::close(lowest_free);
    const rlimit few{static_cast<rlim_t>(lowest_free) + left, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  }
  ~FewDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

// A struct of the C interface that says its size, for calls that fill it.
template <typename T>
T sized() {
  T it{};
  it.size = sizeof(it);
  return it;
}

// The n-th operator new of the process fails: the library's, and the components', too, which resolve
// to the one of nth_allocation.cc.

extern std::atomic<long> allocations_left;  // until one fails; 0: none does; below: each does

// body()'s n-th allocation fails, counted from 1. Whether it came to that.
template <typename Body>
bool with_nth_allocation_failing(long n, Body&& body) {
  allocations_left = n;
  body();
  return allocations_left.exchange(0) <= 0;
}
// body(n) for n from 1 on, which says whether the n-th allocation was reached, until that was not so several times:
// threads may allocate in another order. How often it was.
template <typename Body>
int for_each_allocation(Body&& body, int harmless = 1) {
  int reached = 0;
  for (long n = 1; harmless > 0; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    if (body(n)) {
      ++reached;
    } else {
      --harmless;
    }
  }
  return reached;
}

}  // namespace pinrail::test

#endif
