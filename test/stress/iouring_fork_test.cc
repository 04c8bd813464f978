// SPDX-License-Identifier: BSD-3-Clause
// F1 over real pins: the child ends what it inherited, and the parent's device goes on; each sees its own bytes.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include "test/support/library.h"
#include "test/support/memory.h"
#include "test/support/process.h"

namespace pinrail::test {
namespace {

constexpr size_t kLength = size_t{1} << 20;
constexpr unsigned kPatienceSeconds = 300;

// test/verbs/rdma_fork is the same over an RDMA device.
#ifndef PINRAIL_TEST_REGISTRARS
#define PINRAIL_TEST_DEVICE "iouring"
#define PINRAIL_TEST_REGISTRARS "iouring", "mlock"
#endif

// As the library is by itself: with a thread, and with pages beside those that are asked for.
const Settings kUsual = {{"mpool_grdma_gc_thread", "auto"}, {"mpool_grdma_extent", "2M"}};

pinrail_handle_t take(const Pool& pool, const Mapping& memory) {
  constexpr uint32_t kBothWays = PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE;
  return pool.must(reinterpret_cast<uintptr_t>(memory.base()), memory.length(), kBothWays);
}

// The device sees what the processor wrote last, and the processor what the device did. The registration may begin
// below the memory.
int agrees(pinrail_handle_t handle, const Mapping& memory, uint64_t seed) {
  const size_t offset = memory.base() - static_cast<unsigned char*>(handle.reg->base);
  memory.fill(seed);
  std::vector<unsigned char> seen(kLength);
  STEP(41, pinrail_mpool_device_read(handle, offset, seen.data(), kLength) == PINRAIL_SUCCESS);
  STEP(42, seen == stamped(seed, 0, kLength));
  const std::vector<unsigned char> sent = stamped(seed + 1, 0, kLength);
  STEP(43, pinrail_mpool_device_write(handle, offset, sent.data(), kLength) == PINRAIL_SUCCESS);
  STEP(44, std::memcmp(memory.base(), sent.data(), kLength) == 0);
  return 0;
}

// A child that waits before it ends, so that the parent's pages are shared with it until then.
class Child {
 public:
  explicit Child(const std::function<int()>& life) {
    if (pipe(done_) != 0 || pipe(leave_) != 0) std::abort();
    pid_ = fork();
    if (pid_ != 0) return;
    alarm(kPatienceSeconds);
    int wrong = life();
    char byte = 0;
    if (write(done_[1], &byte, 1) != 1 || read(leave_[0], &byte, 1) != 1) wrong = 90;
    exit(wrong);
  }
  void wait_until_done() const {
    char byte;
    close(done_[1]);
    EXPECT_EQ(read(done_[0], &byte, 1), 1);
  }
  int end() const {
    const char byte = 0;
    EXPECT_EQ(write(leave_[1], &byte, 1), 1);
    int how = -1;
    EXPECT_EQ(waitpid(pid_, &how, 0), pid_);
    for (const int each : {done_[0], leave_[0], leave_[1]}) close(each);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -how;
  }

 private:
  int done_[2], leave_[2];
  pid_t pid_;
};

// Everything that a child may do with what it inherited, and a life of its own.
int end_what_was_inherited(pinrail_mpool_t* pool, pinrail_handle_t handle, const Mapping& memory) {
  STEP(1, pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS);
  STEP(2, pinrail_mpool_destroy(pool, PINRAIL_DESTROY_FORCE) == PINRAIL_SUCCESS);
  STEP(3, pinrail_finalize() == PINRAIL_SUCCESS);
  memory.map_again();
  STEP(4, vm_pin_bytes() == 0 && vm_lck_bytes() == 0);
  return 0;
}

int use_again(const char* registrar, size_t* pinned_after) {
  const Library library(kUsual);
  STEP(11, library.status == PINRAIL_SUCCESS);
  Pool pool(named(registrar));
  STEP(12, pool.status == PINRAIL_SUCCESS);
  const Mapping memory(kLength);
  memory.fill(1);
  const pinrail_handle_t handle = take(pool, memory);
  *pinned_after = vm_pin_bytes() + vm_lck_bytes();
  if (std::strcmp(registrar, PINRAIL_TEST_DEVICE) == 0) {
    const int wrong = agrees(handle, memory, 71);
    STEP(wrong, wrong == 0);
  }
  STEP(13, pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS);
  STEP(14, pool.close() == PINRAIL_SUCCESS);
  return 0;
}

int live_again(const char* registrar, size_t* pinned_after) {
  const int wrong = use_again(registrar, pinned_after);
  STEP(wrong, wrong == 0);
  STEP(15, !testing::Test::HasFailure());
  STEP(16, vm_lck_bytes() == 0);
  return 0;
}

// Descriptors and mappings of io_urings that this process has.
int count_rings() {
  int count = 0;
  for (int file = 3; file < 2048; ++file) count += file_behind(file).find("io_uring") != std::string::npos ? 1 : 0;
  std::ifstream list("/proc/self/maps");
  for (std::string line; std::getline(list, line);) count += line.find("io_uring") != std::string::npos ? 1 : 0;
  return count;
}

// F1: what keeps a ring keeps what is pinned in it, also when the parent is gone.
TEST(RealForkOfRings, a_child_inherits_no_ring) {
  if (std::strcmp(PINRAIL_TEST_DEVICE, "iouring") != 0) GTEST_SKIP() << "another device";
  const Library library(kUsual);
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  Pool pool(named("iouring"));
  if (pool.status != PINRAIL_SUCCESS) GTEST_SKIP() << "no io_uring here";
  const Mapping memory(kLength);
  const pinrail_handle_t handle = take(pool, memory);
  EXPECT_GT(count_rings(), 0);
  EXPECT_EQ(exit_status_of(count_rings), 0) << "descriptors and mappings of rings that the child has";
  EXPECT_EQ(agrees(handle, memory, 5), 0) << "the parent goes on";
  drop(handle);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

class RealFork : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(library_.status, PINRAIL_SUCCESS);
    if (pool_.status != PINRAIL_SUCCESS) GTEST_SKIP() << GetParam() << " does not work here";
    memory_.fill(3);
    handle_ = take(pool_, memory_);
    check_device(1);  // a device's own buffer for transfers may be pinned with the first one
    held_ = vm_pin_bytes() + vm_lck_bytes();
    ASSERT_GE(held_, kLength);
  }
  void TearDown() override {
    if (pool_.get() == nullptr) return;
    EXPECT_EQ(vm_pin_bytes() + vm_lck_bytes(), held_);
    check_device(5);
    drop(handle_);
    EXPECT_EQ(pool_.close(), PINRAIL_SUCCESS);
  }
  void check_device(uint64_t seed) const {
    if (!has_device()) return;
    EXPECT_EQ(agrees(handle_, memory_, seed), 0);
  }
  static bool has_device() { return std::strcmp(GetParam(), PINRAIL_TEST_DEVICE) == 0; }

  const Mapping memory_{kLength};
  const Library library_{kUsual};
  Pool pool_{named(GetParam())};
  pinrail_handle_t handle_{};
  size_t held_ = 0;
};

// Kernels that do not copy pinned pages at fork give the first writer, the parent, new pages: its device keeps the old.
class DeviceFork : public RealFork {};  // of registrars with a device that can look
TEST_P(DeviceFork, the_parent_writes_first_and_its_device_sees_it) {
  const Child child([] { return 0; });
  EXPECT_EQ(agrees(handle_, memory_, 7), 0);
  child.wait_until_done();
  EXPECT_EQ(agrees(handle_, memory_, 9), 0);
  EXPECT_EQ(child.end(), 0);
}

TEST_P(RealFork, the_child_begins_anew_with_pins_of_its_own) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer starts no threads in forked children, monitors need them";
#endif
  const Child child([this] {
    size_t pinned = 0;
    int wrong = live_again(GetParam(), &pinned);
    STEP(wrong, wrong == 0);
    STEP(31, pinned >= kLength);  // and pages beside it
    wrong = end_what_was_inherited(pool_.get(), handle_, memory_);
    STEP(wrong, wrong == 0);
    return live_again(GetParam(), &pinned);
  });
  check_device(13);
  child.wait_until_done();
  check_device(15);
  EXPECT_EQ(child.end(), 0);
}

INSTANTIATE_TEST_SUITE_P(Real, DeviceFork, ::testing::Values(PINRAIL_TEST_DEVICE));
INSTANTIATE_TEST_SUITE_P(Real, RealFork, ::testing::Values(PINRAIL_TEST_REGISTRARS),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace pinrail::test
