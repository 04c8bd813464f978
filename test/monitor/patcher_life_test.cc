// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher: the results of patched calls, other threads, a second monitor, stop and start, fork, and a patch by
// another library.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/shm.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>

#include "base/sync/futex_lock.h"
#include "config.h"
#include "test/monitor/patcher_host.h"
#include "test/support/answer_of.h"
#include "test/support/need_glibc.h"

#if PINRAIL_CAN_PATCH

#include "test/monitor/patcher_reports.h"

namespace pinrail::test {
namespace {

TEST_F(PatcherEvents, results_and_errno_are_the_calls) {
  struct Case {
    const char* what;
    long (*call)();
    long result;
    int error;
  };
  constexpr int kUntouched = 12345;
  const Case cases[] = {
      {"munmap", [] { return long{munmap(at(marked_pages(1)), kPage)}; }, 0, kUntouched},
      {"munmap", [] { return long{munmap(at(123), kPage)}; }, -1, EINVAL},
      {"mmap", [] { return reinterpret_cast<long>(mmap(nullptr, 0, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)); },
       -1, EINVAL},
      {"mmap", [] { return reinterpret_cast<long>(mmap(nullptr, kPage, PROT_READ, MAP_PRIVATE, -1, 0)); }, -1, EBADF},
      {"mmap", [] { return reinterpret_cast<long>(mmap(nullptr, kPage, 0, MAP_PRIVATE, 0, 17)); }, -1, EINVAL},
      {"mremap", [] { return reinterpret_cast<long>(mremap(at(0x10000), kPage, kPage, MREMAP_FIXED, at(0x20000))); },
       -1, EINVAL},
      {"madvise", [] { return long{madvise(at(marked_pages(1)), kPage, MADV_DONTNEED)}; }, 0, kUntouched},
      {"madvise", [] { return long{madvise(at(1), kPage, MADV_DONTNEED)}; }, -1, EINVAL},
      {"process_madvise", [] { return long{advise_process(-1, nullptr, 0, MADV_DONTNEED, 0)}; }, -1, EBADF},
      {"shmdt", [] { return long{shmdt(at(marked_pages(1)))}; }, -1, EINVAL},
      {"shmat", [] { return reinterpret_cast<long>(shmat(-1, nullptr, 0)); }, -1, EINVAL},
      {"fallocate", [] { return long{fallocate(-1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1)}; }, -1, EBADF},
      {"ftruncate", [] { return long{ftruncate(-1, 0)}; }, -1, EBADF},
      {"remap_file_pages", [] { return long{remap_file_pages(at(1), kPage, PROT_READ, 0, 0)}; }, -1, EINVAL},
  };
  for (const Case& one : cases) {
    errno = kUntouched;
    EXPECT_EQ(one.call(), one.result) << one.what;
    EXPECT_EQ(errno, one.error) << one.what;
  }
}

// What locks wait with is a system call by the function of that name, which is patched.
struct Waiter {
  static void hook(void* self, uintptr_t base, size_t length) { static_cast<Waiter*>(self)->wait_hook(base, length); }
  void wait_hook(uintptr_t at_base, size_t at_length) {
    if (at_base != base || at_length != kPage) return;
    thread = static_cast<pid_t>(syscall(SYS_gettid));
    const std::lock_guard<FutexLock> guard(lock);
    is_in = true;
  }

  uintptr_t base = 0;
  FutexLock lock;
  std::atomic<pid_t> thread{0};  // that is in the hook
  std::atomic<bool> is_in{false};
};

TEST_F(PatcherEvents, a_hook_sleeps_until_the_lock_that_it_waits_for_is_free) {
  constexpr int kUntouched = 12345;
  Waiter waiter;
  waiter.base = marked_pages(1);
  void* subscription = nullptr;
  ASSERT_TRUE(monitor::subscribe(0, Waiter::hook, &waiter, &subscription).ok());
  clear();
  int result = -1, error = 0;
  waiter.lock.lock();
  std::thread unmapper([&] {
    errno = kUntouched;
    result = munmap(at(waiter.base), kPage);
    error = errno;
  });
  EXPECT_TRUE(comes_true([&] { return waiter.thread != 0 && sleeps(std::to_string(waiter.thread)); }))
      << "it is busy all the time";
  EXPECT_FALSE(waiter.is_in);
  waiter.lock.unlock();
  unmapper.join();
  EXPECT_TRUE(waiter.is_in);
  EXPECT_EQ(result, 0);
  EXPECT_EQ(error, kUntouched);
  EXPECT_TRUE(came_first(waiter.base, kPage));
  monitor::unsubscribe(subscription);
}

TEST_F(PatcherEvents, events_of_other_threads) {
  const uintptr_t base = marked(1);
  pid_t thread = 0;
  std::thread([&] {
    thread = static_cast<pid_t>(syscall(SYS_gettid));
    munmap(at(base), kPage);
  }).join();
  EXPECT_TRUE(came_first(base, kPage));
  ASSERT_FALSE(touching(base, kPage).empty());
  EXPECT_EQ(touching(base, kPage).front().thread, thread);
}

TEST(Patcher, after_stop_nothing_is_reported_and_a_new_start_takes_the_same_patches) {
  std::vector<std::string> before;
  constexpr const char* kNames[] = {"munmap", "mmap", "mremap", "madvise", "brk", "fallocate"};
  {
    Patcher patcher;
    NEED_PATCHER(patcher);
    for (const char* name : kNames) before.push_back(first_bytes(name));
    const uintptr_t base = marked_pages(1);
    patcher.stop();
    patcher.recorder.clear();
    EXPECT_EQ(munmap(at(base), kPage), 0);
    EXPECT_TRUE(patcher.recorder.reports().empty());
  }
  for (int i = 0; i < 20; ++i) {
    Patcher patcher;
    NEED_PATCHER(patcher);
    const uintptr_t base = marked_pages(1);
    patcher.recorder.clear();
    munmap(at(base), kPage);
    EXPECT_EQ(patcher.recorder.touching(base, kPage).size(), 2u);
  }
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(before[i], first_bytes(kNames[i])) << kNames[i];
  }
}

TEST(Patcher, two_at_once_each_see_every_event) {
  Patcher first;
  NEED_PATCHER(first);
  Patcher second;
  NEED_PATCHER(second);
  const uintptr_t base = marked_pages(1);
  first.recorder.clear();
  second.recorder.clear();
  EXPECT_EQ(munmap(at(base), kPage), 0);
  EXPECT_TRUE(came_first(first, base, kPage));
  EXPECT_TRUE(came_first(second, base, kPage));
  EXPECT_EQ(first.check(), PINRAIL_SUCCESS);
  EXPECT_EQ(second.check(), PINRAIL_SUCCESS);
  EXPECT_TRUE(first.said().empty()) << "it calls on: nothing was lost";
}

TEST(Patcher, a_function_that_is_left_out_is_not_seen_and_that_is_said) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher("0", "madvise,loader");
    const uintptr_t base = marked_pages(1);
    patcher.recorder.clear();
    madvise(at(base), kPage, MADV_DONTNEED);
    syscall(SYS_madvise, base, kPage, MADV_DONTNEED);
    const auto after_madvise = static_cast<int64_t>(patcher.recorder.touching(base, kPage).size());
    munmap(at(base), kPage);
    const auto after_munmap = static_cast<int64_t>(patcher.recorder.touching(base, kPage).size());
    const uintptr_t other = marked_pages(1);
    patcher.recorder.clear();
    syscall(SYS_munmap, other, kPage);
    const auto after_call = static_cast<int64_t>(patcher.recorder.touching(other, kPage).size());
    return ChildAnswer{patcher.status, after_madvise, after_munmap, after_call,
                       static_cast<int64_t>(patcher.lines().size())};
  });
  EXPECT_EQ(answer[0], PINRAIL_SUCCESS);
  EXPECT_EQ(answer[1], 0) << "by syscall() neither";
  EXPECT_EQ(answer[2], 2);
  EXPECT_EQ(answer[3], 2) << "what is not left out is seen by syscall()";
  EXPECT_EQ(answer[4], 2) << "one line for each function that is left out";
}

TEST(Patcher, wrong_values_are_refused) {
  std::string why;
  const pinrail_component_t* descriptor = component_under_test("monitor", "patcher", &why);
  ASSERT_NE(descriptor, nullptr) << why;
  fake::FakeHost host(*descriptor);
  EXPECT_FALSE(host.set("check_interval", "often"));
  EXPECT_FALSE(host.set("check_interval", "-1"));
  EXPECT_FALSE(host.set("check_interval", "3600001"));
  EXPECT_TRUE(host.set("check_interval", "0"));
}

TEST(Patcher, a_forked_child_reports_nothing_and_works) {
  Patcher patcher("10");
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(2);
  const ChildAnswer answer = answer_of([&] {
    patcher.recorder.clear();
    const int result = munmap(at(base), kPage);
    const auto inherited = static_cast<int64_t>(patcher.recorder.reports().size());
    patcher.stop();  // the checking thread does not exist here: no call may wait for it
    Patcher own;
    own.recorder.clear();
    munmap(at(base + kPage), kPage);
    return ChildAnswer{result, inherited, own.status,
                       static_cast<int64_t>(own.recorder.touching(base, 2 * kPage).size())};
  });
  EXPECT_EQ(answer, (ChildAnswer{0, 0, PINRAIL_SUCCESS, 2}));
  munmap(at(base), 2 * kPage);
}

#ifdef PINRAIL_DEBUG
void* volatile taken = nullptr;

// A whole process of its own: its monitor is started there, and the subscriber allocates where munmap was called.
TEST(PatcherDeathTest, a_subscriber_that_allocates_ends_a_debug_build_at_the_munmap_that_led_to_it) {
  NEED_GLIBC("malloc is watched by a wrapper of glibc's");
  EXPECT_DEATH(
      {
        Patcher patcher;
        void* subscription = nullptr;
        const auto hook = [](void*, uintptr_t, size_t) { taken = std::malloc(1); };
        monitor::subscribe(0, hook, nullptr, &subscription).ignore();
        munmap(at(marked_pages(1)), kPage);
      },
      "hook wall: memory is allocated in a hook");
}
#endif

TEST(Patcher, a_call_that_makes_patched_code_writable_is_checked_at_once) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher("3600000");
    const bool asleep = await_sleeping_monitor();
    const long page = static_cast<long>(libc_function("madvise") & ~(kPage - 1));
    // As others do: writable, a patch, and back. They call libc's mprotect.
    mprotect(at(static_cast<uintptr_t>(page)), 2 * kPage, PROT_READ | PROT_WRITE | PROT_EXEC);
    patch_as_open_mpi("madvise", reinterpret_cast<uintptr_t>(+[](void*, size_t, int) { return 0; }));
    mprotect(at(static_cast<uintptr_t>(page)), 2 * kPage, PROT_READ | PROT_EXEC);
    for (int i = 0; i < 4000 && patcher.said().empty(); ++i) usleep(5000);
    return ChildAnswer{patcher.status, asleep ? 1 : 0,
                       !patcher.said().empty() && patcher.said()[0] == "patched over: madvise"};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1}));
}

}  // namespace
}  // namespace pinrail::test

#endif
