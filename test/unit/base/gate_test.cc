// SPDX-License-Identifier: BSD-3-Clause
#include "base/sync/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

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

}  // namespace
}  // namespace pinrail
