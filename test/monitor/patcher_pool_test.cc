// SPDX-License-Identifier: BSD-3-Clause
// The library with monitor/patcher as programs use it: the program reports nothing, and no stale registration is found.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstdlib>
#include <utility>

#include "base/patch/system_call.h"
#include "test/monitor/foreign_patches.h"
#include "test/support/cases.h"
#include "test/support/library.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

#define NEED_PATCHING()                                                      \
  if (PINRAIL_CAN_PATCH == 0)                                                \
  GTEST_SKIP() << "code is patched on Linux, x86-64 or 64-bit Arm, without " \
                  "ThreadSanitizer"

uintptr_t map_pages(size_t pages) {
  void* got = mmap(nullptr, pages * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return reinterpret_cast<uintptr_t>(got);
}

class PatcherPool : public OnePool<Pool> {
 protected:
  void SetUp() override {
    NEED_PATCHING();
    make({{"monitor", "patcher"}});
  }
};

TEST(PatcherLibrary, it_is_the_monitor_by_default_and_registrations_are_kept) {
  NEED_PATCHING();
  ASSERT_EQ(pinrail_init(nullptr), PINRAIL_SUCCESS);
  {
    fake::FakeRegistrar fake;
    Pool pool(fake, {PINRAIL_UNSET});
    ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
    EXPECT_EQ(pool.stats().leave_pinned, 1u);
    const uintptr_t base = map_pages(4);
    pool.use(base, 4 * kPage);
    EXPECT_TRUE(pool.has(base, 4 * kPage));
    munmap(at(base + kPage), kPage);
    EXPECT_FALSE(pool.has(base, 4 * kPage));
    EXPECT_EQ(pool.stats().invalidations, 1u);
  }
  EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
}

TEST_F(PatcherPool, what_malloc_hands_out_again_is_a_miss) {
  if (!malloc_is_libcs()) GTEST_SKIP() << "malloc is not libc's here";
  constexpr size_t kLarge = size_t{64} << 20;  // malloc maps such pieces one by one
  for (int i = 0; i < 20; ++i) {
    void* const large = std::malloc(kLarge);
    EXPECT_FALSE(pool_->has(reinterpret_cast<uintptr_t>(large), kPage)) << i;
    pool_->use(reinterpret_cast<uintptr_t>(large), kLarge);
    std::free(large);
  }
}

// As on 64-bit Arm, where the kernel takes it so. x86-64's refuses it unless the process has asked for LAM.
TEST_F(PatcherPool, an_address_with_a_tag_ends_what_is_registered_without_it) {
  const uintptr_t base = map_pages(4);
  void* const tagged = at(base | uintptr_t{5} << 57);
  const auto ends = [&](const char* how, auto&& act) {
    pool_->use(base, 4 * kPage);
    ASSERT_TRUE(pool_->has(base, 4 * kPage)) << how;
    act();
    EXPECT_FALSE(pool_->has(base, 4 * kPage)) << how;
  };
  ends("madvise", [&] { madvise(tagged, kPage, MADV_DONTNEED); });
  ends("report", [&] { pinrail_monitor_report(tagged, kPage); });
  ends("invalidate", [&] { pinrail_mpool_invalidate_range(pool_->get(), tagged, kPage); });
  munmap(at(base), 4 * kPage);
}

TEST_F(PatcherPool, memory_that_went_away_unseen_is_a_miss_when_it_comes_again) {
  const uintptr_t base = map_pages(4);
  pool_->use(base, 4 * kPage);
#if PINRAIL_CAN_PATCH
  patch::system_call_hook(SYS_munmap, static_cast<long>(base), 4 * kPage);
#endif
  ASSERT_EQ(mmap(at(base), 4 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), at(base));
  EXPECT_FALSE(pool_->has(base, 4 * kPage));
  munmap(at(base), 4 * kPage);
}

int new_file() {
  const int file = memfd_create("mapped", MFD_CLOEXEC);
  EXPECT_EQ(ftruncate(file, kPage), 0);
  return file;
}

uintptr_t map_new_file() {
  const int file = new_file();
  void* const got = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return reinterpret_cast<uintptr_t>(got);
}

#ifdef __GLIBC__
#define NEED_KEPT_FILES()
#else
#define NEED_KEPT_FILES() GTEST_SKIP() << "beside musl no mappings of files are kept"
#endif

// Then the file is known, and it is seen when it is cut.
TEST_F(PatcherPool, what_was_mapped_unseen_is_looked_at_again_when_the_program_has_invalidated_the_range) {
  NEED_KEPT_FILES();
#if PINRAIL_CAN_PATCH
  const uintptr_t base = map_pages(1);
  pool_->use(base, kPage);
  const int file = new_file();
  patch::system_call_hook(SYS_mmap, base, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool_->get(), at(base), kPage), PINRAIL_SUCCESS);
  pool_->use(base, kPage);
  EXPECT_TRUE(pool_->has(base, kPage));
  EXPECT_EQ(ftruncate(file, 0), 0);
  EXPECT_FALSE(pool_->has(base, kPage));
  close(file);
  munmap(at(base), kPage);
#endif
}

TEST_F(PatcherPool, files_of_former_sessions_take_no_room_and_no_descriptor_of_them_is_left) {
  NEED_KEPT_FILES();
  constexpr size_t kRoom = 1024;  // for mappings of files
  std::vector<uintptr_t> files;
  for (size_t i = 0; i < kRoom; ++i) {
    files.push_back(map_new_file());
    pool_->use(files.back(), kPage);
  }
  EXPECT_TRUE(pool_->has(files.back(), kPage));
#ifdef __x86_64__  // elsewhere an emulator may show a file of its own
  EXPECT_GE(descriptor_of("/maps"), 0);
  EXPECT_GE(descriptor_of("/pagemap"), 0);
#endif
  pool_.reset();
  library_.reset();
  EXPECT_EQ(descriptor_of("/maps"), -1);
  EXPECT_EQ(descriptor_of("/pagemap"), -1);
  make({{"monitor", "patcher"}});
  files.push_back(map_new_file());
  pool_->use(files.back(), kPage);
  EXPECT_TRUE(pool_->has(files.back(), kPage));
  for (const uintptr_t each : files) munmap(at(each), kPage);
}

// The memory that the functions are tried with begins where the kernel has room. A page more is mapped each time, so
// that it begins once at each page of a huge one.
TEST(PatcherLibrary, the_library_comes_and_goes_many_times_wherever_its_trials_have_memory) {
  NEED_PATCHING();
  for (int i = 0; i < 520; ++i) {
    map_pages(1);
    Library library(Settings{{"monitor", "patcher"}, {"monitor_patcher_check_interval", "1"}});
    ASSERT_EQ(library.status, PINRAIL_SUCCESS) << i;
    fake::FakeRegistrar fake;
    Pool pool(fake);
    const uintptr_t base = map_pages(1);
    pool.use(base, kPage);
    munmap(at(base), kPage);
    EXPECT_FALSE(pool.has(base, kPage)) << i;
  }
}

// The trials of fallocate, ftruncate and truncate need a file (ulimit -f): its attempt would end the process.
TEST(PatcherLibrary, where_no_file_may_be_made_private_memory_is_kept) {
  NEED_PATCHING();
  for (const char* const monitor : {"", "patcher", "uffd"}) {
    ChildAnswer answer{};
    ASSERT_TRUE(in_child(
        [monitor] {
          const rlimit none = {0, 0};
          if (setrlimit(RLIMIT_FSIZE, &none) != 0) return ChildAnswer{-1};
          const Library library(Settings{{"monitor", monitor}});
          if (library.status == PINRAIL_ERR_NOT_AVAILABLE) return ChildAnswer{};  // no userfaultfd here
          fake::FakeRegistrar fake;
          const Pool pool(fake, {PINRAIL_UNSET});
          const uintptr_t base = map_pages(1);
          pool.use(base, kPage);
          return ChildAnswer{library.status, pool.has(base, kPage) ? 1 : 0};
        },
        &answer))
        << "the process ended with monitor " << monitor;
    EXPECT_EQ(answer[0], PINRAIL_SUCCESS);
    if (*monitor == 'p') {
      EXPECT_EQ(answer[1], 1);
    }
  }
}

#if PINRAIL_CAN_PATCH
// Whether a pool that insists on keeping registrations can still be made.
bool may_keep() {
  fake::FakeRegistrar fake;
  return Pool(fake).status == PINRAIL_SUCCESS;
}

TEST(PatcherLibrary, once_it_is_blind_no_pool_keeps_anything_until_the_other_patch_is_gone) {
  const ChildAnswer answer = answer_of([] {
    const Settings settings = {{"monitor", "patcher"}, {"monitor_patcher_check_interval", "2"}};
    ChildAnswer said{};
    std::vector<uint8_t> code;
    {
      const Library library(settings);
      said[0] = library.status == PINRAIL_SUCCESS && may_keep() ? 1 : 0;
      fake::FakeRegistrar fake;
      const Pool was_there(fake);
      was_there.use(map_pages(1), kPage);
      said[1] = static_cast<int64_t>(fake.live_count());
      const std::string page(static_cast<const char*>(at(libc_function("madvise"))), 16);
      code.assign(page.begin(), page.end());
      patch_as_open_mpi("madvise", reinterpret_cast<uintptr_t>(bare_madvise));
      for (int i = 0; i < 500 && may_keep(); ++i) usleep(20000);
      said[2] = may_keep() ? 1 : 0;
      was_there.use(map_pages(1), kPage);
      said[3] = static_cast<int64_t>(fake.live_count());
    }
    write_code(libc_function("madvise"), code);
    const Library library(settings);
    said[4] = library.status == PINRAIL_SUCCESS && may_keep() ? 1 : 0;
    return said;
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 1, 0, 0, 1})) << "what was kept before is given back";
}

TEST(PatcherLibrary, a_miss_is_when_a_patch_over_ours_is_found) {
  const ChildAnswer answer = answer_of([] {
    const Library library(Settings{{"monitor", "patcher"}, {"monitor_patcher_check_interval", "3600000"}});
    fake::FakeRegistrar fake;
    const Pool pool(fake);
    const uintptr_t base = map_pages(2);
    pool.use(base, kPage);
    const bool asleep = await_sleeping_monitor();
    patch_as_open_mpi("munmap", reinterpret_cast<uintptr_t>(bare_munmap));
    const int64_t before = pool.has(base, kPage) ? 1 : 0;
    usleep(1000);  // not every miss looks, if the last one did
    pool.use(base + kPage, kPage);
    const int64_t given_up = pool.has(base, kPage) ? 0 : 1;
    munmap(at(base + kPage), kPage);
    return ChildAnswer{library.status, asleep ? 1 : 0, before, given_up, pool.has(base + kPage, kPage) ? 0 : 1};
  });
  EXPECT_EQ(answer, (ChildAnswer{PINRAIL_SUCCESS, 1, 1, 1, 1}));
}

// Which kinds of memory a pool keeps registered: private memory, heap, shared memory, a file. 77: there is none (musl's
// sbrk() moves nothing).
ChildAnswer kinds_kept(const char* unpatchable, int number) {
  const auto heap = (reinterpret_cast<uintptr_t>(sbrk(2 * kPage)) + kPage - 1) / kPage * kPage;
  if (number >= 0) make_unpatchable(unpatchable, number);
  const Library library(Settings{{"monitor", "patcher"}});
  fake::FakeRegistrar fake;
  const Pool pool(fake, {PINRAIL_UNSET});
  const auto keeps = [&](uintptr_t base) -> int64_t {
    pinrail_handle_t handle{};
    if (pool.reg(base, kPage, &handle) != PINRAIL_SUCCESS) return 77;
    pinrail_mpool_deregister(handle);
    return pool.has(base, kPage) ? 1 : 0;
  };
  const int file = static_cast<int>(syscall(SYS_memfd_create, "kinds", 0));
  if (ftruncate(file, kPage) != 0) return {77};
  const auto map = [](int flags, int fd) {
    return reinterpret_cast<uintptr_t>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, flags, fd, 0));
  };
  return {library.status,
          keeps(map_pages(1)),
          keeps(heap),
          keeps(map(MAP_SHARED | MAP_ANONYMOUS, -1)),
          keeps(map(MAP_SHARED, file)),
          keeps(map(MAP_PRIVATE, file))};
}

TEST(PatcherLibrary, with_a_function_that_cannot_be_patched_only_what_it_can_hit_is_not_kept) {
  const struct {
    const char* name;
    int number;
    ChildAnswer kept;
  } functions[] = {{"truncate", -1, {PINRAIL_SUCCESS, 1, 1, 1, 1, 1}},  // as it is
                   {"munmap", SYS_munmap, {PINRAIL_SUCCESS, 0, 0, 0, 0, 0}},
                   {"fallocate", SYS_fallocate, {PINRAIL_SUCCESS, 1, 1, 1, 0, 0}},
                   {"brk", SYS_brk, {PINRAIL_SUCCESS, 1, 0, 1, 1, 1}}};
  for (const auto& function : functions) {
    ChildAnswer answer{};
    ASSERT_TRUE(in_child([&] { return kinds_kept(function.name, function.number); }, &answer)) << function.name;
#ifndef __GLIBC__
    answer[2] = answer[2] == 77 ? function.kept[2] : answer[2];
    EXPECT_EQ(std::exchange(answer[4], function.kept[4]) + std::exchange(answer[5], function.kept[5]), 0) << "of files";
#endif
    EXPECT_EQ(answer, function.kept) << function.name;
  }
}
#endif

}  // namespace
}  // namespace pinrail::test
