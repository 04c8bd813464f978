// SPDX-License-Identifier: BSD-3-Clause
// mpool_grdma_check: a hit for which the device sees other memory than the process is named and not served
// (hit_check/W1, hit_check/W2).
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "base/patch/system_call.h"
#include "test/support/files.h"
#include "test/support/library.h"
#include "test/support/memory.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kLength = 64 * kPage;

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

// A device that pins nothing and sees the memory of the process, but for one byte at that address.
std::atomic<uintptr_t> wrong_byte{0};
// As by a program that writes between the looks of both sides.
unsigned char* written = nullptr;

pinrail_status_t read_memory(void*, const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  if (written != nullptr) ++*written;
  const iovec local = {into, length}, remote = {static_cast<char*>(reg->base) + offset, length};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != static_cast<ssize_t>(length)) return PINRAIL_ERR_ERROR;
  const size_t at = wrong_byte - address(reg->base) - offset;
  if (at < length) static_cast<char*>(into)[at] ^= 1;
  return PINRAIL_SUCCESS;
}

class HitCheck : public testing::Test {
 protected:
  HitCheck() {
    table_.pins_nothing = 1;
    table_.device_read = read_memory;
  }
  void SetUp() override {
    wrong_byte = 0;
    written = nullptr;
    testing::internal::CaptureStderr();
    start();
  }
  // Another pool. What was said before is forgotten.
  void start(const Settings& settings = {{"mpool_grdma_check", "all"}}) {
    pool_.reset();
    library_.reset();
    said();
    testing::internal::CaptureStderr();
    library_ = std::make_unique<Library>(settings);
    pool_ = std::make_unique<Pool>(table_);
  }
  static std::string said() { return testing::internal::GetCapturedStderr(); }

  fake::FakeRegistrar fake_;
  pinrail_registrar_t table_ = *fake_.table();
  const Mapping memory_{kLength};
  const uintptr_t base_ = address(memory_.base());
  std::unique_ptr<Library> library_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(HitCheck, by_default_nothing_is_compared_and_hits_are_remembered) {
  start({});
  pool_->use(base_, kLength);
  wrong_byte = base_;
  for (int i = 0; i < 3; ++i) pool_->use(base_, kLength);
  EXPECT_EQ(pool_->stats().hits, 3u);
  EXPECT_EQ(pool_->get()->check, nullptr);
  EXPECT_EQ(said(), "");
}

TEST_F(HitCheck, a_hit_that_differs_is_named_with_its_life_and_is_registered_anew) {
  const pinrail_handle_t before = pool_->must(base_, kLength);
  drop(before);
  wrong_byte = base_ + kLength - 1;
  const pinrail_handle_t after = pool_->must(base_, kLength);
  EXPECT_FALSE(before.reg == after.reg && before.generation == after.generation);
  drop(after);
  EXPECT_EQ(fake_.register_calls(), 2u);
  EXPECT_EQ(pool_->stats().invalidations, 1u);
  EXPECT_EQ(pool_->stats().misses_event, 1u);
  const std::string text = said();
  EXPECT_TRUE(has(text, "the byte at ")) << text;
  EXPECT_TRUE(has(text, " s ago: miss [")) << text;
  EXPECT_EQ(times(text, "What happened  "), 1u) << text;
}

#if PINRAIL_CAN_PATCH
TEST_F(HitCheck, other_memory_that_a_difference_shows_is_judged_anew) {
  start({{"mpool_grdma_check", "all"}, {"monitor", "patcher"}, {"monitor_strict", "yes"}});
  pool_->use(base_, kLength);
  ASSERT_EQ(pool_->stats().uncovered, 0u);
  const auto mapped = static_cast<uintptr_t>(patch::system_call_hook(SYS_mmap, base_, kLength, PROT_READ | PROT_WRITE,
                                                                     MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
  ASSERT_EQ(mapped, base_);
  wrong_byte = base_;
  pool_->use(base_, kLength);
  EXPECT_EQ(pool_->stats().uncovered, 1u);
  EXPECT_TRUE(has(said(), "the byte at "));
}
#endif

TEST_F(HitCheck, at_its_end_a_pool_says_how_many_hits_were_compared) {
  for (int i = 0; i < 4; ++i) pool_->use(base_, kLength);
  wrong_byte = base_;
  pool_->use(base_, kLength);
  const Mapping unreadable(kPage);
  wrong_byte = 0;
  pool_->use(address(unreadable.base()), kPage);
  ASSERT_EQ(mprotect(unreadable.base(), kPage, PROT_NONE), 0);
  pool_->use(address(unreadable.base()), kPage);
  pool_.reset();
  const std::string text = said();
  EXPECT_TRUE(has(text, "4 hits were compared with what the device sees, and 1 differed")) << text;
}

TEST_F(HitCheck, memory_that_the_process_cannot_read_is_not_judged) {
  table_.device_read = [](void*, const pinrail_registration_t*, size_t, void* into, size_t length) {
    std::memset(into, 1, length);
    return PINRAIL_SUCCESS;
  };
  start();
  pool_->use(base_, kPage);
  ASSERT_EQ(mprotect(memory_.base(), kPage, PROT_NONE), 0);
  pool_->use(base_, kPage);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_EQ(said(), "");
}

TEST_F(HitCheck, a_find_that_differs_finds_nothing) {
  pool_->use(base_, kLength);
  EXPECT_TRUE(pool_->has(base_, kLength));
  wrong_byte = base_ + 77;
  EXPECT_FALSE(pool_->has(base_, kLength));
  EXPECT_TRUE(has(said(), "the byte at "));
}

TEST_F(HitCheck, a_part_that_was_not_asked_for_is_not_compared) {
  pool_->use(base_, kLength);
  wrong_byte = base_ + 10 * kPage;
  pool_->use(base_ + kPage, 9 * kPage);
  EXPECT_EQ(said(), "");
}

TEST_F(HitCheck, a_sample_finds_a_difference_after_some_hits) {
  start({{"mpool_grdma_check", "sample"}});
  pool_->use(base_, kPage);
  wrong_byte = base_ + 100;
  for (int i = 0; i < 5000 && fake_.register_calls() == 1; ++i) pool_->use(base_, kPage);
  EXPECT_GT(fake_.register_calls(), 1u);
  EXPECT_TRUE(has(said(), "the byte at "));
}

TEST_F(HitCheck, the_message_comes_once_a_second) {
  pool_->use(base_, kPage);
  wrong_byte = base_;
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 6; ++i) pool_->use(base_, kPage);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - begin);
  EXPECT_EQ(fake_.register_calls(), 7u);
  EXPECT_LE(times(said(), "What happened  "), static_cast<size_t>(seconds.count()) + 2);
}

TEST_F(HitCheck, a_byte_that_is_written_between_the_looks_is_no_difference) {
  pool_->use(base_, kPage);
  written = memory_.base() + 9;
  for (int i = 0; i < 3; ++i) pool_->use(base_, kPage);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_EQ(said(), "");
}

TEST_F(HitCheck, a_check_that_can_compare_nothing_says_so) {
  table_.device_read = nullptr;
  start();
  for (int i = 0; i < 3; ++i) pool_->use(base_, kPage);
  EXPECT_EQ(fake_.register_calls(), 1u);
  EXPECT_TRUE(has(said(), "has no device_read"));
}

TEST_F(HitCheck, threads_that_hit_and_events_at_once_are_no_difference) {
  on_threads(4, [&](int i) {
    for (int round = 0; round < 500; ++round) {
      pool_->use(base_, 3 * kPage);
      if (round % 16 == i) report(base_, kPage);
    }
  });
  EXPECT_EQ(said(), "");
}

// Over a device that pins.
class PinnedHitCheck : public testing::Test {
 protected:
  struct Seen {
    bool is_skipped, is_named_by_frame, is_named_by_byte, is_right_after;
    uint64_t device_calls;
  };

  // Drops the right to see page frames, which is asked for when Pinrail starts.
  static bool hide_frames() {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    if (syscall(SYS_capget, &header, data) != 0) return false;
    data[0].effective &= ~(1u << CAP_SYS_ADMIN);
    data[0].permitted &= ~(1u << CAP_SYS_ADMIN);
    return syscall(SYS_capset, &header, data) == 0;
  }

  // The memory is mapped again without a report, and written.
  static Seen leave_a_report_out(const char* check) {
    Seen seen{};
    const Library library(Settings{{"mpool_grdma_check", check}});
    pinrail_registrar_choice_t device{};
    device.name = "iouring";
    const Pool pool(device, {}, "grdma", PINRAIL_ACCESS_REMOTE_READ);
    if (pool.status != PINRAIL_SUCCESS) return {true, false, false, false, 0};
    const Mapping memory(kLength);
    memory.fill(1);
    testing::internal::CaptureStderr();
    pool.use(address(memory.base()), kLength);
    pool.use(address(memory.base()), kLength);
    EXPECT_EQ(pool.stats().misses, 1u) << "nothing has happened yet";
    memory.map_again();
    memory.fill(2);
    const pinrail_handle_t handle = pool.must(address(memory.base()), kLength);
    std::vector<unsigned char> bytes(kLength);
    EXPECT_EQ(pinrail_mpool_device_read(handle, 0, bytes.data(), kLength), PINRAIL_SUCCESS);
    seen.is_right_after = bytes == stamped(2, 0, kLength);
    drop(handle);
    seen.device_calls = pool.stats().misses;
    const std::string text = testing::internal::GetCapturedStderr();
    seen.is_named_by_frame = has(text, "page frame 0x") && has(text, "external");
    seen.is_named_by_byte = has(text, "the byte at 0x") && has(text, "external");
    return seen;
  }
  static ChildAnswer answer_of(const Seen& seen) {
    return {seen.is_skipped, seen.is_named_by_frame, seen.is_named_by_byte, seen.is_right_after,
            static_cast<int64_t>(seen.device_calls)};
  }
  // Whether the kernel shows this process page frames.
  static bool sees_frames() {
    __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[2] = {};
    return syscall(SYS_capget, &header, data) == 0 && (data[0].effective & 1u << CAP_SYS_ADMIN) != 0;
  }
};

TEST_F(PinnedHitCheck, a_report_that_was_left_out_is_named_by_its_page_frames) {
  if (!may_lock(kLength)) GTEST_SKIP() << "this user may not pin enough (ulimit -l)";
  if (!sees_frames()) GTEST_SKIP() << "this user may not see page frames (CAP_SYS_ADMIN)";
  for (const char* check : {"sample", "all"}) {
    const Seen seen = leave_a_report_out(check);
    if (seen.is_skipped) GTEST_SKIP() << "no io_uring here";
    EXPECT_EQ(answer_of(seen), (ChildAnswer{0, 1, 0, 1, 2})) << check;
  }
}

TEST_F(PinnedHitCheck, and_by_its_bytes_where_page_frames_are_hidden) {
  if (!may_lock(kLength)) GTEST_SKIP() << "this user may not pin enough (ulimit -l)";
  for (const char* check : {"sample", "all"}) {
    ChildAnswer answer{};
    ASSERT_TRUE(
        in_child([check] { return hide_frames() ? answer_of(leave_a_report_out(check)) : ChildAnswer{1}; }, &answer));
    if (answer[0] != 0) GTEST_SKIP() << "no io_uring here";
    EXPECT_EQ(answer, (ChildAnswer{0, 0, 1, 1, 2})) << check;
  }
}

TEST_F(PinnedHitCheck, without_the_check_the_wrong_bytes_are_served) {
  if (!may_lock(kLength)) GTEST_SKIP() << "this user may not pin enough (ulimit -l)";
  const Seen seen = leave_a_report_out("off");
  if (seen.is_skipped) GTEST_SKIP() << "no io_uring here";
  EXPECT_EQ(answer_of(seen), (ChildAnswer{0, 0, 0, 0, 1})) << "the case must be one that the check has to find";
}

}  // namespace
}  // namespace pinrail::test
