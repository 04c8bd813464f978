// SPDX-License-Identifier: BSD-3-Clause
#include "base/sync/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/sync/closed_in_child.h"

namespace pinrail {
namespace {

TEST(Gate, is_open_once_it_was_opened_and_not_before) {
  EXPECT_FALSE(gate::is_open());
  EXPECT_FALSE(gate::is_child());
  gate::open();
  EXPECT_TRUE(gate::is_open());
  gate::open();
  EXPECT_TRUE(gate::is_open());
}

TEST(Gate, stays_shut_until_the_last_holder_lets_go) {
  gate::open();
  gate::hold_hook();
  gate::hold_hook();
  gate::release_hook();
  EXPECT_FALSE(gate::is_open());
  EXPECT_FALSE(gate::is_child());
  gate::release_hook();
  EXPECT_TRUE(gate::is_open());
}

TEST(Gate, waiting_ends_when_it_is_released_and_not_before) {
  gate::open();
  gate::hold_hook();
  std::atomic<bool> released{false};
  std::thread waiter([&] {
    gate::wait_until_released();
    EXPECT_TRUE(released.load());
  });
  usleep(20000);  // so that the waiter naps, too
  released.store(true);
  gate::release_hook();
  waiter.join();
}

TEST(Gate, a_forked_child_finds_it_shut_and_can_open_it_for_itself) {
  gate::open();
  const pid_t child = fork();
  if (child == 0) {
    bool right = !gate::is_open() && gate::is_child();
    gate::wait_until_released();  // no thread could release it
    gate::open();
    right = right && gate::is_open() && !gate::is_child();
    _exit(right ? 0 : 1);
  }
  int how = -1;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0);
  EXPECT_TRUE(gate::is_open());
}

// closed_in_child/D2: it is noted unless the process has forked since, and its note serves again once it is closed.
TEST(ClosedInChild, a_note_is_taken_and_is_free_again) {
  const closed_in_child::IsOurs is_ours = [](int) { return true; };
  const uint64_t forks = closed_in_child::count_forks();
  closed_in_child::Note* const first = closed_in_child::note(dup(STDERR_FILENO), is_ours, forks);
  ASSERT_NE(first, nullptr);
  closed_in_child::close_noted(first);
  closed_in_child::Note* const second = closed_in_child::note(dup(STDERR_FILENO), is_ours, forks);
  EXPECT_EQ(second, first);
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  const int late = dup(STDERR_FILENO);
  EXPECT_EQ(closed_in_child::note(late, is_ours, forks), nullptr);
  close(late);
  closed_in_child::close_noted(second);
}

// Programs close descriptors that they did not open.
TEST(ClosedInChild, a_number_that_names_another_file_by_now_stays_open) {
  for (const closed_in_child::IsOurs is_ours : {closed_in_child::IsOurs{nullptr}, +[](int) { return false; }}) {
    const uint64_t forks = closed_in_child::count_forks();
    const int number = memfd_create("ours", MFD_CLOEXEC);
    closed_in_child::Note* const note = closed_in_child::note(number, is_ours, forks);
    ASSERT_NE(note, nullptr);
    ASSERT_EQ(dup2(STDERR_FILENO, number), number);
    closed_in_child::close_noted(note);
    EXPECT_GE(fcntl(number, F_GETFD), 0);
    close(number);
  }
}

}  // namespace
}  // namespace pinrail
