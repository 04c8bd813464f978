// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher: every event is reported before the kernel acts, with its range.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "config.h"
#include "test/monitor/patcher_host.h"
#include "test/support/cases.h"
#include "test/support/process.h"

#if PINRAIL_CAN_PATCH

namespace pinrail::test {
namespace {

TEST_F(PatcherEvents, munmap) {
  const uintptr_t base = marked(4);
  EXPECT_EQ(munmap(at(base + kPage), 2 * kPage), 0);
  EXPECT_TRUE(came_first(base + kPage, 2 * kPage));
  EXPECT_EQ(reports().size(), 2u) << "before, and again after";
  munmap(at(base), kPage);
  munmap(at(base + 3 * kPage), kPage);
}

TEST_F(PatcherEvents, a_length_that_is_no_whole_page_is_rounded_up_as_the_kernel_does) {
  const uintptr_t base = marked(2);
  EXPECT_EQ(munmap(at(base), kPage + 1), 0);
  EXPECT_TRUE(came_first(base, 2 * kPage));
}

TEST_F(PatcherEvents, mmap_over_something) {
  const uintptr_t base = marked(3);
  ASSERT_EQ(mmap(at(base + kPage), kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at(base + kPage));
  EXPECT_TRUE(came_first(base + kPage, kPage));
  EXPECT_TRUE(came_after(base + kPage, kPage));
  munmap(at(base), 3 * kPage);
}

TEST_F(PatcherEvents, what_mmap_returns_is_reported_before_the_caller_has_it) {
  const uintptr_t base = marked_pages(2);
  patch::system_call_hook(SYS_munmap, static_cast<long>(base), 2 * kPage);  // unseen by any hook
  clear();
  ASSERT_EQ(mmap(at(base), 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), at(base));
  EXPECT_TRUE(came_after(base, 2 * kPage));
  munmap(at(base), 2 * kPage);
}

TEST_F(PatcherEvents, mremap_that_moves_reports_what_moves_and_what_it_lands_on) {
  const uintptr_t from = marked(2), onto = marked_pages(2);
  ASSERT_EQ(mremap(at(from), 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)), at(onto));
  EXPECT_TRUE(came_first(from, 2 * kPage));
  EXPECT_EQ(*static_cast<uint8_t*>(at(onto)), kMark);

  // Something else moves in: a mark that is seen there is the old one.
  const uintptr_t other = marked_pages(2);
  *static_cast<uint8_t*>(at(other)) = 0;
  clear();
  ASSERT_EQ(mremap(at(other), 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)), at(onto));
  EXPECT_TRUE(came_first(onto, 2 * kPage));
  EXPECT_TRUE(came_after(onto, 2 * kPage));
  munmap(at(onto), 2 * kPage);
}

TEST_F(PatcherEvents, mremap_that_shrinks_reports_the_end_alone) {
  const uintptr_t base = marked(3);
  ASSERT_EQ(mremap(at(base), 3 * kPage, kPage, MREMAP_MAYMOVE), at(base));
  EXPECT_TRUE(came_first(base + kPage, 2 * kPage));
  EXPECT_TRUE(touching(base, kPage).empty());
  munmap(at(base), kPage);
}

TEST_F(PatcherEvents, mremap_that_grows_reports_the_old_range_and_all_that_is_new) {
  const uintptr_t base = marked_pages(3);
  munmap(at(base + kPage), kPage);  // it cannot grow where it is
  clear();
  void* const moved = mremap(at(base), kPage, 3 * kPage, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED);
  EXPECT_TRUE(came_first(base, kPage));
  const std::vector<Report> found = touching(reinterpret_cast<uintptr_t>(moved) + kPage, 2 * kPage);
  ASSERT_FALSE(found.empty());
  EXPECT_LE(found.front().base, reinterpret_cast<uintptr_t>(moved) + kPage);
  munmap(moved, 3 * kPage);
  munmap(at(base + 2 * kPage), kPage);
}

TEST_F(PatcherEvents, mremap_that_leaves_the_mapping_reports_its_pages) {
  const uintptr_t base = marked(1);
  void* const moved = mremap(at(base), kPage, kPage, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  if (moved == MAP_FAILED) GTEST_SKIP() << "this kernel has no MREMAP_DONTUNMAP";
  EXPECT_TRUE(came_first(base, kPage));
  munmap(at(base), kPage);
  munmap(moved, kPage);
}

// The kernel rounds the lengths up. No large page is needed for that.
TEST_F(PatcherEvents, mremap_of_large_pages_reports_whole_ones) {
  constexpr size_t kLarge = size_t{2} << 20;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const room = mmap(nullptr, 3 * kLarge, PROT_NONE, kFlags, -1, 0);
  const uintptr_t from = (reinterpret_cast<uintptr_t>(room) + kLarge - 1) & ~(kLarge - 1), onto = from + kLarge;
  constexpr int kTwoMegabytes = 21 << MAP_HUGE_SHIFT;
  void* const large = mmap(at(from), kLarge, PROT_READ, kFlags | MAP_HUGETLB | kTwoMegabytes | MAP_FIXED, -1, 0);
  clear();
  const bool moves =
      large == at(from) && mremap(large, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)) == at(onto);
  const std::vector<Report> left = touching(onto - kPage, kPage);
  const std::vector<Report> replaced = touching(onto + kLarge - kPage, kPage);
  munmap(room, 3 * kLarge);
  if (!moves) GTEST_SKIP() << "this kernel moves no large pages (before 5.16)";
  EXPECT_GE(left.size(), 2U) << "before, and again after";
  EXPECT_GE(replaced.size(), 2U) << "before, and again after";
}

TEST_F(PatcherEvents, madvise_that_drops_pages) {
  constexpr int kDropping[] = {MADV_DONTNEED,           MADV_FREE, MADV_REMOVE, 24 /* DONTNEED_LOCKED */,
                               102 /* GUARD_INSTALL */, 977 /* whatever comes */};
  for (const int advice : kDropping) {
    const uintptr_t base =
        marked_pages(3, advice == MADV_REMOVE ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE | MAP_ANONYMOUS);
    clear();
    (void)madvise(at(base + kPage), kPage, advice);  // not every kernel knows all of them
    EXPECT_TRUE(came_first(base + kPage, kPage)) << advice;
    if (advice == MADV_DONTNEED) {
      EXPECT_TRUE(came_after(base + kPage, kPage)) << "for a registration made meanwhile";
    }
    munmap(at(base), 3 * kPage);
  }
}

TEST_F(PatcherEvents, madvise_that_keeps_pages_is_no_event) {
  const uintptr_t base = marked(1);
  for (const int advice : {MADV_NORMAL, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_DONTFORK, MADV_DOFORK, MADV_HUGEPAGE,
                           MADV_NOHUGEPAGE, MADV_COLD, MADV_PAGEOUT, 23 /* POPULATE_WRITE */}) {
    (void)madvise(at(base), kPage, advice);
    EXPECT_TRUE(reports().empty()) << advice;
  }
  munmap(at(base), kPage);
}

TEST_F(PatcherEvents, process_madvise_on_ourselves) {
  const int self = pidfd_of_self();
  if (self < 0) GTEST_SKIP() << "no pidfd";
  constexpr size_t kPieces = 40;  // more than the hook copies at once
  const uintptr_t base = marked_pages(2 * kPieces);
  std::vector<iovec> list;
  for (size_t i = 0; i < kPieces; ++i) list.push_back({at(base + 2 * i * kPage), kPage});
  clear();
  (void)advise_process(self, list.data(), list.size(), MADV_DONTNEED, 0);  // not every kernel can
  for (size_t i = 0; i < kPieces; ++i) EXPECT_TRUE(came_first(base + 2 * i * kPage, kPage)) << i;
  EXPECT_TRUE(touching(base + kPage, kPage).empty());
  clear();
  errno = 0;
  EXPECT_EQ(advise_process(self, reinterpret_cast<iovec*>(16), 1, MADV_DONTNEED, 0), -1) << "not our crash";
  EXPECT_EQ(errno, EFAULT);
  close(self);
  munmap(at(base), 2 * kPieces * kPage);
}

TEST_F(PatcherEvents, process_madvise_that_drops_the_list_of_what_it_drops) {
  const int self = pidfd_of_self();
  const uintptr_t base = marked_pages(2);
  auto* const list = reinterpret_cast<iovec*>(base);  // NOLINT(performance-no-int-to-ptr): where the test wants it
  list[0] = {at(base), kPage};
  list[1] = {at(base + kPage), kPage};
  clear();
  const bool is_done = self >= 0 && advise_process(self, list, 2, MADV_DONTNEED, 0) >= 0;
  EXPECT_EQ(touching(base + kPage, kPage).size(), is_done ? 2u : 1u) << "before, and afterwards";
  close(self);
  munmap(at(base), 2 * kPage);
  if (!is_done) GTEST_SKIP() << "not every kernel can";
}

// As allocators and other runtimes do.
TEST_F(PatcherEvents, system_calls_by_the_function_of_that_name) {
  uintptr_t base = marked(4);
  EXPECT_EQ(syscall(SYS_madvise, base, kPage, MADV_DONTNEED), 0);
  EXPECT_TRUE(came_first(base, kPage));
  EXPECT_EQ(syscall(SYS_munmap, base + kPage, kPage), 0);
  EXPECT_TRUE(came_first(base + kPage, kPage));
  // All six arguments arrive, the last of them from the stack: the file's second page.
  const int file = memfd_create("six", MFD_CLOEXEC);
  const std::vector<uint8_t> bytes(2 * kPage, 0x33);
  ASSERT_EQ(pwrite(file, bytes.data(), kPage, kPage), static_cast<ssize_t>(kPage));
  clear();
  ASSERT_EQ(syscall(SYS_mmap, base + 2 * kPage, kPage, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, kPage),
            static_cast<long>(base + 2 * kPage));
  EXPECT_TRUE(came_first(base + 2 * kPage, kPage));
  EXPECT_EQ(*static_cast<uint8_t*>(at(base + 2 * kPage)), 0x33);
  close(file);
  EXPECT_EQ(syscall(SYS_getpid), getpid());
  errno = 0;
  EXPECT_EQ(syscall(SYS_munmap, 1, kPage), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(syscall(SYS_brk, 0), reinterpret_cast<long>(sbrk(0)));
  munmap(at(base), 4 * kPage);
}

TEST_F(PatcherEvents, remap_file_pages) {
  const uintptr_t base = marked(2, MAP_SHARED | MAP_ANONYMOUS);
  EXPECT_EQ(remap_file_pages(at(base), kPage, 0, 1, 0), 0);
  EXPECT_TRUE(came_first(base, kPage));
  munmap(at(base), 2 * kPage);
}

TEST_F(PatcherEvents, the_break_is_reported_before_it_falls) {
  NEED_GLIBC("sbrk() moves nothing there");
  ChildAnswer answer{};
  // In a child of its own patcher, for malloc's arena sits at the break.
  patcher_.stop();
  ASSERT_TRUE(in_child(
      [] {
        Patcher own;
        const auto before = reinterpret_cast<uintptr_t>(sbrk(0));
        const uintptr_t begin = (before + kPage - 1) / kPage * kPage;
        const bool grown = brk(at(begin + 8 * kPage)) == 0;
        std::memset(at(begin), kMark, 8 * kPage);
        own.recorder.clear();
        const bool by_sbrk = sbrk(-2 * static_cast<intptr_t>(kPage)) == at(begin + 8 * kPage);
        const bool sbrk_came = static_cast<bool>(test::came_first(own, begin + 6 * kPage, 2 * kPage));
        own.recorder.clear();
        const bool by_brk = brk(at(begin + 100)) == 0;
        const bool brk_came = static_cast<bool>(test::came_first(own, begin + kPage, 5 * kPage));
        const bool noted = sbrk(0) == at(begin + 100);
        own.recorder.clear();
        const bool again = sbrk(static_cast<intptr_t>(3 * kPage)) == at(begin + 100);
        const bool grown_came = test::came_after(own, begin + kPage, 3 * kPage);
        return ChildAnswer{own.status, grown && by_sbrk && by_brk && again, sbrk_came, brk_came, noted, grown_came};
      },
      &answer));
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1, 1, 1, 1}));
}

TEST_F(PatcherEvents, a_break_that_the_kernel_refuses_is_an_error_as_without_the_patch) {
  errno = 0;
  EXPECT_EQ(brk(reinterpret_cast<void*>(UINTPTR_MAX / 2)), -1);
  EXPECT_EQ(errno, ENOMEM);
}

// Sets one more large page aside while it lives, where that is allowed.
class LargePage {
 public:
  LargePage() {
    std::ifstream(kFile) >> before_;
    if (before_ >= 0) write(before_ + 1);
  }
  ~LargePage() {
    if (before_ >= 0) write(before_);
  }
  LargePage(const LargePage&) = delete;
  LargePage& operator=(const LargePage&) = delete;

 private:
  static constexpr const char* kFile = "/proc/sys/vm/nr_hugepages";
  static void write(long count) { std::ofstream(kFile) << count << std::flush; }
  long before_ = -1;
};

TEST_F(PatcherEvents, the_tail_of_a_segment_on_large_pages) {
  const LargePage page;
  constexpr size_t kLarge = size_t{2} << 20;
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | SHM_HUGETLB | 0600);
  if (id < 0) GTEST_SKIP() << "no large page is set aside here, and none can be (vm.nr_hugepages)";
  auto* const room =
      static_cast<char*>(mmap(nullptr, 2 * kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const uintptr_t under = (reinterpret_cast<uintptr_t>(room) + kLarge - 1) & ~(kLarge - 1);
  clear();
  EXPECT_EQ(shmat(id, at(under), SHM_REMAP), at(under)) << errno;
  EXPECT_FALSE(touching(under + kLarge - kPage, kPage).empty());
  shmdt(at(under));
  shmctl(id, IPC_RMID, nullptr);
}

TEST_F(PatcherEvents, shared_memory_segments) {
  const int id = shmget(IPC_PRIVATE, 3 * kPage, IPC_CREAT | 0600);
  if (id < 0) GTEST_SKIP() << "no System V shared memory here";
  clear();
  void* const attached = shmat(id, nullptr, 0);
  ASSERT_NE(attached, reinterpret_cast<void*>(-1));
  const auto base = reinterpret_cast<uintptr_t>(attached);
  EXPECT_TRUE(came_after(base, 3 * kPage));
  std::memset(attached, kMark, 3 * kPage);
  mprotect(at(base + kPage), kPage, PROT_READ);  // three mappings of one segment
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(kept_files.add(Span::of(base + i * kPage, kPage), static_cast<uint64_t>(id), i * kPage));
  }
  clear();
  EXPECT_EQ(shmdt(attached), 0);
  EXPECT_TRUE(came_first(base, kPage));
  EXPECT_TRUE(came_first(base + kPage, kPage));
  EXPECT_TRUE(came_first(base + 2 * kPage, kPage));
  kept_files.forget_hook({0, UINTPTR_MAX});

  // Not at a large page's address: there the segment could be one of large pages.
  const uintptr_t room = marked(5), under = room % (size_t{2} << 20) == 0 ? room + kPage : room;
  ASSERT_EQ(shmat(id, at(under), SHM_REMAP), at(under));
  EXPECT_TRUE(came_first(under, 3 * kPage));
  EXPECT_TRUE(touching(under + 3 * kPage, kPage).empty());
  shmdt(at(under));
  munmap(at(room), 5 * kPage);
  shmctl(id, IPC_RMID, nullptr);
  errno = 0;
  EXPECT_EQ(shmdt(at(under)), -1);
  EXPECT_EQ(errno, EINVAL);
}

TEST_F(PatcherEvents, the_loaders_own_unmap) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  void* const object = dlopen(PINRAIL_TEST_BUILD "/test/monitor/dso/.libs/unloaded.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(object, nullptr) << dlerror();
  Dl_info info{};
  ASSERT_NE(dladdr(dlsym(object, "data_of_an_object"), &info), 0);
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  clear();
  ASSERT_EQ(dlclose(object), 0);
  unsigned char resident = 0;
  ASSERT_NE(mincore(at(base), kPage, &resident), 0) << "it was not unmapped at all";
  const std::vector<Report> found = touching(base, kPage);
  ASSERT_FALSE(found.empty()) << reports().size() << " other reports";
  EXPECT_EQ(found.front().base, base);
}

TEST_F(PatcherEvents, what_malloc_gives_back) {
  if (!malloc_is_libcs()) GTEST_SKIP() << "malloc is not libc's here";
  void* const large = malloc(64 << 20);
  std::memset(large, kMark, 64 << 20);
  const auto base = reinterpret_cast<uintptr_t>(large);
  clear();
  free(large);
  EXPECT_FALSE(touching(base, 64 << 20).empty());
}

}  // namespace
}  // namespace pinrail::test

#else

TEST(Patcher, is_for_machines_where_code_can_be_patched) { GTEST_SKIP() << "x86-64 Linux, without ThreadSanitizer"; }

#endif
