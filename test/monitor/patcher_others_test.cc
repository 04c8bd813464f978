// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher beside other runtimes that patch the same functions, before it and after it. Each case runs in a
// child of a process that never patched anything.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "test/monitor/patcher_host.h"
#include "test/support/cases.h"

namespace pinrail::test {
namespace {

#if PINRAIL_CAN_PATCH && defined(__x86_64__)

using patch::system_call_hook;

// What the doubles do: they count, and make the system call by libc's syscall(), as UCX, Open MPI and libfabric do.
std::atomic<int> calls{0};

int double_munmap(void* base, size_t length) {
  ++calls;
  return static_cast<int>(syscall(SYS_munmap, base, length));
}
void* double_mmap(void* base, size_t length, int protection, int flags, int fd, off_t offset) {
  ++calls;
  return reinterpret_cast<void*>(syscall(SYS_mmap, base, length, protection, flags, fd, offset));
}
void* double_mremap(void* base, size_t old_length, size_t length, int flags, void* onto) {
  ++calls;
  return reinterpret_cast<void*>(syscall(SYS_mremap, base, old_length, length, flags, onto));
}
int double_madvise(void* base, size_t length, int advice) {
  ++calls;
  return static_cast<int>(syscall(SYS_madvise, base, length, advice));
}
int double_brk(void* to) {
  ++calls;
  const long reached = syscall(SYS_brk, to);
  *reinterpret_cast<void**>(libc_function("__curbrk")) = reinterpret_cast<void*>(reached);
  if (static_cast<uintptr_t>(reached) >= reinterpret_cast<uintptr_t>(to)) return 0;
  errno = ENOMEM;
  return -1;
}
// One event of each function, and whether its report came while the memory was still there.
struct Event {
  const char* name;
  uintptr_t target;  // the double
  bool (*fire)(Patcher*);
};

bool came(const Patcher& patcher, uintptr_t base, size_t length) {
  for (const Report& report : patcher.recorder.touching(base, length)) {
    if (report.base == base && report.length >= length) return report.marked;  // more behind it: mremap of large pages
  }
  return false;
}
bool fire_munmap(Patcher* patcher) {
  const uintptr_t base = marked_pages(1);
  patcher->recorder.clear();
  return munmap(at(base), kPageBytes) == 0 && came(*patcher, base, kPageBytes);
}
bool fire_mmap(Patcher* patcher) {
  const uintptr_t base = marked_pages(1);
  patcher->recorder.clear();
  return mmap(at(base), kPageBytes, PROT_READ, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == at(base) &&
         came(*patcher, base, kPageBytes);
}
bool fire_mremap(Patcher* patcher) {
  const uintptr_t from = marked_pages(1), onto = marked_pages(1);
  patcher->recorder.clear();
  return mremap(at(from), kPageBytes, kPageBytes, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)) == at(onto) &&
         came(*patcher, from, kPageBytes) && came(*patcher, onto, kPageBytes);
}
bool fire_madvise(Patcher* patcher) {
  const uintptr_t base = marked_pages(1);
  patcher->recorder.clear();
  return madvise(at(base), kPageBytes, MADV_DONTNEED) == 0 && came(*patcher, base, kPageBytes);
}
bool fire_brk(Patcher* patcher) {
  const auto before = reinterpret_cast<uintptr_t>(sbrk(0));
  const uintptr_t begin = (before + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (brk(at(begin + kPageBytes)) != 0) return false;
  std::memset(at(begin), kMark, kPageBytes);
  patcher->recorder.clear();
  return sbrk(-static_cast<intptr_t>(kPageBytes)) == at(begin + kPageBytes) && sbrk(0) == at(begin) &&
         came(*patcher, begin, kPageBytes);
}

const Event kEvents[] = {{"munmap", reinterpret_cast<uintptr_t>(double_munmap), fire_munmap},
                         {"mmap", reinterpret_cast<uintptr_t>(double_mmap), fire_mmap},
                         {"mremap", reinterpret_cast<uintptr_t>(double_mremap), fire_mremap},
                         {"madvise", reinterpret_cast<uintptr_t>(double_madvise), fire_madvise},
                         {"brk", reinterpret_cast<uintptr_t>(double_brk), fire_brk}};

using Lay = void (*)(const char* name, uintptr_t target);

// For children: how many of the events reach the monitor, and how many the double.
struct Reached {
  int64_t ours = 0, theirs = 0;
};
Reached fire_all(Patcher* patcher) {
  Reached reached;
  for (const Event& event : kEvents) {
    const int before = calls.load();
    const bool is_ours = event.fire(patcher);
    if (!is_ours) std::fprintf(stderr, "%s did not reach ours\n", event.name);
    reached.ours += is_ours ? 1 : 0;
    reached.theirs += calls.load() > before ? 1 : 0;
  }
  return reached;
}
void lay_all(Lay lay) {
  for (const Event& event : kEvents) lay(event.name, event.target);
}

bool gave_up_everything(const Patcher& patcher) {
  for (const Report& report : patcher.recorder.reports()) {
    if (report.base == 0 && report.length >= UINTPTR_MAX - kPageBytes) return true;
  }
  return false;
}

ChildAnswer theirs_first(Lay lay) {
  lay_all(lay);
  Patcher patcher;
  const Reached reached = fire_all(&patcher);
  return {patcher.status, reached.ours, reached.theirs, patcher.check(), static_cast<int64_t>(patcher.said().size())};
}

// A jump, and thirteen bytes.
constexpr Lay kLays[] = {patch_as_ucx, patch_as_open_mpi};

TEST(PatcherOthers, patches_that_are_there_before_us_hide_nothing) {
  for (const Lay lay : kLays) {
    const ChildAnswer answer = answer_of([lay] { return theirs_first(lay); });
    EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 5, 5, PINRAIL_SUCCESS, 0}));
  }
}

// Nothing is dropped, because nothing goes unseen. The gate is released as often as it was held, for all of them.
ChildAnswer theirs_later(Lay lay) {
  Patcher patcher;
  lay_all(lay);
  patcher.recorder.clear();
  const int64_t at_once = fire_all(&patcher).ours;
  patcher.recorder.clear();
  const int64_t checked = patcher.check();
  const bool gave_up = gave_up_everything(patcher);
  const auto said = static_cast<int64_t>(patcher.said().size());
  const Reached reached = fire_all(&patcher);
  const int64_t again = patcher.check();
  return {holds_of_gate.load(), at_once, checked, gave_up, said, reached.ours, reached.theirs, again};
}

TEST(PatcherOthers, patches_over_ours_hide_nothing) {
  for (const Lay lay : kLays) {
    const ChildAnswer answer = answer_of([lay] { return theirs_later(lay); });
    EXPECT_EQ(answer, (ChildAnswer{0, 5, PINRAIL_SUCCESS, 0, 0, 5, 5, PINRAIL_SUCCESS}));
  }
}

#ifdef __GLIBC__
constexpr uint32_t kSeenAtBest = PINRAIL_EVENTS_ALL & ~(PINRAIL_EVENT_DIRECT_WRITE | PINRAIL_EVENT_DRIVER_MOVE);
#else  // musl's fopen() is not seen
constexpr uint32_t kSeenAtBest =
    PINRAIL_EVENTS_ALL & ~(PINRAIL_EVENT_DIRECT_WRITE | PINRAIL_EVENT_DRIVER_MOVE | PINRAIL_EVENT_TRUNCATE);
#endif

TEST(PatcherOthers, one_that_makes_the_system_call_itself_before_us_is_an_event_that_is_not_seen) {
  for (const Lay lay : kLays) {
    const ChildAnswer answer = answer_of([lay] {
      lay("munmap", reinterpret_cast<uintptr_t>(bare_munmap));
      Patcher patcher;
      const std::vector<std::string> said = patcher.said();
      return ChildAnswer{
          patcher.status, kSeenAtBest & ~patcher.sees(),
          said == std::vector<std::string>{"patched by another: munmap"} && patcher.missing_topics().empty(),
          munmap(at(marked_pages(1)), kPageBytes), fire_madvise(&patcher)};
    });
    EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, PINRAIL_EVENT_UNMAP, 1, 0, 1}));
  }
}

TEST(PatcherOthers, one_that_makes_the_system_call_itself_over_ours_is_said_once_and_counts_until_it_is_gone) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    const uintptr_t function = libc_function("munmap");
    const auto* const code = static_cast<const uint8_t*>(at(function));
    const std::vector<uint8_t> before(code, code + 16);
    patch_as_open_mpi("munmap", reinterpret_cast<uintptr_t>(bare_munmap));
    patcher.recorder.clear();
    patcher.check();
    const bool gave_up = gave_up_everything(patcher);
    const int64_t unseen = kSeenAtBest & ~patcher.sees();
    const int64_t told = blind_count.load();
    patcher.recorder.clear();
    patcher.check();  // what is known is not tried again
    const auto tries = static_cast<int64_t>(patcher.recorder.reports().size());
    const bool said_once = patcher.said() == std::vector<std::string>{"patched over: munmap"};
    write_code(function, before);
    patcher.check();
    return ChildAnswer{gave_up,
                       unseen,
                       told,
                       tries,
                       said_once && patcher.missing_topics().empty(),
                       kSeenAtBest & ~patcher.sees(),
                       fire_munmap(&patcher),
                       blind_count.load()};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, PINRAIL_EVENT_UNMAP, 1, 0, 1, 0, 1, 2}));
}

// Before glibc 2.34 programs that name libpthread call its open(); here a library of that name stands in for it.
TEST(PatcherOthers, an_open_of_libpthreads_own_that_cuts_a_file_is_reported) {
  NEED_GLIBC("there is no libpthread");
  const ChildAnswer answer = answer_of([] {
    void* library = dlopen("libpthread.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) library = dlopen(PINRAIL_TEST_BUILD "/test/monitor/dso/.libs/libpthread.so.0", RTLD_NOW);
    if (library == nullptr) return ChildAnswer{-1};
    auto* const open_there = reinterpret_cast<int (*)(const char*, int)>(dlsym(library, "open"));
    Patcher patcher;
    const int file = memfd_create("cut", MFD_CLOEXEC);
    struct stat about {};
    if (ftruncate(file, kPageBytes) != 0 || fstat(file, &about) != 0) return ChildAnswer{-2};
    const uintptr_t base = marked_pages(1, MAP_SHARED, file);
    kept_files.add(Span::of(base, kPageBytes), about.st_ino, 0);
    patcher.recorder.clear();
    const bool is_open = open_there(("/proc/self/fd/" + std::to_string(file)).c_str(), O_WRONLY | O_TRUNC) >= 0;
    return ChildAnswer{patcher.status, is_open, came(patcher, base, kPageBytes)};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1}));
}

// A message function may wait for a lock whose holder registers, or checks: here it checks itself.
TEST(PatcherOthers, messages_come_when_neither_the_gate_nor_a_lock_is_held) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    static Patcher* checked = &patcher;
    when_said = [] { checked->check(); };
    patch_as_open_mpi("munmap", reinterpret_cast<uintptr_t>(bare_munmap));
    patcher.check();
    return ChildAnswer{static_cast<int64_t>(patcher.said().size()), said_behind_gate.load(), holds_of_gate.load()};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 0, 0}));
}

// A runtime that calls on what it found: our own jump.
uintptr_t found_there = 0;
int polite_munmap(void* base, size_t length) {
  ++calls;
  return reinterpret_cast<int (*)(void*, size_t)>(found_there)(base, length);
}

// Where the jump in munmap is: at its begin, or behind an endbr64, which stays.
uintptr_t jump_of(uintptr_t function) {
  constexpr unsigned char kEndbr64[] = {0xf3, 0x0f, 0x1e, 0xfa};
  return std::memcmp(at(function), kEndbr64, sizeof(kEndbr64)) == 0 ? function + sizeof(kEndbr64) : function;
}

TEST(PatcherOthers, a_patch_that_calls_ours_is_left_in_place) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher;
    const uintptr_t function = libc_function("munmap");
    const uintptr_t jump = jump_of(function);
    int32_t relative = 0;
    std::memcpy(&relative, at(jump + 1), sizeof(relative));
    found_there = jump + 5 + static_cast<uintptr_t>(intptr_t{relative});
    patch_as_open_mpi("munmap", reinterpret_cast<uintptr_t>(polite_munmap));
    const std::string laid(static_cast<const char*>(at(function)), 16);
    patcher.recorder.clear();
    const int64_t checked = patcher.check();
    const bool gave_up = gave_up_everything(patcher);
    const bool untouched = laid == std::string(static_cast<const char*>(at(function)), 16);
    const int before = calls.load();
    const bool reached = fire_munmap(&patcher) && calls.load() == before + 1;
    patcher.recorder.clear();
    patcher.check();  // what is known is not tried again
    return ChildAnswer{checked,
                       gave_up,
                       untouched,
                       reached,
                       static_cast<int64_t>(patcher.recorder.reports().size()),
                       static_cast<int64_t>(patcher.said().size())};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 0, 1, 1, 0, 0}));
}

TEST(PatcherOthers, the_monitors_own_thread_finds_it) {
  const ChildAnswer answer = answer_of([] {
    Patcher patcher("20");
    patch_as_open_mpi("madvise", reinterpret_cast<uintptr_t>(bare_madvise));
    const auto begin = std::chrono::steady_clock::now();
    const auto waited = [begin] { return std::chrono::steady_clock::now() - begin; };
    while (patcher.said().empty() && waited() < std::chrono::seconds(20)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return ChildAnswer{patcher.status, patcher.said() == std::vector<std::string>{"patched over: madvise"}};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1}));
}

TEST(PatcherOthers, a_patch_laid_between_stop_and_start_hides_nothing) {
  const ChildAnswer answer = answer_of([] {
    { Patcher first; }
    lay_all(patch_as_open_mpi);
    Patcher patcher;
    const Reached reached = fire_all(&patcher);
    return ChildAnswer{patcher.status, reached.ours, reached.theirs};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 5, 5}));
}

// Each copy of Pinrail patches over those that were there first, and each that is started reports the range before the
// call and after it.
TEST(PatcherOthers, a_copy_hears_of_events_after_those_that_patched_over_it_have_ended) {
  const ChildAnswer answer = answer_of([] {
    Patcher first, second, third;
    const auto reports = [&first] {
      const uintptr_t base = marked_pages(1);
      first.recorder.clear();
      munmap(at(base), kPageBytes);
      return static_cast<int64_t>(first.recorder.touching(base, kPageBytes).size());
    };
    const int64_t of_all = reports();
    second.stop();
    const int64_t without_second = reports();
    third.stop();
    return ChildAnswer{of_all, without_second, reports(), fire_all(&first).ours};
  });
  EXPECT_EQ(answer, (ChildAnswer{6, 4, 2, 5}));
}

// Whether start() is refused with that message, and nothing of the monitor is felt afterwards.
ChildAnswer refused(const std::string& message) {
  Patcher patcher;
  const uintptr_t base = marked_pages(1);
  patcher.recorder.clear();
  const bool works = munmap(at(base), kPageBytes) == 0 && patcher.recorder.reports().empty();
  const std::vector<std::string> said = patcher.said();
  const bool as_expected = said.size() == 1 && said[0] == message && patcher.missing_topics().empty();
  return {patcher.status, as_expected, works};
}

// What is not seen when this function cannot be patched, whether that is said and nothing else, and whether it works.
ChildAnswer one_refused(const char* name, int number) {
  make_unpatchable(name, number);
  Patcher patcher;
  const uintptr_t base = marked_pages(2);
  patcher.recorder.clear();
  const bool works = munmap(at(base), kPageBytes) == 0;
  const bool sees_unmap = !patcher.recorder.touching(base, kPageBytes).empty();
  madvise(at(base + kPageBytes), kPageBytes, MADV_DONTNEED);
  const bool sees_madvise = !patcher.recorder.touching(base + kPageBytes, kPageBytes).empty();
  const std::vector<std::string> said = patcher.said();
  const bool as_expected =
      said.size() == 1 && said[0] == std::string("patched by another: ") + name && patcher.missing_topics().empty();
  return {patcher.status, kSeenAtBest & ~patcher.sees(), as_expected, works, sees_unmap, sees_madvise};
}

TEST(PatcherRefusal, a_function_that_cannot_be_patched_is_one_event_that_is_not_seen) {
  const struct {
    const char* name;
    int number;
    int64_t unseen;
    bool sees_unmap, sees_madvise;
  } functions[] = {{"munmap", SYS_munmap, PINRAIL_EVENT_UNMAP, false, true},
                   {"fallocate", SYS_fallocate, PINRAIL_EVENT_PUNCH_HOLE, true, true},
                   {"truncate", SYS_truncate, PINRAIL_EVENT_TRUNCATE & kSeenAtBest, true, true},
                   {"shmdt", SYS_shmdt, PINRAIL_EVENT_SHMDT, true, true},
                   {"mprotect", SYS_mprotect, 0, true, true},
                   {"madvise", SYS_madvise, PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_REMOVE | PINRAIL_EVENT_GUARD_INSTALL,
                    true, false}};
  for (const auto& function : functions) {
    ChildAnswer answer{};
    ASSERT_TRUE(in_child([&] { return one_refused(function.name, function.number); }, &answer)) << function.name;
    EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, function.unseen, 1, 1, function.sees_unmap, function.sees_madvise}))
        << function.name;
  }
}

TEST(PatcherRefusal, code_that_may_not_be_written) {
  std::string why;  // the loader protects too: before the child may not
  ASSERT_NE(component_under_test("monitor", "patcher", &why), nullptr) << why;
  const ChildAnswer answer = answer_of([] {
    if (!refuse_system_call(SYS_mprotect, EACCES)) return ChildAnswer{77};
    return refused("code cannot be written: syscall");
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_ERR_PERM, 1, 1}));
}

TEST(PatcherRefusal, a_kernel_without_the_barrier) {
  const ChildAnswer answer = answer_of([] {
    if (!refuse_system_call(SYS_membarrier, ENOSYS)) return ChildAnswer{77};
    return refused("no safe way: syscall");
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_ERR_NOT_AVAILABLE, 1, 1}));
}

TEST(PatcherRefusal, an_event_that_does_not_arrive) {
  const ChildAnswer answer = answer_of([] {
    // Without memory files nothing can show that a cut file is seen.
    if (!refuse_system_call(SYS_memfd_create, ENOSYS)) return ChildAnswer{77};
    Patcher patcher;
    std::vector<std::string> said = patcher.said();
    said.erase(std::remove(said.begin(), said.end(), "not seen: open of libpthread"), said.end());  // before glibc 2.34
    const bool as_expected =
        said == std::vector<std::string>{"not seen: fallocate", "not seen: ftruncate", "not seen: truncate",
                                         "not seen: open",      "not seen: openat",    "not seen: __open64_nocancel",
                                         "not seen: creat"};
    return ChildAnswer{patcher.status, as_expected, kSeenAtBest & ~patcher.sees()};
  });
  EXPECT_EQ(answer,
            (ChildAnswer{PINRAIL_SUCCESS, 1, (PINRAIL_EVENT_PUNCH_HOLE | PINRAIL_EVENT_TRUNCATE) & kSeenAtBest}));
}

#else

TEST(PatcherOthers, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "the doubles are written for x86-64 Linux, without ThreadSanitizer";
}

#endif

}  // namespace
}  // namespace pinrail::test
