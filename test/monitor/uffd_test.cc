// SPDX-License-Identifier: BSD-3-Clause
// monitor/uffd: each event, by a system call that no patch of libc sees, makes a miss of what was cached.
#include <pinrail/listing.h>
#include <sys/shm.h>
#include <sys/uio.h>

#include "base/core/kernel.h"
#include "test/monitor/uffd_library.h"

namespace pinrail::test {
namespace {

#define WATCHED(watched, settings) \
  NEED_UFFD();                     \
  Watched watched{settings};       \
  ASSERT_EQ(watched.pool.status, PINRAIL_SUCCESS)

TEST(Uffd, what_is_left_and_right_of_the_hole_is_watched_still) {
  WATCHED(watched, uffd_alone());
  const uintptr_t base = watched.cached(5);
  ASSERT_TRUE(raw_unmap(base + 2 * kPage, 1));
  watched.pool.use(base, kPage);
  watched.pool.use(base + 4 * kPage, kPage);
  EXPECT_TRUE(watched.has(base) && watched.has(base + 4 * kPage));
  ASSERT_TRUE(raw_unmap(base, 1) && raw_unmap(base + 4 * kPage, 1));
  EXPECT_FALSE(watched.has(base) || watched.has(base + 4 * kPage));
  raw_unmap(base, 5);
}

TEST(Uffd, mremap_away_that_leaves_the_mapping) {
  WATCHED(watched, uffd_alone());
  const uintptr_t base = watched.cached(4);
  const uintptr_t moved = raw_remap(base, 4, 4, MREMAP_MAYMOVE | MREMAP_DONTUNMAP);
  ASSERT_NE(moved, UINTPTR_MAX);
  EXPECT_FALSE(watched.has(base));
  raw_unmap(base, 4);
  raw_unmap(moved, 4);
}

TEST(Uffd, mremap_that_shrinks) {
  Settings settings = uffd_alone();
  settings.emplace_back("mpool_grdma_rights", "asked");  // two registrations of the first pages
  WATCHED(watched, settings);
  const uintptr_t base = watched.cached(4);
  watched.pool.use(base, 2 * kPage, 2);
  ASSERT_EQ(raw_remap(base, 4, 2, 0), base);
  EXPECT_FALSE(watched.has(base, 4));
  EXPECT_TRUE(watched.pool.has(base, 2 * kPage, 2)) << "what is left was not touched";
  raw_unmap(base, 2);
}

TEST(Uffd, what_moved_is_watched_where_it_is_now) {
  WATCHED(watched, uffd_alone());
  const uintptr_t base = watched.cached(4);
  const uintptr_t onto = raw_map(8);
  ASSERT_EQ(raw_remap(base, 4, 8, MREMAP_MAYMOVE | MREMAP_FIXED, onto), onto);
  watched.pool.use(onto, 8 * kPage);
  EXPECT_TRUE(watched.has(onto, 8));
  ASSERT_TRUE(raw_unmap(onto + 7 * kPage, 1));
  EXPECT_FALSE(watched.has(onto, 8));
  raw_unmap(onto, 8);
}

TEST(Uffd, what_a_mapping_grew_by_is_watched_too) {
  WATCHED(watched, uffd_alone());
  const uintptr_t base = raw_map(8);
  raw_unmap(base + 4 * kPage, 4);
  watched.pool.use(base, 4 * kPage);
  ASSERT_EQ(raw_map(4, base + 4 * kPage), base + 4 * kPage);
  watched.pool.use(base, 8 * kPage);
  EXPECT_TRUE(watched.has(base, 8));
  ASSERT_TRUE(raw_unmap(base + 6 * kPage, 1));
  EXPECT_FALSE(watched.has(base, 8));
  raw_unmap(base, 8);
}

TEST(Uffd, dontneed_locked) {
  constexpr int kDontneedLocked = 24;
  WATCHED(watched, uffd_alone());
  const uintptr_t base = watched.cached(4);
  if (!raw_advise(base, 1, kDontneedLocked)) GTEST_SKIP() << "this kernel has no DONTNEED_LOCKED";
  EXPECT_FALSE(watched.has(base));
  raw_unmap(base, 4);
}

TEST(Uffd, the_break_moves_down) {
  WATCHED(watched, uffd_alone());
  const long now = syscall(SYS_brk, 0), up = now + 16 * long{kPage};
  if (syscall(SYS_brk, up) != up) GTEST_SKIP() << "the break does not move here";
  const uintptr_t base = (static_cast<uintptr_t>(now) + kPage - 1) / kPage * kPage;
  watched.pool.use(base, 4 * kPage);
  EXPECT_TRUE(watched.has(base, 4));
  ASSERT_EQ(syscall(SYS_brk, now), now);
  EXPECT_FALSE(watched.has(base, 4));
}

// A memfd whose bytes are removed by madvise only.
Settings shared_too(const std::string& also = ",remove") {
  return uffd_alone("guard_install,shmat_over,remap_file_pages,punch_hole,truncate" + also);
}

int make_file(size_t pages) {
  const int file = static_cast<int>(syscall(SYS_memfd_create, "pinrail-test", MFD_CLOEXEC));
  EXPECT_EQ(ftruncate(file, static_cast<off_t>(pages * kPage)), 0);
  return file;
}

// E1: of shared memory the kernel tells the same, from 5.19 on.
TEST(Uffd, shared_memory_is_kept_until_it_is_removed_or_unmapped) {
  WATCHED(watched, shared_too());
  const int file = make_file(4);
  const uintptr_t base = raw_map(4, 0, MAP_SHARED, file);
  close(file);
  watched.pool.use(base, 4 * kPage);
  if (!watched.has(base, 4)) GTEST_SKIP() << "this kernel watches no shared memory (before 5.19)";
  ASSERT_TRUE(raw_advise(base, 1, MADV_REMOVE));
  EXPECT_FALSE(watched.has(base, 4));
  watched.pool.use(base, 4 * kPage);
  EXPECT_TRUE(watched.has(base, 4));
  ASSERT_TRUE(raw_unmap(base + kPage, 1));
  EXPECT_FALSE(watched.has(base, 4));
  raw_unmap(base, 4);
}

// What the kernel does not watch, or what can happen to it unseen, is registered and not kept.
void expect_not_kept(const Settings& settings, uintptr_t base, const char* what) {
  const Watched watched{settings};
  ASSERT_EQ(watched.pool.status, PINRAIL_SUCCESS);
  watched.pool.use(base, kPage);
  EXPECT_FALSE(watched.has(base)) << what;
  EXPECT_EQ(watched.pool.stats().uncovered, 1u) << what;
  EXPECT_EQ(watched.fake.live_count(), 0u) << what;
}

TEST(UffdCovers, no_segment_and_no_file_that_is_private_or_can_be_cut) {
  NEED_UFFD();
  const int id = shmget(IPC_PRIVATE, kPage, IPC_CREAT | 0600);
  ASSERT_GE(id, 0);
  void* const segment = shmat(id, nullptr, 0);
  shmctl(id, IPC_RMID, nullptr);
  const int program = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), file = make_file(1);
  const uintptr_t private_file = raw_map(1, 0, MAP_PRIVATE, program), shared_file = raw_map(1, 0, MAP_SHARED, file);
  expect_not_kept(shared_too(), reinterpret_cast<uintptr_t>(segment), "a segment of System V");
  expect_not_kept(shared_too(), private_file, "a private mapping of a file");
  expect_not_kept(uffd_alone(), shared_file, "a memfd");
  shmdt(segment);
  for (const uintptr_t base : {private_file, shared_file}) raw_unmap(base, 1);
  for (const int each : {program, file}) close(each);
}

// The kernel reports it for that mapping alone.
TEST(UffdCovers, no_memory_from_which_another_mapping_may_remove_pages) {
  NEED_UFFD();
  const Watched watched{shared_too("")};
  const int file = make_file(4);
  const uintptr_t base = raw_map(4, 0, MAP_SHARED, file), other = raw_map(4, 0, MAP_SHARED, file);
  watched.pool.use(base, 4 * kPage);
  ASSERT_TRUE(raw_advise(other, 4, MADV_REMOVE));
  EXPECT_FALSE(watched.has(base, 4));
  raw_unmap(base, 4);
  raw_unmap(other, 4);
  close(file);
}

// A userfaultfd of the program's own.
class OwnWatch {
 public:
  OwnWatch() : descriptor_(static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1))) {
    uffdio_api api{};
    api.api = UFFD_API;
    EXPECT_EQ(ioctl_of(descriptor_, UFFDIO_API, &api), 0);
  }
  ~OwnWatch() { close(descriptor_); }
  OwnWatch(const OwnWatch&) = delete;
  OwnWatch& operator=(const OwnWatch&) = delete;

  int watch(uintptr_t base) const {
    uffdio_register range{};
    range.range = {base, kPage};
    range.mode = UFFDIO_REGISTER_MODE_MISSING;
    return ioctl_of(descriptor_, UFFDIO_REGISTER, &range);
  }

 private:
  const int descriptor_;
};

TEST(UffdCovers, nothing_that_the_program_watches_itself) {
  NEED_UFFD();
  const OwnWatch own;
  const uintptr_t base = raw_map(1);
  ASSERT_EQ(own.watch(base), 0);
  expect_not_kept(uffd_alone(), base, "the program's");
  raw_unmap(base, 1);
}

// The README says so: the kernel gives a mapping to one userfaultfd.
TEST(UffdCovers, what_it_watches_is_refused_to_the_programs_own_userfaultfd_until_it_ends) {
  NEED_UFFD();
  const OwnWatch own;
  const uintptr_t base = raw_map(1);
  {
    WATCHED(watched, uffd_alone());
    watched.pool.use(base, kPage);
    ASSERT_TRUE(watched.has(base));
    EXPECT_EQ(own.watch(base), -1);
    EXPECT_EQ(errno, EBUSY);
  }
  EXPECT_EQ(own.watch(base), 0);
  raw_unmap(base, 1);
}

TEST(UffdCovers, nothing_where_a_part_of_the_range_is_not_watched) {
  WATCHED(watched, shared_too());
  const uintptr_t base = raw_map(2);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(raw_map(1, base + kPage, MAP_PRIVATE, file), base + kPage);
  watched.pool.use(base, 2 * kPage);
  EXPECT_FALSE(watched.has(base, 2));
  watched.pool.use(base, kPage);
  EXPECT_TRUE(watched.has(base)) << "the anonymous part alone is";
  raw_unmap(base, 2);
  close(file);
}

TEST(UffdCovers, nothing_that_no_monitor_sees_unless_the_administrator_says_that_it_never_happens) {
  NEED_UFFD();
  const uintptr_t base = raw_map(1);
  {
    Watched watched{uffd_alone("")};
    EXPECT_EQ(watched.pool.status, PINRAIL_ERR_NOT_SUPPORTED) << "SHM_REMAP goes unseen: leave_pinned=1 is refused";
    EXPECT_EQ(pinrail_monitor_works(), 0);
  }
  Watched watched;
  watched.pool.use(base, kPage);
  EXPECT_TRUE(watched.has(base));
  raw_unmap(base, 1);
}

// Only kinds of memory that the unseen event can hit are not kept.
TEST(UffdCovers, what_an_unseen_event_cannot_hit) {
  WATCHED(watched, uffd_alone());
  auto kind = sized<pinrail_memory_kind_t>();
  std::string kept, why_not_file;
  for (size_t i = 0; pinrail_memory_kind_at(i, &kind) == PINRAIL_SUCCESS; ++i) {
    if (kind.is_kept != 0) kept += std::string(kind.name) + " ";
    if (std::string(kind.name) == "private file") why_not_file = kind.why_not;
  }
  EXPECT_EQ(kept, "anonymous heap stack ");
  EXPECT_EQ(why_not_file, "no monitor watches such memory");
  EXPECT_STREQ(pinrail_monitors_at_work(), "uffd");
  EXPECT_EQ(pinrail_monitor_sees_all_memory(), 0);
}

TEST(UffdCovers, nothing_once_the_process_has_its_share_of_mappings) {
  NEED_UFFD();
  Settings settings = uffd_alone();
  settings.emplace_back("monitor_uffd_map_share", "0");
  const Watched watched{settings};
  EXPECT_EQ(watched.pool.status, PINRAIL_ERR_NOT_SUPPORTED) << "no share, so nothing could be kept";
}

// Closes the list of mappings that the library holds open, as a program may.
void close_lists() {
  const std::string list = "/proc/" + std::to_string(getpid()) + "/maps";
  for (int file = descriptor_of(list); file >= 0; file = descriptor_of(list)) close(file);
}

// What lies beside a hole stays watched, and so known; what comes into the hole is new.
TEST(UffdCovers, a_miss_in_a_known_mapping_asks_the_kernel_nothing) {
  WATCHED(watched, uffd_alone());
  const uintptr_t base = watched.cached(64);
  raw_unmap(base + 32 * kPage, 1);
  ASSERT_EQ(raw_map(1, base + 32 * kPage), base + 32 * kPage);
  close_lists();
  const FewDescriptors none;
  for (uintptr_t page = 0; page < 64; ++page) {
    watched.pool.use(base + page * kPage, kPage);
    if (page == 32) {
      EXPECT_FALSE(watched.has(base + page * kPage)) << "no file can be opened, and the page is new";
    } else {
      EXPECT_TRUE(watched.has(base + page * kPage)) << page << ": no file can be opened: it must be known";
    }
  }
  raw_unmap(base, 64);
}

}  // namespace
}  // namespace pinrail::test
