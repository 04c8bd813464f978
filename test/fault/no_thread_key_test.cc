// SPDX-License-Identifier: BSD-3-Clause
// The program has used up the keys by which the end of a thread is seen: no thread keeps free registrations for itself,
// which would be lost with it. In a child, because keys stay used.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <set>
#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

int status_of_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

// One thread after the other registers, and what it frees is left to the next one.
void expect_memory_is_used_again() {
  const Library library;
  const fake::FakeRegistrar registrar;
  PoolOptions options;
  options.count_limit = 2;
  Pool pool(registrar, options);
  std::set<const pinrail_registration_t*> seen;
  constexpr uintptr_t kThreads = 50, kUses = 20;
  for (uintptr_t thread = 0; thread < kThreads; ++thread) {
    std::thread([&] {
      for (uintptr_t i = 0; i < kUses; ++i) {
        const pinrail_handle_t handle = pool.must(kBase + 2 * i * kPage, kPage);
        seen.insert(handle.reg);
        EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
      }
    }).join();
  }
  EXPECT_EQ(registrar.register_calls(), kThreads * kUses);
  EXPECT_LT(seen.size(), 10u) << "two of them at a time";
}

TEST(NoKey, ended_threads_leave_the_memory_of_registrations_to_others) {
  EXPECT_EQ(status_of_child([] {
              for (pthread_key_t key; pthread_key_create(&key, nullptr) == 0;) {
              }
              expect_memory_is_used_again();
            }),
            0);
}

}  // namespace
}  // namespace pinrail::test
