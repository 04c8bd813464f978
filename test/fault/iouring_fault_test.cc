// SPDX-License-Identifier: BSD-3-Clause
// registrar/iouring, where the kernel refuses operations of a transfer, as it does without memory for them.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <liburing.h>

#include <cerrno>
#include <cstring>

#include "test/conform/suite/registrar.h"
#include "test/support/proc_status.h"

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

  const Mapping mapping_{page_size()};
  std::unique_ptr<Device> device_;
};

// What the kernel refused must not be done later, when other memory has the slot, or the bytes of the caller are gone.
TEST_F(IouringFault, what_was_refused_never_runs) {
  for (const int refused : {1, 2}) {
    char bytes[64], later[64];
    {
      Registration registration(device_->table());
      ASSERT_TRUE(registration.make(mapping_.base(), page_size()).ok());
      std::memset(bytes, 1, sizeof(bytes));
      refuse(refused, refused);
      EXPECT_FALSE(registration.device_write(0, bytes, sizeof(bytes)).ok());
      refuse(refused, refused);
      EXPECT_FALSE(registration.device_read(0, bytes, sizeof(bytes)).ok());
      refuse_none();
    }
    std::memset(mapping_.base(), 2, sizeof(bytes));
    std::memset(bytes, 3, sizeof(bytes));
    Registration registration(device_->table());
    ASSERT_TRUE(registration.make(mapping_.base(), page_size()).ok());
    ASSERT_TRUE(registration.device_read(0, later, sizeof(later)).ok());
    EXPECT_EQ(later[0], 2) << refused;
    EXPECT_EQ(mapping_.base()[0], 2) << refused;
    EXPECT_EQ(bytes[0], 3) << refused;
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
