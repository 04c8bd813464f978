// SPDX-License-Identifier: BSD-3-Clause
// registrar/iouring, where the kernel refuses operations of a transfer, as it does without memory for them.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>

#include <algorithm>
#include <cerrno>
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
