// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher is installed while other threads run and sleep in the very functions, many times over, each in a
// child that was never patched.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/syscall.h>

#include <thread>

#include "base/core/kernel.h"
#include "test/monitor/patcher_host.h"
#include "test/support/cases.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

#if PINRAIL_CAN_PATCH

int installs() { return short_or_long(25, 1000); }

// A thread that sleeps in munmap() until it is woken: the kernel waits there for the reader of the userfaultfd.
class Sleeper {
 public:
  Sleeper() : watch_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY))) {
    uffdio_api api{UFFD_API, UFFD_FEATURE_EVENT_UNMAP, 0};
    base_ = marked_pages(kPages);
    uffdio_register range{{base_, kPages * kPageBytes}, UFFDIO_REGISTER_MODE_MISSING, 0};
    can_ = watch_ >= 0 && ioctl_of(watch_, UFFDIO_API, &api) == 0 && ioctl_of(watch_, UFFDIO_REGISTER, &range) == 0;
  }
  ~Sleeper() { close(watch_); }
  Sleeper(const Sleeper&) = delete;
  Sleeper& operator=(const Sleeper&) = delete;

  bool can() const { return can_; }
  // Returns when the thread sleeps in the kernel.
  bool fall_asleep() {
    thread_ = std::thread([this] { result_ = munmap(at(base_), kPages * kPageBytes); });
    pollfd ready{watch_, POLLIN, 0};
    return poll(&ready, 1, 10000) == 1;
  }
  // The result of its munmap().
  int wake() {
    uffd_msg event{};
    if (read(watch_, &event, sizeof(event)) != sizeof(event)) return -2;
    thread_.join();
    return result_;
  }

 private:
  static constexpr size_t kPages = 4;
  int watch_;
  uintptr_t base_ = 0;
  bool can_ = false;
  std::thread thread_;
  int result_ = -3;
};

// Two threads that call the functions as fast as they can.
class Hammers {
 public:
  Hammers() {
    while (rounds_.load() < 200) std::this_thread::yield();
  }
  ~Hammers() { stop_ = true; }
  Hammers(const Hammers&) = delete;
  Hammers& operator=(const Hammers&) = delete;

  int wrong() const { return wrong_.load(); }

 private:
  void expect(bool right) {
    if (!right) ++wrong_;
  }
  void run() {
    while (!stop_.load(std::memory_order_relaxed)) {
      void* const base = mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      expect(base != MAP_FAILED);
      *static_cast<volatile char*>(base) = 1;
      expect(madvise(base, kPageBytes, MADV_DONTNEED) == 0 && *static_cast<volatile char*>(base) == 0);
      expect(mremap(base, 2 * kPageBytes, kPageBytes, 0) == base);
      errno = 0;
      expect(ftruncate(-1, 0) == -1 && errno == EBADF);
      expect(munmap(base, kPageBytes) == 0);
      expect(munmap(static_cast<char*>(base) + 1, kPageBytes) == -1 && errno == EINVAL);
      ++rounds_;
    }
  }

  std::atomic<bool> stop_{false};
  std::atomic<int> rounds_{0}, wrong_{0};
  const Team threads_{2, [this] { run(); }};
};

bool sees_munmap(Patcher* patcher) {
  const uintptr_t base = marked_pages(1);
  patcher->recorder.watch(base, kPageBytes);
  munmap(at(base), kPageBytes);
  return !patcher->recorder.touching(base, kPageBytes).empty();
}

ChildAnswer install_beside(bool with_sleeper) {
  Hammers hammers;
  Sleeper sleeper;
  const bool asleep = with_sleeper && sleeper.fall_asleep();
  Patcher patcher;
  const bool sees = sees_munmap(&patcher);
  const int woken = with_sleeper ? sleeper.wake() : 0;
  return {patcher.status, asleep == with_sleeper, sees, woken, hammers.wrong()};
}

TEST(PatcherStress, installs_while_threads_run_and_sleep_in_the_functions) {
  const bool with_sleeper = Sleeper().can();
  int clean = 0;
  for (int i = 0; i < installs(); ++i) {
    const ChildAnswer answer = answer_of([with_sleeper] { return install_beside(with_sleeper); });
    ASSERT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1, 0, 0})) << "in round " << i;
    ++clean;
  }
  EXPECT_EQ(clean, installs());
  if (!with_sleeper) GTEST_SKIP() << "no userfaultfd with unmap events here: no thread slept in munmap";
}

long their_munmap(void* base, size_t length) { return syscall(SYS_munmap, base, length); }

// A hook that sleeps has left libc's body, and returns to the function's caller.
TEST(PatcherStress, others_may_write_over_ours_while_a_thread_sleeps_in_it) {
  if (!Sleeper().can()) GTEST_SKIP() << "no userfaultfd with unmap events here: no thread can sleep in munmap";
  for (int i = 0; i < installs(); ++i) {
    const ChildAnswer answer = answer_of([] {
      Patcher patcher;
      Sleeper sleeper;
      const bool asleep = sleeper.fall_asleep();
      patch_as_open_mpi("munmap", reinterpret_cast<uintptr_t>(their_munmap));
      const int woken = sleeper.wake();
      return ChildAnswer{patcher.status, asleep, woken, patcher.check(), sees_munmap(&patcher)};
    });
    ASSERT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 0, PINRAIL_SUCCESS, 1})) << "in round " << i;
  }
}

// Starting and stopping while events come: no event is inside the library after stop() (its host table is gone then).
TEST(PatcherStress, stops_while_events_come) {
  const ChildAnswer answer = answer_of([] {
    slow_reports = true;
    Hammers hammers;
    int64_t right = 0;
    for (int i = 0; i < 80; ++i) {
      Patcher patcher(i % 2 == 0 ? "0" : "1");
      right += patcher.status == PINRAIL_SUCCESS ? 1 : 0;
    }
    return ChildAnswer{right, hammers.wrong()};
  });
  EXPECT_EQ(answer, (ChildAnswer{80, 0}));
}

#else

TEST(PatcherStress, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "x86-64 Linux, without ThreadSanitizer";
}

#endif

}  // namespace
}  // namespace pinrail::test
