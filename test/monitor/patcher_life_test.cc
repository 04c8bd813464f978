// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher: the results of patched calls, locks in hooks, a second monitor, stop and start, fork, and a patch by
// another library.
#include "config.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sync/futex_lock.h"
#include "test/monitor/patcher_host.h"
#include "test/support/cases.h"
#include "test/support/process.h"

#if PINRAIL_CAN_PATCH

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
  EXPECT_EQ(answer[1], 0);
  EXPECT_EQ(answer[2], 2);
  EXPECT_EQ(answer[3], 2) << "syscall() is patched";
  EXPECT_EQ(answer[4], 2) << "one line for each function that is left out";
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

// Monitor/patcher: what is cut from a file, or has a hole made in it, is reported where it is mapped.

#if PINRAIL_CAN_PATCH

namespace pinrail::test {
namespace {

class PatcherFiles : public PatcherEvents {
 protected:
  void SetUp() override {
    PatcherEvents::SetUp();
    path_ = testing::TempDir() + "patcher." + std::to_string(getpid());
    fd_ = open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    ASSERT_GE(fd_, 0);
    const std::vector<uint8_t> marks(8 * kPage, kMark);
    ASSERT_EQ(write(fd_, marks.data(), marks.size()), static_cast<ssize_t>(marks.size()));
  }
  void TearDown() override {
    kept_files.forget_hook({0, UINTPTR_MAX});
    close(fd_);
    unlink(path_.c_str());
  }
  // Pages 2 to 5 of the file.
  uintptr_t mapped(int sharing) const {
    void* const got = mmap(nullptr, 4 * kPage, PROT_READ, sharing, fd_, 2 * kPage);
    EXPECT_EQ(*static_cast<uint8_t*>(got), kMark);
    struct stat about {};
    EXPECT_EQ(fstat(fd_, &about), 0);
    EXPECT_TRUE(kept_files.add(Span::of(got, 4 * kPage), about.st_ino, 2 * kPage));
    return reinterpret_cast<uintptr_t>(got);
  }

  std::string path_;
  int fd_ = -1;
};

TEST_F(PatcherFiles, ftruncate_reports_the_mapped_part_of_what_is_cut_off) {
  const uintptr_t shared = mapped(MAP_SHARED), priv = mapped(MAP_PRIVATE);
  clear();
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  EXPECT_TRUE(came_first(shared + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(came_first(priv + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(touching(shared, 2 * kPage).empty());
  clear();
  ASSERT_EQ(ftruncate(fd_, 100 * kPage), 0);
  EXPECT_TRUE(reports().empty()) << "a file that grows loses nothing";
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  clear();
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  EXPECT_TRUE(touching(shared, 2 * kPage).empty()) << "a file that keeps its length loses nothing";
  munmap(at(shared), 4 * kPage);
  munmap(at(priv), 4 * kPage);
}

// Each way by which a program opens a file.
TEST_F(PatcherFiles, a_file_that_is_opened_to_be_cut_is_reported_first) {
  const char* const path = path_.c_str();
  alignas(2 * O_TRUNC) char paths[2][O_TRUNC] = {};  // one where the address has the bit O_TRUNC, and one where not
  for (char* each : paths) std::strncpy(each, path, O_TRUNC - 1);
  const auto path_at = [&](bool has_bit) { return paths[has_bit ? 1 : 0]; };
  const std::vector<std::pair<const char*, std::function<int(int flags)>>> ways = {
      {"open", [path](int flags) { return open(path, O_RDWR | O_CLOEXEC | flags); }},
      {"openat", [path](int flags) { return openat(AT_FDCWD, path, O_RDWR | O_CLOEXEC | flags); }},
      {"open with O_CREAT", [path](int flags) { return open(path, O_RDWR | O_CLOEXEC | O_CREAT | flags, 0600); }},
      {"syscall",
       [path](int flags) {
         return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC | flags, 0));
       }},
#ifdef __GLIBC__
      {"fopen",
       [path](int flags) {
         std::FILE* const stream = std::fopen(path, flags != 0 ? "w+e" : "r+e");
         const int file = stream == nullptr ? -1 : dup(fileno(stream));
         if (stream != nullptr) std::fclose(stream);
         return file;
       }},
#endif
#ifdef SYS_open
      {"syscall open, whose path lies where its address says the opposite",
       [&](int flags) {
         return static_cast<int>(syscall(SYS_open, path_at(flags != O_TRUNC), O_RDWR | O_CLOEXEC | flags, 0));
       }},
#endif
      {"creat", [path](int flags) { return flags != 0 ? creat(path, 0600) : open(path, O_RDWR | O_CLOEXEC); }}};
  for (const auto& [name, way] : ways) {
    SCOPED_TRACE(name);
    ASSERT_EQ(ftruncate(fd_, 8 * kPage), 0);
    const std::vector<uint8_t> marks(8 * kPage, kMark);
    ASSERT_EQ(pwrite(fd_, marks.data(), marks.size(), 0), static_cast<ssize_t>(marks.size()));
    const uintptr_t shared = mapped(MAP_SHARED);
    clear();
    const int plain = way(0);
    EXPECT_GE(plain, 0);
    EXPECT_TRUE(touching(shared, 4 * kPage).empty()) << "without O_TRUNC nothing is lost";
    const int cut = way(O_TRUNC);
    EXPECT_GE(cut, 0);
    EXPECT_TRUE(came_first(shared, 4 * kPage));
    close(plain);
    close(cut);
    munmap(at(shared), 4 * kPage);
    kept_files.forget_hook({0, UINTPTR_MAX});
  }
}

#ifdef __GLIBC__
TEST_F(PatcherEvents, shm_open_that_cuts) {
  const std::string name = "/pinrail-patcher." + std::to_string(getpid());
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, kPage), 0);
  const uintptr_t shared = marked_pages(1, MAP_SHARED, file);
  struct stat about {};
  ASSERT_EQ(fstat(file, &about), 0);
  EXPECT_TRUE(kept_files.add(Span::of(shared, kPage), about.st_ino, 0));
  clear();
  const int cut = shm_open(name.c_str(), O_RDWR | O_TRUNC, 0600);
  EXPECT_TRUE(came_first(shared, kPage));
  kept_files.forget_hook({0, UINTPTR_MAX});
  close(cut);
  close(file);
  shm_unlink(name.c_str());
  munmap(at(shared), kPage);
}
#endif

TEST_F(PatcherFiles, a_path_that_leads_nowhere_cuts_nothing) {
  const uintptr_t shared = mapped(MAP_SHARED);
  clear();
  for (const std::string& path : {path_ + "/x", path_ + std::string(NAME_MAX, 'x'), path_ + ".none"}) {
    EXPECT_EQ(truncate(path.c_str(), 0), -1);
    EXPECT_EQ(open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC), -1);
  }
  EXPECT_TRUE(touching(shared, 4 * kPage).empty());
  munmap(at(shared), 4 * kPage);
  kept_files.forget_hook({0, UINTPTR_MAX});
}

// While nothing of a file is kept, a file that is cut is not even looked at.
TEST_F(PatcherFiles, nothing_is_reported_where_nothing_is_kept) {
  const uintptr_t shared = mapped(MAP_SHARED);
  kept_files.forget_hook({0, UINTPTR_MAX});
  clear();
  const int files_before = reported_files.load();
  ASSERT_EQ(ftruncate(fd_, 0), 0);
  EXPECT_TRUE(touching(shared, 4 * kPage).empty());
  EXPECT_EQ(reported_files.load(), files_before);
  munmap(at(shared), 4 * kPage);
}

// In a process with 40,000 mappings a hook that reads them takes 100 ms.
TEST_F(PatcherFiles, which_addresses_show_a_file_is_known_without_the_list_of_mappings) {
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  if (id < 0) GTEST_SKIP() << "no System V shared memory here";
  const auto attached = reinterpret_cast<uintptr_t>(shmat(id, nullptr, 0));
  *reinterpret_cast<volatile uint8_t*>(attached) = kMark;
  EXPECT_TRUE(kept_files.add(Span::of(attached, kPage), static_cast<uint64_t>(id), 0));
  const uintptr_t shared = mapped(MAP_SHARED);
  clear();
  bool can_open_nothing = false;
  std::thread([&] {
    can_open_nothing = refuse_system_call(SYS_openat, EACCES);  // for this thread alone
    EXPECT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * kPage, kPage), 0);
    EXPECT_EQ(ftruncate(fd_, 4 * kPage), 0);
    EXPECT_EQ(shmdt(at(attached)), 0);
  }).join();
  ASSERT_TRUE(can_open_nothing);
  EXPECT_TRUE(came_first(shared, kPage));
  EXPECT_TRUE(came_first(shared + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(came_first(attached, kPage));
  munmap(at(shared), 4 * kPage);
  shmctl(id, IPC_RMID, nullptr);
}

TEST_F(PatcherFiles, truncate_by_name_does_too) {
  const uintptr_t shared = mapped(MAP_SHARED);
  clear();
  ASSERT_EQ(truncate(path_.c_str(), 5 * kPage), 0);
  EXPECT_TRUE(came_first(shared + 3 * kPage, kPage));
  munmap(at(shared), 4 * kPage);
  errno = 0;
  EXPECT_EQ(truncate("/nonexistent/file", 0), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(PatcherFiles, a_hole_is_reported_where_it_is_mapped) {
  const uintptr_t shared = mapped(MAP_SHARED);
  clear();
  ASSERT_EQ(fallocate(fd_, 0, 0, 8 * kPage), 0);
  EXPECT_TRUE(reports().empty()) << "taking room drops nothing";
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * kPage, kPage);  // not every file system can
  EXPECT_TRUE(came_first(shared + kPage, kPage));
  EXPECT_EQ(touching(shared, 4 * kPage).size(), 2u) << "before it, and after it";
  munmap(at(shared), 4 * kPage);
}

TEST_F(PatcherFiles, a_range_that_shifts_reports_all_behind_it) {
  const uintptr_t shared = mapped(MAP_SHARED);
  clear();
  (void)fallocate(fd_, FALLOC_FL_COLLAPSE_RANGE, 3 * kPage, kPage);  // not every file system can
  EXPECT_TRUE(came_first(shared + kPage, 3 * kPage));
  munmap(at(shared), 4 * kPage);
}

}  // namespace
}  // namespace pinrail::test

#endif
