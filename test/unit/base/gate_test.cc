// SPDX-License-Identifier: BSD-3-Clause
#include "base/sync/gate.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace {
bool knows_no_wiping = false;  // as kernels before 4.14
}

extern "C" __attribute__((visibility("default"))) int madvise(void* at, size_t length, int advice) noexcept {
  if (knows_no_wiping && advice == MADV_WIPEONFORK) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(syscall(SYS_madvise, at, length, advice));
}

namespace pinrail {
namespace {

// The exit status of a child that runs the body; -1: it ended otherwise.
template <typename Body>
int in_forked(Body&& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int how = -1;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  return WIFEXITED(how) ? WEXITSTATUS(how) : -1;
}

// Before any other: the page is prepared once in a process.
TEST(Gate, a_forked_child_finds_it_shut_also_where_the_kernel_wipes_no_pages) {
  EXPECT_EQ(in_forked([] {
              knows_no_wiping = true;
              gate::open();
              if (!gate::claim_child() || !gate::is_open()) return 1;
              return in_forked([] { return !gate::is_open() && gate::is_child() && gate::claim_child() ? 0 : 1; });
            }),
            0);
}

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
  EXPECT_EQ(in_forked([] {
              const bool was_shut = !gate::is_open() && gate::is_child();
              gate::wait_until_released();  // no thread could release it
              gate::open();
              return was_shut && gate::is_open() && !gate::is_child() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(gate::is_open());
}

}  // namespace
}  // namespace pinrail
