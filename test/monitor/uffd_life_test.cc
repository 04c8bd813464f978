// SPDX-License-Identifier: BSD-3-Clause
// monitor/uffd where things go wrong, or where it is not alone: no permission, forked children, a descriptor that the
// program closes, and the patcher beside it.
#include <pinrail/listing.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/patch/system_call.h"
#include "test/monitor/uffd_library.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

ChildAnswer all_true(int64_t count) {
  ChildAnswer answer{};
  for (int64_t i = 0; i < count; ++i) answer[static_cast<size_t>(i)] = 1;
  return answer;
}

bool may_keep() {
  fake::FakeRegistrar fake;
  return Pool(fake).status == PINRAIL_SUCCESS;
}

// The library's own, as a program finds it that closes all that it did not open.
int descriptor_of_the_monitor() { return descriptor_of("userfaultfd"); }

// By a filter, or by a kernel that cannot watch. Where it is not named, others do without it.
TEST(UffdLife, where_its_calls_are_refused_it_is_not_available) {
  for (const auto& [call, error] : {std::pair{SYS_userfaultfd, EPERM}, std::pair{SYS_ioctl, EINVAL}}) {
    const ChildAnswer answer = answer_of([call = call, error = error] {
      refuse_system_call(call, error);
      const bool is_refused = Library(uffd_alone()).status == PINRAIL_ERR_NOT_AVAILABLE;
      const Library others(Settings{{"monitor", ""}});
      const bool others_work = others.status == PINRAIL_SUCCESS && may_keep() == (PINRAIL_CAN_PATCH != 0);
      return ChildAnswer{is_refused ? 1 : 0, others_work ? 1 : 0};
    });
    EXPECT_EQ(answer, all_true(2)) << call;
  }
}

TEST(UffdLife, it_comes_and_goes_and_leaves_no_descriptor) {
  NEED_UFFD();
  for (int i = 0; i < 20; ++i) {
    Watched watched;
    ASSERT_EQ(watched.pool.status, PINRAIL_SUCCESS) << i;
    raw_unmap(watched.cached(2), 2);
  }
  EXPECT_EQ(descriptor_of_the_monitor(), -1);
}

TEST(UffdLife, a_forked_child_unmaps_what_its_parent_watches_and_the_parent_knows_nothing_of_it) {
  NEED_UFFD();
  Watched watched;
  const uintptr_t base = watched.cached(4);
  EXPECT_EQ(answer_of([&] {
              const bool dropped = raw_advise(base + kPage, 1, MADV_DONTNEED);
              return ChildAnswer{dropped ? 1 : 0, raw_unmap(base, 4) ? 1 : 0};
            }),
            all_true(2));
  EXPECT_TRUE(watched.has(base, 4));
  raw_unmap(base, 4);
  EXPECT_FALSE(watched.has(base, 4));
}

// The child refers to the descriptor too, so that closing it ends nothing. It is made without fork(), whose handlers
// would close the descriptor in the child.
// Such a child might have the descriptor; then the monitor opens another one.
TEST(UffdLife, it_starts_in_a_process_that_forks_all_the_time) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    { const Library first(uffd_alone()); }  // the child's first call is made before it has threads
    std::atomic<bool> is_over{false};
    std::thread forker([&is_over] {
      while (!is_over.load()) {
        const pid_t child = fork();
        if (child == 0) _exit(0);
        waitpid(child, nullptr, 0);
      }
    });
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(short_or_long(1, 3));
    bool starts = true;
    while (starts && std::chrono::steady_clock::now() < end) starts = Library(uffd_alone()).status == PINRAIL_SUCCESS;
    is_over.store(true);
    forker.join();
    return ChildAnswer{starts ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(1));
}

TEST(UffdLife, when_it_stops_no_thread_waits_though_a_child_holds_the_descriptor) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    pid_t child;
    uintptr_t base;
    {
      Watched watched;
      base = watched.cached(4);
      child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
      if (child == 0) {
        alarm(20);  // a thread that waits for the descriptor's events waits no longer than that
        pause();
        _exit(0);
      }
    }
    const bool dropped = raw_advise(base, 1, MADV_DONTNEED), unmapped = raw_unmap(base, 4);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    return ChildAnswer{dropped ? 1 : 0, unmapped ? 1 : 0, WTERMSIG(status) == SIGKILL ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(3)) << "the last: no thread waited until the child ended";
}

TEST(UffdLife, when_the_program_closes_its_descriptor_everything_is_released_and_no_thread_waits) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    Watched watched;
    const uintptr_t base = watched.cached(4), other = watched.cached(2);
    const bool found = close(descriptor_of_the_monitor()) == 0;
    raw_unmap(base, 4);
    const bool keeps = !comes_true([] { return !may_keep(); });
    watched.pool.use(raw_map(1), kPage);
    return ChildAnswer{found ? 1 : 0, watched.has(base, 4) || watched.has(other, 2) ? 0 : 1, keeps ? 0 : 1,
                       watched.fake.live_count() == 0 ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(4));
}

// Such a thread cannot ask what is under way. It waits until the reader has given up, and then nothing is kept.
TEST(UffdLife, a_thread_with_descriptors_of_its_own_that_closes_them_ends_what_is_kept_and_goes_on) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    alarm(60);
    Watched watched;
    const uintptr_t base = watched.cached(4);
    bool is_apart = false;
    std::thread([&] {
      is_apart = unshare(CLONE_FILES) == 0 && close(descriptor_of_the_monitor()) == 0;
      watched.pool.use(base, 4 * kPage);
    }).join();
    return ChildAnswer{is_apart ? 1 : 0, watched.has(base, 4) ? 0 : 1, raw_unmap(base, 4) ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(3));
}

// As a daemon whose own files have the numbers: the reader must neither read nor write there, and all must end.
TEST(UffdLife, numbers_that_the_program_has_given_to_its_own_files_are_left_alone) {
  NEED_UFFD();
  for (int (*const make)() : {make_memory_file, make_silent_pipe}) {
    const ChildAnswer answer = answer_of([make] {
      std::unique_ptr<Watched> watched;
      const std::set<int> ours = numbers_opened_by([&] { watched = std::make_unique<Watched>(); });
      const uintptr_t base = watched->cached(4);
      const bool taken = !ours.empty() && take_over(ours, make);
      const bool unmapped = raw_unmap(base, 4);
      const bool keeps = !comes_true([] { return !may_keep(); });
      watched.reset();  // finalize
      return ChildAnswer{taken ? 1 : 0, unmapped ? 1 : 0, keeps ? 0 : 1, are_untouched(ours) ? 1 : 0};
    });
    EXPECT_EQ(answer, all_true(4));
  }
}

TEST(UffdLife, finalize_ends_though_the_program_has_closed_all_descriptors) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    std::unique_ptr<Watched> watched;
    const std::set<int> ours = numbers_opened_by([&] { watched = std::make_unique<Watched>(); });
    for (const int number : ours) close(number);
    const auto began = std::chrono::steady_clock::now();
    watched.reset();
    return ChildAnswer{std::chrono::steady_clock::now() - began < std::chrono::seconds(60) ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(1));
}

TEST(UffdLife, without_proc_nothing_is_kept_and_it_is_said_why) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    const bool is_gone = unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                         umount2("/proc", MNT_DETACH) == 0;
    if (!is_gone) return ChildAnswer{-2};
    const Library library(uffd_alone());
    auto kind = sized<pinrail_memory_kind_t>();
    const bool is_told = pinrail_memory_kind_at(0, &kind) == PINRAIL_SUCCESS;
    return ChildAnswer{is_told && std::strstr(kind.why_not, "/proc/self/maps") != nullptr ? 1 : 0, may_keep() ? 0 : 1};
  });
  if (answer[0] == -2) GTEST_SKIP() << "this user may not take /proc away";
  EXPECT_EQ(answer, all_true(2));
}

// As long as a process has the descriptor open, the kernel waits for it to be read.
TEST(UffdLife, no_thread_waits_beside_a_living_child_that_was_forked_before) {
  NEED_UFFD();
  const ChildAnswer answer = answer_of([] {
    Watched watched;
    const uintptr_t base = watched.cached(4);
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      pause();
    }
    usleep(100000);  // so that it has left fork()
    const bool found = close(descriptor_of_the_monitor()) == 0;
    const bool unmapped = raw_unmap(base, 4);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    // The monitor finds out when its reader runs; on a busy machine that takes a while.
    bool is_cached = true;
    for (int tries = 0; tries < 1000 && is_cached; ++tries) {
      is_cached = watched.has(base, 4);
      if (is_cached) usleep(10000);
    }
    return ChildAnswer{found ? 1 : 0, unmapped ? 1 : 0, is_cached ? 0 : 1};
  });
  EXPECT_EQ(answer, all_true(3));
}

TEST(UffdLife, a_wrong_event_or_share_is_refused_at_start_up) {
  EXPECT_EQ(Library(uffd_alone("guard_install,rain")).status, PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(Library(Settings{{"monitor", "uffd"}, {"monitor_uffd_map_share", "91"}}).status, PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(Library(Settings{{"monitor_strict", "perhaps"}}).status, PINRAIL_ERR_BAD_PARAM);
}

#define NEED_BOTH()                                                          \
  NEED_UFFD();                                                               \
  if (PINRAIL_CAN_PATCH == 0)                                                \
  GTEST_SKIP() << "code is patched on Linux, x86-64 or 64-bit Arm, without " \
                  "ThreadSanitizer"

const Settings kBoth = {{"monitor", "patcher,uffd"}};

TEST(UffdBesideThePatcher, is_not_started_unasked_for_the_patcher_sees_all_that_libc_does) {
  NEED_BOTH();
  const ChildAnswer answer = answer_of([] {
    Watched watched{Settings{{"monitor", ""}}};
    const uintptr_t base = watched.cached(4), other = watched.cached(4);
    const bool has_none = descriptor_of_the_monitor() < 0;
    munmap(at(base), 4 * kPage);
    raw_unmap(other, 4);
    return ChildAnswer{has_none ? 1 : 0, watched.has(base, 4) ? 0 : 1, watched.has(other, 4) ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(3));
}

// Files are kept, for the patcher sees what happens to them; and where no further mapping may be watched, it is enough.
TEST(UffdBesideThePatcher, each_sees_what_the_other_does_not) {
  NEED_BOTH();
  for (const char* const share : {"50", "0"}) {
    SCOPED_TRACE(share);
    Watched watched{with(kBoth, {{"monitor_uffd_map_share", share}})};
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    const uintptr_t raw = watched.cached(4), other = watched.cached(4), of_file = watched.cached(1, MAP_PRIVATE, file);
    close(file);
    raw_unmap(raw, 4);
    EXPECT_EQ(watched.has(raw, 4), *share == '0');
    munmap(at(other), 4 * kPage);
    munmap(at(of_file), kPage);
    EXPECT_FALSE(watched.has(other, 4) || watched.has(of_file));
  }
}

TEST(UffdBesideThePatcher, when_it_goes_blind_everything_dies_and_the_patcher_goes_on) {
  NEED_BOTH();
  const ChildAnswer answer = answer_of([] {
    Watched watched{kBoth};
    const uintptr_t base = watched.cached(4), other = watched.cached(4);
    close(descriptor_of_the_monitor());
    raw_unmap(base, 4);
    const bool died = comes_true([&] { return watched.pool.stats().invalidations >= 2; }) && !watched.has(other, 4);
    const bool goes_on = comes_true([&] {
      watched.pool.use(other, 4 * kPage);
      return watched.has(other, 4);
    });
    return ChildAnswer{died ? 1 : 0, goes_on ? 1 : 0, may_keep() ? 1 : 0};
  });
  EXPECT_EQ(answer, all_true(3));
}

TEST(UffdBesideThePatcher, strict_keeps_only_what_no_other_process_can_take_pages_from) {
  NEED_BOTH();
  Settings settings = kBoth;
  settings.emplace_back("monitor_strict", "1");
  Watched watched{settings};
  watched.cached(1);
  const uintptr_t shared = raw_map(1, 0, MAP_SHARED | MAP_ANONYMOUS);
  watched.pool.use(shared, kPage);
  EXPECT_FALSE(watched.has(shared));
  EXPECT_EQ(watched.pool.stats().uncovered, 1u);
}

TEST(Coverage, external_answers_for_everything_that_is_not_strict) {
  fake::FakeRegistrar fake;
  for (const char* strict : {"0", "1"}) {
    const Library library(Settings{{"monitor_strict", strict}});
    const Pool pool(fake);
    const uintptr_t shared = raw_map(1, 0, MAP_SHARED | MAP_ANONYMOUS);
    pool.use(shared, kPage);
    EXPECT_EQ(pool.has(shared, kPage), *strict == '0');
  }
}

}  // namespace
}  // namespace pinrail::test
