// SPDX-License-Identifier: BSD-3-Clause
// registrar/iouring, where the kernel refuses operations of a transfer, as it does without memory for them.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "test/conform/suite/registrar.h"
#include "test/support/process.h"

namespace {
int submissions = 0, first_refused = 0, last_refused = -1;
}  // namespace

// In place of liburing's, which the component has loaded for itself alone.
extern "C" __attribute__((visibility("default"))) int io_uring_submit(io_uring* ring) {
  static void* const library = dlopen("liburing.so.2", RTLD_NOW);
  static const auto original = reinterpret_cast<decltype(&io_uring_submit)>(dlsym(library, "io_uring_submit"));
  ++submissions;
  return submissions >= first_refused && submissions <= last_refused ? -EAGAIN : original(ring);
}

// How many buffers are refused, as they are where the limit is in use, and how many were asked for.
namespace {
int buffers_refused = 0, buffers = 0;
}  // namespace

extern "C" __attribute__((visibility("default"))) int io_uring_register_buffers_update_tag(io_uring* ring, unsigned at,
                                                                                           const iovec* vectors,
                                                                                           const __u64* tags,
                                                                                           unsigned count) {
  static void* const library = dlopen("liburing.so.2", RTLD_NOW);
  static const auto original = reinterpret_cast<decltype(&io_uring_register_buffers_update_tag)>(
      dlsym(library, "io_uring_register_buffers_update_tag"));
  ++buffers;
  return buffers_refused-- > 0 ? -ENOMEM : original(ring, at, vectors, tags, count);
}

namespace pinrail::test {
namespace {

class IouringFault : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!may_lock(kGranted)) GTEST_SKIP() << "this user may not pin enough (ulimit -l)";
    std::string why;
    if (!ComponentDevice::open("iouring", {}, nullptr, &device_, &why).ok())
      GTEST_SKIP() << "no io_uring here: " << why;
  }
  static void refuse(int first, int last) {
    submissions = 0;
    first_refused = first;
    last_refused = last;
  }
  static void refuse_none() { refuse(0, -1); }

  static constexpr size_t kTwoWindows = size_t{512} << 10;
  const Mapping mapping_{kTwoWindows};
  std::unique_ptr<Device> device_;
};

// What the kernel refused must not be done later, when other memory has the slot, or the bytes of the caller are gone.
// The transfer has two windows, with a submission each.
TEST_F(IouringFault, what_was_refused_never_runs) {
  for (const int refused : {1, 2}) {
    std::vector<char> bytes(kTwoWindows, 1), later(kTwoWindows);
    {
      Registration registration(device_->table());
      ASSERT_TRUE(registration.make(mapping_.base(), kTwoWindows).ok());
      refuse(refused, refused);
      EXPECT_FALSE(registration.device_write(0, bytes.data(), kTwoWindows).ok());
      refuse(refused, refused);
      EXPECT_FALSE(registration.device_read(0, bytes.data(), kTwoWindows).ok());
      refuse_none();
    }
    std::memset(mapping_.base(), 2, kTwoWindows);
    std::fill(bytes.begin(), bytes.end(), char{3});
    Registration registration(device_->table());
    ASSERT_TRUE(registration.make(mapping_.base(), kTwoWindows).ok());
    ASSERT_TRUE(registration.device_read(0, later.data(), kTwoWindows).ok());
    const std::vector<char> twos(kTwoWindows, 2), threes(kTwoWindows, 3);
    EXPECT_EQ(later, twos) << refused;
    EXPECT_EQ(std::memcmp(mapping_.base(), twos.data(), kTwoWindows), 0) << refused;
    EXPECT_EQ(bytes, threes) << refused;
  }
}

// The limit was in use at the start. Linux 6.4 and later unpin at once: a request that meets the limit need not wait.
TEST_F(IouringFault, a_start_at_the_limit_makes_no_later_request_wait) {
  utsname kernel{};
  int major = 0, minor = 0;
  if (uname(&kernel) != 0 || std::sscanf(kernel.release, "%d.%d", &major, &minor) != 2 || major * 100 + minor < 604)
    GTEST_SKIP() << "this kernel unpins late";
  std::string why;
  device_.reset();
  buffers_refused = 1;
  ASSERT_TRUE(ComponentDevice::open("iouring", {}, nullptr, &device_, &why).ok()) << why;
  {
    Registration registration(device_->table());
    ASSERT_TRUE(registration.make(mapping_.base(), page_size()).ok());
  }
  buffers_refused = 1;
  buffers = 0;
  Registration registration(device_->table());
  EXPECT_TRUE(registration.make(mapping_.base(), page_size()).is(PINRAIL_ERR_OUT_OF_RESOURCE));
  EXPECT_EQ(buffers, 1) << "it waited, and tried again";
  buffers_refused = 0;
}

TEST_F(IouringFault, after_any_number_of_refusals_the_next_transfer_works) {
  Registration registration(device_->table());
  ASSERT_TRUE(registration.make(mapping_.base(), page_size()).ok());
  for (const int refusals : {1, 2, 3, 10}) {
    char bytes[64];
    refuse(1, 1000);
    for (int i = 0; i < refusals; ++i) EXPECT_FALSE(registration.device_read(0, bytes, sizeof(bytes)).ok());
    refuse_none();
    std::memset(mapping_.base(), refusals, sizeof(bytes));
    EXPECT_TRUE(registration.device_read(0, bytes, sizeof(bytes)).ok()) << refusals;
    EXPECT_EQ(bytes[63], refusals);
  }
}

}  // namespace
}  // namespace pinrail::test
