// SPDX-License-Identifier: BSD-3-Clause
// The system call membarrier is forbidden after init, as a seccomp filter may do: what cannot be summed counts as held
// (R9), nothing more is cached, and all of it goes back in the end. Or before init: then no thread has slots. In a
// child, for a filter stays.
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <functional>
#include <set>
#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

bool forbid_membarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {sizeof(filter) / sizeof(filter[0]), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0;
}

constexpr int kNoFilter = 77;

// The status of a child that does this and then says whether its test failed; what it printed comes with ours.
int status_of_child(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child == 0) {
    work();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void expect_in_child(const std::function<void()>& work) {
  if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0) {
    GTEST_SKIP() << "no membarrier here: nothing is counted per thread";
  }
  const int status = status_of_child(work);
  if (status == kNoFilter) GTEST_SKIP() << "no seccomp filter can be installed here";
  EXPECT_EQ(status, 0);
}

void lose_barrier() {
  if (!forbid_membarrier()) _exit(kNoFilter);
}

TEST(LostBarrier, what_is_cached_stays_and_nothing_more_is_cached) {
  expect_in_child([] {
    const Library library;
    const fake::FakeRegistrar registrar;
    PoolOptions options;
    options.count_limit = 2;
    Pool pool(registrar, options);
    const pinrail_handle_t held = pool.must(kBase, kPage);
    pool.use(kBase + 2 * kPage, kPage);
    lose_barrier();
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND) << "whether it is held is not known";
    pinrail_handle_t handle{};
    EXPECT_EQ(pool.reg(kBase + 4 * kPage, kPage, &handle), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    const std::string said = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(said.find("barrier lost"), std::string::npos) << said;
    EXPECT_EQ(said.find("barrier lost"), said.rfind("barrier lost")) << said;
    EXPECT_EQ(registrar.deregister_calls(), 0u);
    EXPECT_TRUE(pool.has(kBase + 2 * kPage, kPage)) << "what is cached still answers";
    EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced, and a destroy needs no barrier";
    EXPECT_EQ(registrar.live_count(), 0u);
    EXPECT_EQ(registrar.violations(), std::vector<std::string>{});
  });
}

TEST(LostBarrier, what_is_made_afterwards_is_given_back_at_its_last_release) {
  expect_in_child([] {
    const Library library;
    const fake::FakeRegistrar registrar;
    Pool pool(registrar);
    pool.use(kBase, kPage);
    lose_barrier();
    EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
    const pinrail_handle_t first = pool.must(kBase + 2 * kPage, kPage);
    const pinrail_handle_t second = pool.must(kBase + 2 * kPage, kPage);
    EXPECT_EQ(first.reg, second.reg);
    std::thread([&] { EXPECT_EQ(pinrail_mpool_deregister(first), PINRAIL_SUCCESS); }).join();
    EXPECT_TRUE(registrar.is_live(second.reg));
    EXPECT_EQ(pinrail_mpool_deregister(second), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar.live_count(), 1u);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  });
}

TEST(LostBarrier, what_died_waits_and_goes_back_with_the_pool) {
  expect_in_child([] {
    const Library library;
    const fake::FakeRegistrar registrar;
    Pool pool(registrar);
    const pinrail_handle_t held = pool.must(kBase, kPage);
    pool.use(kBase + 2 * kPage, kPage);
    lose_barrier();
    report(kBase, 3 * kPage);
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
    EXPECT_FALSE(pool.has(kBase, kPage));
    EXPECT_EQ(registrar.live_count(), 2u) << "neither is known to be idle";
    EXPECT_EQ(pool.close(), PINRAIL_ERR_BUSY);
    EXPECT_EQ(pinrail_mpool_deregister(held), PINRAIL_SUCCESS);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar.live_count(), 0u);
    EXPECT_EQ(registrar.violations(), std::vector<std::string>{});
  });
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

// Where it is forbidden from the beginning no thread has slots.
TEST(NoBarrier, ended_threads_leave_the_memory_of_registrations_to_others) {
  expect_in_child([] {
    lose_barrier();
    expect_memory_is_used_again();
  });
}

// The program has used up the keys by which the end of a thread is seen.
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
