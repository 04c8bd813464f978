// SPDX-License-Identifier: BSD-3-Clause
// child.h - a piece of a test in a forked child: for limits, filters and what may crash.
//
// Threads  the calling one alone may hold locks that the child needs.
#ifndef PINRAIL_TEST_SUPPORT_CHILD_H
#define PINRAIL_TEST_SUPPORT_CHILD_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace pinrail::test {

// What a child says: whatever numbers the test agrees on with itself.
using ChildAnswer = std::array<int64_t, 8>;

// Runs the function in a forked child. False if the child did not answer: it crashed, or took more than a minute.
bool in_child(const std::function<ChildAnswer()>& function, ChildAnswer* answer_out);

// From here on this process may lock and pin no more than that, and has no privilege that lifts the limit. own_user:
// under a user id that no other process has, where pinned bytes are counted by user; for children. False if it could
// not be arranged.
bool limit_locked_memory(size_t bytes, bool own_user);

// For children: from here on the system call fails with that errno.
bool refuse_system_call(long number, int error);

}  // namespace pinrail::test

#endif
