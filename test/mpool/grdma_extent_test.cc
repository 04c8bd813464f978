// SPDX-License-Identifier: BSD-3-Clause
// mpool_grdma_extent: what a miss registers beside what was asked for, what it leaves alone, and what it learns. Real
// memory, a fake registrar.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <map>
#include <thread>

#include "test/support/library.h"

namespace pinrail::test {
namespace {

constexpr size_t kWindow = 2 << 20;

// Windows of anonymous memory, at a multiple of a window, with nothing mapped on either side.
class Memory {
 public:
  explicit Memory(size_t windows, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1) : length_(windows * kWindow) {
    around_ = mmap(nullptr, length_ + 3 * kWindow, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    EXPECT_NE(around_, MAP_FAILED);
    base = (reinterpret_cast<uintptr_t>(around_) + 2 * kWindow - 1) & ~(kWindow - 1);
    EXPECT_EQ(mmap(at(0), length_, PROT_READ | PROT_WRITE, flags | MAP_FIXED, file, 0), at(0));
    madvise(at(0), length_, MADV_NOHUGEPAGE);
  }
  ~Memory() {
    report(reinterpret_cast<uintptr_t>(around_), length_ + 3 * kWindow);
    munmap(around_, length_ + 3 * kWindow);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  char* at(size_t offset) const { return reinterpret_cast<char*>(base + offset); }
  void touch(size_t offset, size_t length) const { std::memset(at(offset), 1, length); }
  void touch_all() const { touch(0, length_); }
  size_t resident() const {
    std::vector<unsigned char> pages(length_ / kPage);
    EXPECT_EQ(mincore(at(0), length_, pages.data()), 0);
    size_t count = 0;
    for (const unsigned char page : pages) count += page & 1;
    return count;
  }

  uintptr_t base;

 private:
  void* around_;
  const size_t length_;
};

struct TouchedMemory : Memory {
  explicit TouchedMemory(size_t windows) : Memory(windows) { touch_all(); }
};

class GrdmaExtent : public OnePool<Pool> {
 protected:
  void SetUp() override { make({{"mpool_grdma_extent", "2M"}}); }
  // What is registered for a request of one page there, which is dropped again.
  Span registered(uintptr_t base, size_t length = kPage, uint32_t flags = 0) {
    const pinrail_handle_t handle = pool_->must(base, length, 1, flags);
    const Span span = Span::of(handle.reg->base, handle.reg->length);
    EXPECT_TRUE(span.contains(Span::of(base, length)));
    drop(handle);
    return span;
  }
  static void expect_exact(const Span& span, uintptr_t base, size_t length = kPage) {
    EXPECT_EQ(span.base, base);
    EXPECT_EQ(span.length(), length);
  }
};

TEST_F(GrdmaExtent, a_miss_registers_its_window_of_touched_pages_and_later_requests_hit_that) {
  const TouchedMemory memory(3);
  const Span whole = registered(memory.base + kWindow + 5 * kPage);
  expect_exact(whole, memory.base + kWindow, kWindow);
  for (size_t page = 0; page < kWindow / kPage; ++page) pool_->use(memory.base + kWindow + page * kPage, kPage);
  EXPECT_EQ(device_->register_calls(), 1u);
  EXPECT_EQ(pool_->stats().extent_hits + 1, kWindow / kPage - 1)
      << "the first page of the window is found by its start";
  EXPECT_EQ(pool_->stats().extent_lost, 0u);
}

// The program reports memory before it goes, and no monitor reports it again afterwards.
TEST_F(GrdmaExtent, memory_that_was_reported_and_is_still_there_is_not_registered_with_its_neighbour) {
  const TouchedMemory memory(2);
  const uintptr_t neighbour = memory.base + 16 * kPage;
  report(memory.base, 16 * kPage);
  expect_exact(registered(neighbour), neighbour);
  EXPECT_FALSE(pool_->has(memory.base, kPage)) << "no event will end it";
  expect_exact(registered(memory.base + kWindow), memory.base + kWindow, kWindow);
}

TEST_F(GrdmaExtent, a_request_over_two_windows_is_registered_over_both) {
  const TouchedMemory memory(3);
  expect_exact(registered(memory.base + kWindow - kPage, 2 * kPage), memory.base, 2 * kWindow);
}

TEST_F(GrdmaExtent, pages_that_were_not_touched_end_it_and_stay_untouched) {
  const Memory memory(1);
  memory.touch(10 * kPage, 5 * kPage);
  memory.touch(100 * kPage, kPage);
  expect_exact(registered(memory.base + 12 * kPage), memory.base + 10 * kPage, 5 * kPage);
  expect_exact(registered(memory.base + 100 * kPage), memory.base + 100 * kPage);
  EXPECT_EQ(memory.resident(), 6u);
}

// What the kernel says of the page.
uint64_t entry_of(const char* page) {
  const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  uint64_t entry = 0;
  const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(page) / kPage * sizeof(entry));
  EXPECT_EQ(pread(file, &entry, sizeof(entry), at), static_cast<ssize_t>(sizeof(entry)));
  close(file);
  return entry;
}
// Whether it is mapped by this process alone, which the zero page is not.
bool is_the_process_own(const char* page) { return (entry_of(page) >> 56 & 1) != 0; }

// A pin that may write would replace the zero page, and so the process would grow.
TEST_F(GrdmaExtent, pages_that_were_only_read_are_left_out) {
  const Memory memory(1);
  memory.touch(20 * kPage, kPage);
  volatile char sum = 0;
  for (size_t page = 0; page < 40; ++page) sum = static_cast<char>(sum + *memory.at(page * kPage));
  if (is_the_process_own(memory.at(0)))
    GTEST_SKIP() << "this kernel has no zero page: what is read gets a page of its own";
  expect_exact(registered(memory.base + 20 * kPage), memory.base + 20 * kPage);
}

// A pin that may write would copy them.
TEST_F(GrdmaExtent, pages_that_are_shared_with_a_forked_child_are_left_out) {
  const TouchedMemory memory(1);
  pool_->use(memory.base, kPage);  // the kernel was asked before
  make_pool();
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  expect_exact(registered(memory.base + 20 * kPage), memory.base + 20 * kPage);
  memory.touch(50 * kPage, 3 * kPage);  // the parent's own again
  expect_exact(registered(memory.base + 51 * kPage), memory.base + 50 * kPage, 3 * kPage);
  kill(child, SIGKILL);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
}

// A pin that may write would wait until the program permits it.
TEST_F(GrdmaExtent, pages_that_the_program_has_write_protected_by_a_userfaultfd_are_left_out) {
  constexpr uint64_t kWriteProtect = 1;  // UFFD_FEATURE_PAGEFAULT_FLAG_WP
  constexpr int kUserModeOnly = 1;       // UFFD_USER_MODE_ONLY
  const TouchedMemory memory(1);
  const auto file = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | kUserModeOnly));
  uffdio_api api{UFFD_API, kWriteProtect, 0};
  uffdio_register whole{{memory.base, kWindow}, UFFDIO_REGISTER_MODE_WP, 0};
  uffdio_writeprotect part{{memory.base + 10 * kPage, 4 * kPage}, UFFDIO_WRITEPROTECT_MODE_WP};
  if (ioctl(file, UFFDIO_API, &api) != 0 || ioctl(file, UFFDIO_REGISTER, &whole) != 0) GTEST_SKIP() << "none here";
  ASSERT_EQ(ioctl(file, UFFDIO_WRITEPROTECT, &part), 0);
  if ((entry_of(memory.at(10 * kPage)) >> 57 & 1) == 0) GTEST_SKIP() << "this kernel's page map does not tell";
  expect_exact(registered(memory.base + 20 * kPage), memory.base + 14 * kPage, kWindow - 14 * kPage);
  close(file);
}

TEST_F(GrdmaExtent, it_ends_at_the_ends_of_the_mapping) {
  const TouchedMemory memory(1);
  ASSERT_EQ(mprotect(memory.at(10 * kPage), kPage, PROT_NONE), 0);  // a guard page
  ASSERT_EQ(mprotect(memory.at(30 * kPage), kPage, PROT_READ), 0);
  expect_exact(registered(memory.base + 20 * kPage), memory.base + 11 * kPage, 19 * kPage);
  EXPECT_EQ(munmap(memory.at(40 * kPage), kPage), 0);
  make_pool();
  expect_exact(registered(memory.base + 35 * kPage), memory.base + 31 * kPage, 9 * kPage);
}

TEST_F(GrdmaExtent, mappings_of_files_are_registered_as_asked_for) {
  const int file = memfd_create("extent", 0);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, kWindow), 0);
  // Anonymous memory within whose window a mapping of a file begins.
  const Memory memory(1);
  ASSERT_NE(mmap(memory.at(30 * kPage), 10 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, 0),
            MAP_FAILED);
  memory.touch_all();
  expect_exact(registered(memory.base + 20 * kPage), memory.base, 30 * kPage);
  for (const int flags : {MAP_PRIVATE, MAP_SHARED}) {
    const Memory of_file(1, flags, file);
    of_file.touch_all();
    expect_exact(registered(of_file.base + 20 * kPage), of_file.base + 20 * kPage);
  }
  close(file);
}

TEST_F(GrdmaExtent, a_stack_is_registered_in_its_own_touched_pages) {
  std::thread([&] {
    char buffer[4 * kPage];
    std::memset(buffer, 1, sizeof(buffer));
    const uintptr_t page = reinterpret_cast<uintptr_t>(buffer + kPage) & ~(kPage - 1);
    const Span span = registered(page);
    EXPECT_LE(span.length(), kWindow);
    unsigned char pages[kWindow / kPage];
    EXPECT_EQ(mincore(reinterpret_cast<void*>(span.base), span.length(), pages), 0) << "no hole and no guard page";
    for (size_t i = 0; i < span.length() / kPage; ++i) EXPECT_NE(pages[i] & 1, 0);
    report(span.base, span.length());
  }).join();
}

TEST_F(GrdmaExtent, exact_pools_and_own_pins_and_what_bypasses_are_registered_as_asked_for) {
  const TouchedMemory memory(1);
  const uintptr_t base = memory.base + 20 * kPage;
  make_pool({}, {1, PINRAIL_UNSET, PINRAIL_UNSET, PINRAIL_POOL_EXACT});
  expect_exact(registered(base), base);
  make_pool();
  expect_exact(registered(base, kPage, PINRAIL_FLAG_PERSISTENT), base);
  expect_exact(registered(base, kPage, PINRAIL_FLAG_CACHE_BYPASS), base);
  make_pool({}, not_kept());
  expect_exact(registered(base), base);
}

// A lock of the process makes madvise() fail on pages that the program asked nothing for, and is not taken away from
// those that are there still when an event has ended the registration.
TEST_F(GrdmaExtent, locks_of_the_process_are_registered_as_asked_for) {
  const TouchedMemory memory(1);
  pinrail_registrar_t table = *device_->table();
  table.pins_nothing = 1;  // as registrar mlock says
  pool_ = std::make_unique<Pool>(table);
  expect_exact(registered(memory.base + 20 * kPage), memory.base + 20 * kPage);
  expect_nothing_is_left();
}

// R8: what is added counts as registered; so under a limit that refuses, a request could fail for it.
TEST_F(GrdmaExtent, under_a_limit_that_refuses_ranges_are_registered_as_asked_for) {
  const TouchedMemory memory(4);
  make_pool({}, at_most_bytes(4 * kWindow));
  for (size_t i = 0; i < 4; ++i) pool_->must(memory.base + i * kWindow, kPage);
  EXPECT_EQ(pool_->stats().registered_bytes, 4 * kPage) << "though there is room for more";
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
}

// Monitor patcher reports events afterwards, too: windows go on where there were any.
class GrdmaExtentAfterEvents : public GrdmaExtent {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "its allocator's events are not seen by patcher";
#endif
    make({{"mpool_grdma_extent", "2M"}, {"monitor", "patcher"}});
    if (pinrail_monitors_at_work()[0] == 0) GTEST_SKIP() << "monitor patcher does not work here";
  }
};

// After 16 that were of no use the pool registers what is asked for, 4,096 times, and then tries four more.
TEST_F(GrdmaExtentAfterEvents, an_event_in_the_unused_part_ends_it_and_when_that_was_often_of_no_use_windows_rest) {
  const TouchedMemory memory(2);
  const uintptr_t base = memory.base + 256 * kPage;
  const auto lengths = [&](size_t misses) {
    std::map<size_t, size_t> counts;
    for (size_t i = 0; i < misses; ++i) {
      const Span span = registered(base);
      ++counts[span.length()];
      report(span.end - kPage, kPage);
      EXPECT_FALSE(pool_->has(base, kPage));
    }
    return counts;
  };
  using Counts = std::map<size_t, size_t>;
  EXPECT_EQ(lengths(16), (Counts{{kWindow, 16}}));
  EXPECT_EQ(lengths(4095), (Counts{{kPage, 4095}}));
  EXPECT_EQ(registered(base + kWindow).length(), kPage) << "not elsewhere either";
  EXPECT_EQ(lengths(5), (Counts{{kWindow, 4}, {kPage, 1}}));
  EXPECT_EQ(pool_->stats().extent_lost, 20u);
}

TEST_F(GrdmaExtentAfterEvents, windows_that_were_of_use_do_not_rest) {
  const TouchedMemory memory(1);
  const uintptr_t base = memory.base + 256 * kPage;
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(registered(base).length(), kWindow);
    for (size_t page = 1; page <= 20; ++page) pool_->use(base + page * kPage, kPage);
    report(memory.base, kPage);
  }
  EXPECT_EQ(pool_->stats().extent_lost, 0u);
}

// R13: an event in what was added makes the next try exact, and costs no other.
TEST_F(GrdmaExtent, an_event_in_the_wider_part_while_the_registrar_runs_makes_the_next_try_exact) {
  const TouchedMemory memory(1);
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) { report(memory.base, kPage); });
  const uintptr_t base = memory.base + 256 * kPage;
  expect_exact(registered(base), base);
  EXPECT_EQ(device_->register_calls(), 2u);
  EXPECT_EQ(pool_->stats().races, 1u);
  EXPECT_TRUE(pool_->has(base, kPage));
}

TEST_F(GrdmaExtent, what_the_device_refuses_of_it_is_registered_as_asked_for_and_not_tried_again_there) {
  const TouchedMemory memory(2);
  device_->fail_register(1, PINRAIL_ERR_PERM);
  const uintptr_t base = memory.base + 100 * kPage;
  expect_exact(registered(base), base);
  EXPECT_EQ(device_->register_calls(), 2u) << "one refused call";
  report(base, kPage);
  EXPECT_EQ(registered(memory.base + kWindow).length(), kWindow) << "elsewhere";
}

TEST_F(GrdmaExtent, a_device_without_room_for_it_evicts_nothing_for_it) {
  const TouchedMemory memory(3);
  device_->set_capacity(kWindow + 2 * kPage, SIZE_MAX);
  EXPECT_EQ(registered(memory.base).length(), kWindow);
  expect_exact(registered(memory.base + kWindow), memory.base + kWindow);
  expect_exact(registered(memory.base + 2 * kWindow), memory.base + 2 * kWindow);
  EXPECT_EQ(pool_->stats().evictions, 0u);
  EXPECT_EQ(device_->register_calls(), 4u) << "the device's answer holds for the pool";
}

// R5.
TEST_F(GrdmaExtent, a_request_inside_of_what_is_being_registered_waits_for_it) {
  const TouchedMemory memory(1);
  std::thread other;
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    other = std::thread([&] { pool_->use(memory.base + 300 * kPage, kPage); });
    usleep(50000);
  });
  pool_->use(memory.base, kPage);
  other.join();
  EXPECT_EQ(device_->register_calls(), 1u);
}

}  // namespace
}  // namespace pinrail::test
