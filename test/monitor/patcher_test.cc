// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher: every event is reported before the kernel acts, with its range.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <malloc.h>
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
#include "test/support/child.h"
#include "test/support/need_glibc.h"

#if PINRAIL_CAN_PATCH

#include "test/monitor/patcher_reports.h"

namespace pinrail::test {
namespace {

TEST(Patcher, munmap) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(4);
  patcher.recorder.clear();
  EXPECT_EQ(munmap(at(base + kPage), 2 * kPage), 0);
  EXPECT_TRUE(came_first(patcher, base + kPage, 2 * kPage));
  EXPECT_EQ(patcher.recorder.reports().size(), 2u) << "before, and again after";
  munmap(at(base), kPage);
  munmap(at(base + 3 * kPage), kPage);
}

TEST(Patcher, a_length_that_is_no_whole_page_is_rounded_up_as_the_kernel_does) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(2);
  patcher.recorder.clear();
  EXPECT_EQ(munmap(at(base), kPage + 1), 0);
  EXPECT_TRUE(came_first(patcher, base, 2 * kPage));
}

TEST(Patcher, mmap_over_something) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(3);
  patcher.recorder.clear();
  ASSERT_EQ(mmap(at(base + kPage), kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at(base + kPage));
  EXPECT_TRUE(came_first(patcher, base + kPage, kPage));
  EXPECT_TRUE(came_after(patcher, base + kPage, kPage));
  munmap(at(base), 3 * kPage);
}

TEST(Patcher, what_mmap_returns_is_reported_before_the_caller_has_it) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(2);
  patch::system_call_hook(SYS_munmap, static_cast<long>(base), 2 * kPage);  // unseen by any hook
  patcher.recorder.clear();
  ASSERT_EQ(mmap(at(base), 2 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), at(base));
  EXPECT_TRUE(came_after(patcher, base, 2 * kPage));
  munmap(at(base), 2 * kPage);
}

TEST(Patcher, mremap_that_moves_reports_what_moves_and_what_it_lands_on) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t from = marked_pages(2), onto = marked_pages(2);
  patcher.recorder.clear();
  ASSERT_EQ(mremap(at(from), 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)), at(onto));
  EXPECT_TRUE(came_first(patcher, from, 2 * kPage));
  EXPECT_EQ(*static_cast<uint8_t*>(at(onto)), kMark);

  // Something else moves in: a mark that is seen there is the old one.
  const uintptr_t other = marked_pages(2);
  *static_cast<uint8_t*>(at(other)) = 0;
  patcher.recorder.clear();
  ASSERT_EQ(mremap(at(other), 2 * kPage, 2 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)), at(onto));
  EXPECT_TRUE(came_first(patcher, onto, 2 * kPage));
  EXPECT_TRUE(came_after(patcher, onto, 2 * kPage));
  munmap(at(onto), 2 * kPage);
}

TEST(Patcher, mremap_that_shrinks_reports_the_end_alone) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(3);
  patcher.recorder.clear();
  ASSERT_EQ(mremap(at(base), 3 * kPage, kPage, MREMAP_MAYMOVE), at(base));
  EXPECT_TRUE(came_first(patcher, base + kPage, 2 * kPage));
  EXPECT_TRUE(patcher.recorder.touching(base, kPage).empty());
  munmap(at(base), kPage);
}

TEST(Patcher, mremap_that_grows_reports_the_old_range_and_all_that_is_new) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(3);
  munmap(at(base + kPage), kPage);  // it cannot grow where it is
  patcher.recorder.clear();
  void* const moved = mremap(at(base), kPage, 3 * kPage, MREMAP_MAYMOVE);
  ASSERT_NE(moved, MAP_FAILED);
  EXPECT_TRUE(came_first(patcher, base, kPage));
  const std::vector<Report> found = patcher.recorder.touching(reinterpret_cast<uintptr_t>(moved) + kPage, 2 * kPage);
  ASSERT_FALSE(found.empty());
  EXPECT_LE(found.front().base, reinterpret_cast<uintptr_t>(moved) + kPage);
  munmap(moved, 3 * kPage);
  munmap(at(base + 2 * kPage), kPage);
}

TEST(Patcher, mremap_that_leaves_the_mapping_reports_its_pages) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(1);
  patcher.recorder.clear();
  void* const moved = mremap(at(base), kPage, kPage, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, nullptr);
  if (moved == MAP_FAILED) GTEST_SKIP() << "this kernel has no MREMAP_DONTUNMAP";
  EXPECT_TRUE(came_first(patcher, base, kPage));
  munmap(at(base), kPage);
  munmap(moved, kPage);
}

// The kernel rounds the lengths up. No large page is needed for that.
TEST(Patcher, mremap_of_large_pages_reports_whole_ones) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  constexpr size_t kLarge = size_t{2} << 20;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const room = mmap(nullptr, 3 * kLarge, PROT_NONE, kFlags, -1, 0);
  const uintptr_t from = (reinterpret_cast<uintptr_t>(room) + kLarge - 1) & ~(kLarge - 1), onto = from + kLarge;
  constexpr int kTwoMegabytes = 21 << MAP_HUGE_SHIFT;
  void* const large = mmap(at(from), kLarge, PROT_READ, kFlags | MAP_HUGETLB | kTwoMegabytes | MAP_FIXED, -1, 0);
  patcher.recorder.clear();
  const bool moves =
      large == at(from) && mremap(large, kPage, kPage, MREMAP_MAYMOVE | MREMAP_FIXED, at(onto)) == at(onto);
  const std::vector<Report> left = patcher.recorder.touching(onto - kPage, kPage);
  const std::vector<Report> replaced = patcher.recorder.touching(onto + kLarge - kPage, kPage);
  munmap(room, 3 * kLarge);
  if (!moves) GTEST_SKIP() << "this kernel moves no large pages (before 5.16)";
  EXPECT_GE(left.size(), 2U) << "before, and again after";
  EXPECT_GE(replaced.size(), 2U) << "before, and again after";
}

TEST(Patcher, madvise_that_drops_pages) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  constexpr int kDropping[] = {MADV_DONTNEED,           MADV_FREE, MADV_REMOVE, 24 /* DONTNEED_LOCKED */,
                               102 /* GUARD_INSTALL */, 977 /* whatever comes */};
  for (const int advice : kDropping) {
    const uintptr_t base =
        marked_pages(3, advice == MADV_REMOVE ? MAP_SHARED | MAP_ANONYMOUS : MAP_PRIVATE | MAP_ANONYMOUS);
    patcher.recorder.clear();
    (void)madvise(at(base + kPage), kPage, advice);  // not every kernel knows all of them
    EXPECT_TRUE(came_first(patcher, base + kPage, kPage)) << advice;
    if (advice == MADV_DONTNEED) {
      EXPECT_TRUE(came_after(patcher, base + kPage, kPage)) << "for a registration made meanwhile";
    }
    munmap(at(base), 3 * kPage);
  }
}

TEST(Patcher, madvise_that_keeps_pages_is_no_event) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(1);
  patcher.recorder.clear();
  for (const int advice : {MADV_NORMAL, MADV_WILLNEED, MADV_SEQUENTIAL, MADV_DONTFORK, MADV_DOFORK, MADV_HUGEPAGE,
                           MADV_NOHUGEPAGE, MADV_COLD, MADV_PAGEOUT, 23 /* POPULATE_WRITE */}) {
    (void)madvise(at(base), kPage, advice);
    EXPECT_TRUE(patcher.recorder.reports().empty()) << advice;
  }
  munmap(at(base), kPage);
}

TEST(Patcher, process_madvise_on_ourselves) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const int self = pidfd_of_self();
  if (self < 0) GTEST_SKIP() << "no pidfd";
  constexpr size_t kPieces = 40;  // more than the hook copies at once
  const uintptr_t base = marked_pages(2 * kPieces);
  std::vector<iovec> list;
  for (size_t i = 0; i < kPieces; ++i) list.push_back({at(base + 2 * i * kPage), kPage});
  patcher.recorder.clear();
  (void)advise_process(self, list.data(), list.size(), MADV_DONTNEED, 0);  // not every kernel can
  for (size_t i = 0; i < kPieces; ++i) EXPECT_TRUE(came_first(patcher, base + 2 * i * kPage, kPage)) << i;
  EXPECT_TRUE(patcher.recorder.touching(base + kPage, kPage).empty());
  patcher.recorder.clear();
  errno = 0;
  EXPECT_EQ(advise_process(self, reinterpret_cast<iovec*>(16), 1, MADV_DONTNEED, 0), -1) << "not our crash";
  EXPECT_EQ(errno, EFAULT);
  close(self);
  munmap(at(base), 2 * kPieces * kPage);
}

// As allocators and other runtimes do.
TEST(Patcher, system_calls_by_the_function_of_that_name) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  uintptr_t base = marked_pages(4);
  patcher.recorder.clear();
  EXPECT_EQ(syscall(SYS_madvise, base, kPage, MADV_DONTNEED), 0);
  EXPECT_TRUE(came_first(patcher, base, kPage));
  EXPECT_EQ(syscall(SYS_munmap, base + kPage, kPage), 0);
  EXPECT_TRUE(came_first(patcher, base + kPage, kPage));
  // All six arguments arrive, the last of them from the stack: the file's second page.
  const int file = memfd_create("six", MFD_CLOEXEC);
  const std::vector<uint8_t> bytes(2 * kPage, 0x33);
  ASSERT_EQ(pwrite(file, bytes.data(), kPage, kPage), static_cast<ssize_t>(kPage));
  patcher.recorder.clear();
  ASSERT_EQ(syscall(SYS_mmap, base + 2 * kPage, kPage, PROT_READ, MAP_PRIVATE | MAP_FIXED, file, kPage),
            static_cast<long>(base + 2 * kPage));
  EXPECT_TRUE(came_first(patcher, base + 2 * kPage, kPage));
  EXPECT_EQ(*static_cast<uint8_t*>(at(base + 2 * kPage)), 0x33);
  close(file);
  EXPECT_EQ(syscall(SYS_getpid), getpid());
  errno = 0;
  EXPECT_EQ(syscall(SYS_munmap, 1, kPage), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(syscall(SYS_brk, 0), reinterpret_cast<long>(sbrk(0)));
  munmap(at(base), 4 * kPage);
}

TEST(Patcher, remap_file_pages) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t base = marked_pages(2, MAP_SHARED | MAP_ANONYMOUS);
  patcher.recorder.clear();
  EXPECT_EQ(remap_file_pages(at(base), kPage, 0, 1, 0), 0);
  EXPECT_TRUE(came_first(patcher, base, kPage));
  munmap(at(base), 2 * kPage);
}

TEST(Patcher, the_break_is_reported_before_it_falls) {
  NEED_GLIBC("sbrk() moves nothing there");
  Patcher patcher;
  NEED_PATCHER(patcher);
  ChildAnswer answer{};
  // In a child of its own patcher, for malloc's arena sits at the break.
  patcher.stop();
  ASSERT_TRUE(in_child(
      [] {
        Patcher own;
        const auto before = reinterpret_cast<uintptr_t>(sbrk(0));
        const uintptr_t begin = (before + kPage - 1) / kPage * kPage;
        const bool grown = brk(at(begin + 8 * kPage)) == 0;
        std::memset(at(begin), kMark, 8 * kPage);
        own.recorder.clear();
        const bool by_sbrk = sbrk(-2 * static_cast<intptr_t>(kPage)) == at(begin + 8 * kPage);
        const bool sbrk_came = static_cast<bool>(came_first(own, begin + 6 * kPage, 2 * kPage));
        own.recorder.clear();
        const bool by_brk = brk(at(begin + 100)) == 0;
        const bool brk_came = static_cast<bool>(came_first(own, begin + kPage, 5 * kPage));
        const bool noted = sbrk(0) == at(begin + 100);
        own.recorder.clear();
        const bool again = sbrk(static_cast<intptr_t>(3 * kPage)) == at(begin + 100);
        const bool grown_came = came_after(own, begin + kPage, 3 * kPage);
        return ChildAnswer{own.status, grown && by_sbrk && by_brk && again, sbrk_came, brk_came, noted, grown_came};
      },
      &answer));
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1, 1, 1, 1}));
}

TEST(Patcher, a_break_that_the_kernel_refuses_is_an_error_as_without_the_patch) {
  Patcher patcher;
  NEED_PATCHER(patcher);
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

TEST(Patcher, the_tail_of_a_segment_on_large_pages) {
  const LargePage page;
  Patcher patcher;
  NEED_PATCHER(patcher);
  constexpr size_t kLarge = size_t{2} << 20;
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | SHM_HUGETLB | 0600);
  if (id < 0) GTEST_SKIP() << "no large page is set aside here, and none can be (vm.nr_hugepages)";
  auto* const room =
      static_cast<char*>(mmap(nullptr, 2 * kLarge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  const uintptr_t under = (reinterpret_cast<uintptr_t>(room) + kLarge - 1) & ~(kLarge - 1);
  patcher.recorder.clear();
  EXPECT_EQ(shmat(id, at(under), SHM_REMAP), at(under)) << errno;
  EXPECT_FALSE(patcher.recorder.touching(under + kLarge - kPage, kPage).empty());
  shmdt(at(under));
  shmctl(id, IPC_RMID, nullptr);
}

TEST(Patcher, shared_memory_segments) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const int id = shmget(IPC_PRIVATE, 3 * kPage, IPC_CREAT | 0600);
  if (id < 0) GTEST_SKIP() << "no System V shared memory here";
  patcher.recorder.clear();
  void* const attached = shmat(id, nullptr, 0);
  ASSERT_NE(attached, reinterpret_cast<void*>(-1));
  const auto base = reinterpret_cast<uintptr_t>(attached);
  EXPECT_TRUE(came_after(patcher, base, 3 * kPage));
  std::memset(attached, kMark, 3 * kPage);
  mprotect(at(base + kPage), kPage, PROT_READ);  // three mappings of one segment
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(kept_files.add(Span::of(base + i * kPage, kPage), static_cast<uint64_t>(id), i * kPage));
  }
  patcher.recorder.clear();
  EXPECT_EQ(shmdt(attached), 0);
  EXPECT_TRUE(came_first(patcher, base, kPage));
  EXPECT_TRUE(came_first(patcher, base + kPage, kPage));
  EXPECT_TRUE(came_first(patcher, base + 2 * kPage, kPage));
  kept_files.forget_hook({0, UINTPTR_MAX});

  const uintptr_t under = marked_pages(4);
  patcher.recorder.clear();
  ASSERT_EQ(shmat(id, at(under), SHM_REMAP), at(under));
  EXPECT_TRUE(came_first(patcher, under, 3 * kPage));
  EXPECT_TRUE(patcher.recorder.touching(under + 3 * kPage, kPage).empty());
  shmdt(at(under));
  munmap(at(under + 3 * kPage), kPage);
  shmctl(id, IPC_RMID, nullptr);
  errno = 0;
  EXPECT_EQ(shmdt(at(under)), -1);
  EXPECT_EQ(errno, EINVAL);
}

class PatcherFiles : public testing::Test {
 protected:
  void SetUp() override {
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
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t shared = mapped(MAP_SHARED), priv = mapped(MAP_PRIVATE);
  patcher.recorder.clear();
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  EXPECT_TRUE(came_first(patcher, shared + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(came_first(patcher, priv + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(patcher.recorder.touching(shared, 2 * kPage).empty());
  patcher.recorder.clear();
  ASSERT_EQ(ftruncate(fd_, 100 * kPage), 0);
  EXPECT_TRUE(patcher.recorder.reports().empty()) << "a file that grows loses nothing";
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  patcher.recorder.clear();
  ASSERT_EQ(ftruncate(fd_, 4 * kPage), 0);
  EXPECT_TRUE(patcher.recorder.touching(shared, 2 * kPage).empty()) << "a file that keeps its length loses nothing";
  munmap(at(shared), 4 * kPage);
  munmap(at(priv), 4 * kPage);
}

// Each way by which a program opens a file.
TEST_F(PatcherFiles, a_file_that_is_opened_to_be_cut_is_reported_first) {
  Patcher patcher;
  NEED_PATCHER(patcher);
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
      {"fopen",
       [path](int flags) {
         std::FILE* const stream = std::fopen(path, flags != 0 ? "w+e" : "r+e");
         const int file = stream == nullptr ? -1 : dup(fileno(stream));
         if (stream != nullptr) std::fclose(stream);
         return file;
       }},
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
    patcher.recorder.clear();
    const int plain = way(0);
    EXPECT_GE(plain, 0);
    EXPECT_TRUE(patcher.recorder.touching(shared, 4 * kPage).empty()) << "without O_TRUNC nothing is lost";
    const int cut = way(O_TRUNC);
    EXPECT_GE(cut, 0);
    EXPECT_TRUE(came_first(patcher, shared, 4 * kPage));
    close(plain);
    close(cut);
    munmap(at(shared), 4 * kPage);
    kept_files.forget_hook({0, UINTPTR_MAX});
  }
}

#ifdef __GLIBC__
TEST(Patcher, shm_open_that_cuts) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const std::string name = "/pinrail-patcher." + std::to_string(getpid());
  const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, kPage), 0);
  const uintptr_t shared = marked_pages(1, MAP_SHARED, file);
  struct stat about {};
  ASSERT_EQ(fstat(file, &about), 0);
  EXPECT_TRUE(kept_files.add(Span::of(shared, kPage), about.st_ino, 0));
  patcher.recorder.clear();
  const int cut = shm_open(name.c_str(), O_RDWR | O_TRUNC, 0600);
  EXPECT_TRUE(came_first(patcher, shared, kPage));
  kept_files.forget_hook({0, UINTPTR_MAX});
  close(cut);
  close(file);
  shm_unlink(name.c_str());
  munmap(at(shared), kPage);
}
#endif

// While nothing of a file is kept, a file that is cut is not even looked at.
TEST_F(PatcherFiles, nothing_is_reported_where_nothing_is_kept) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t shared = mapped(MAP_SHARED);
  kept_files.forget_hook({0, UINTPTR_MAX});
  patcher.recorder.clear();
  const int files_before = reported_files.load();
  ASSERT_EQ(ftruncate(fd_, 0), 0);
  EXPECT_TRUE(patcher.recorder.touching(shared, 4 * kPage).empty());
  EXPECT_EQ(reported_files.load(), files_before);
  munmap(at(shared), 4 * kPage);
}

// In a process with 40,000 mappings a hook that reads them takes 100 ms.
TEST_F(PatcherFiles, which_addresses_show_a_file_is_known_without_the_list_of_mappings) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  if (id < 0) GTEST_SKIP() << "no System V shared memory here";
  const auto attached = reinterpret_cast<uintptr_t>(shmat(id, nullptr, 0));
  *reinterpret_cast<volatile uint8_t*>(attached) = kMark;
  EXPECT_TRUE(kept_files.add(Span::of(attached, kPage), static_cast<uint64_t>(id), 0));
  const uintptr_t shared = mapped(MAP_SHARED);
  patcher.recorder.clear();
  bool can_open_nothing = false;
  std::thread([&] {
    can_open_nothing = refuse_system_call(SYS_openat, EACCES);  // for this thread alone
    EXPECT_EQ(fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * kPage, kPage), 0);
    EXPECT_EQ(ftruncate(fd_, 4 * kPage), 0);
    EXPECT_EQ(shmdt(at(attached)), 0);
  }).join();
  ASSERT_TRUE(can_open_nothing);
  EXPECT_TRUE(came_first(patcher, shared, kPage));
  EXPECT_TRUE(came_first(patcher, shared + 2 * kPage, 2 * kPage));
  EXPECT_TRUE(came_first(patcher, attached, kPage));
  munmap(at(shared), 4 * kPage);
  shmctl(id, IPC_RMID, nullptr);
}

TEST_F(PatcherFiles, truncate_by_name_does_too) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t shared = mapped(MAP_SHARED);
  patcher.recorder.clear();
  ASSERT_EQ(truncate(path_.c_str(), 5 * kPage), 0);
  EXPECT_TRUE(came_first(patcher, shared + 3 * kPage, kPage));
  munmap(at(shared), 4 * kPage);
  errno = 0;
  EXPECT_EQ(truncate("/nonexistent/file", 0), -1);
  EXPECT_EQ(errno, ENOENT);
}

TEST_F(PatcherFiles, a_hole_is_reported_where_it_is_mapped) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t shared = mapped(MAP_SHARED);
  patcher.recorder.clear();
  ASSERT_EQ(fallocate(fd_, 0, 0, 8 * kPage), 0);
  EXPECT_TRUE(patcher.recorder.reports().empty()) << "taking room drops nothing";
  (void)fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3 * kPage, kPage);  // not every file system can
  EXPECT_TRUE(came_first(patcher, shared + kPage, kPage));
  EXPECT_EQ(patcher.recorder.touching(shared, 4 * kPage).size(), 2u) << "before it, and after it";
  munmap(at(shared), 4 * kPage);
}

TEST_F(PatcherFiles, a_range_that_shifts_reports_all_behind_it) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  const uintptr_t shared = mapped(MAP_SHARED);
  patcher.recorder.clear();
  (void)fallocate(fd_, FALLOC_FL_COLLAPSE_RANGE, 3 * kPage, kPage);  // not every file system can
  EXPECT_TRUE(came_first(patcher, shared + kPage, 3 * kPage));
  munmap(at(shared), 4 * kPage);
}

TEST(Patcher, the_loaders_own_unmap) {
  NEED_GLIBC("dlclose() unmaps nothing there");
  Patcher patcher;
  NEED_PATCHER(patcher);
  void* const object = dlopen(PINRAIL_TEST_BUILD "/test/unit/patch/.libs/victims.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(object, nullptr) << dlerror();
  Dl_info info{};
  ASSERT_NE(dladdr(dlsym(object, "victim_plain"), &info), 0);
  const auto base = reinterpret_cast<uintptr_t>(info.dli_fbase);
  patcher.recorder.clear();
  ASSERT_EQ(dlclose(object), 0);
  unsigned char resident = 0;
  ASSERT_NE(mincore(at(base), kPage, &resident), 0) << "it was not unmapped at all";
  const std::vector<Report> found = patcher.recorder.touching(base, kPage);
  ASSERT_FALSE(found.empty()) << patcher.recorder.reports().size() << " other reports";
  EXPECT_EQ(found.front().base, base);
}

TEST(Patcher, what_malloc_gives_back) {
  Patcher patcher;
  NEED_PATCHER(patcher);
  if (!malloc_is_libcs()) GTEST_SKIP() << "malloc is not libc's here";
  void* const large = malloc(64 << 20);
  std::memset(large, kMark, 64 << 20);
  const auto base = reinterpret_cast<uintptr_t>(large);
  patcher.recorder.clear();
  free(large);
  EXPECT_FALSE(patcher.recorder.touching(base, 64 << 20).empty());

  std::vector<void*> pieces;
  for (int i = 0; i < 200; ++i) pieces.push_back(malloc(100 << 10));
  for (void* piece : pieces) std::memset(piece, kMark, 100 << 10);
  const auto middle = reinterpret_cast<uintptr_t>(pieces[100]);
  for (void* piece : pieces) free(piece);
  patcher.recorder.clear();
#ifdef __GLIBC__
  malloc_trim(0);
#endif
  // Trimmed now, or when the last one was freed: then the recorder was cleared too late, and nothing is mapped there.
  unsigned char resident = 0;
  const bool gone = mincore(at(middle & ~(kPage - 1)), kPage, &resident) != 0;
  EXPECT_TRUE(gone || !patcher.recorder.touching(middle, kPage).empty());
}

}  // namespace
}  // namespace pinrail::test

#else

TEST(Patcher, is_for_machines_where_code_can_be_patched) { GTEST_SKIP() << "x86-64 Linux, without ThreadSanitizer"; }

#endif
