// SPDX-License-Identifier: BSD-3-Clause
// registrar/verbs on a machine without an RDMA device. A program of its own, for nothing else may load libibverbs.
#include <gtest/gtest.h>

#include <dlfcn.h>

#include "test/conform/suite/registrar.h"

namespace pinrail::test {
namespace {

bool libibverbs_is_loaded() { return dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(VerbsAbsent, libibverbs_is_not_even_loaded_where_there_is_no_device) {
  ASSERT_FALSE(libibverbs_is_loaded());
  std::unique_ptr<Device> device;
  std::string why;
  const Status status = ComponentDevice::open("verbs", {}, nullptr, &device, &why);
  if (status.ok()) GTEST_SKIP() << "there is an RDMA device here";
  EXPECT_TRUE(status.is(PINRAIL_ERR_NOT_AVAILABLE)) << status_name(status.code());
  EXPECT_NE(why.find("/sys/class/infiniband"), std::string::npos) << why;
  EXPECT_FALSE(libibverbs_is_loaded());
}

}  // namespace
}  // namespace pinrail::test
