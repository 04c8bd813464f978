// SPDX-License-Identifier: BSD-3-Clause
// monitor/patcher: what is cut from a file, or has a hole made in it, is reported where it is mapped.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "config.h"
#include "test/monitor/patcher_host.h"
#include "test/support/child.h"

#if PINRAIL_CAN_PATCH

#include "test/monitor/patcher_reports.h"

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
