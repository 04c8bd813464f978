// SPDX-License-Identifier: BSD-3-Clause
// doors.cc - regions of a program part of which does not find pinrun's functions, beside a double of libibverbs. Run by
// test/pinrun_test.sh.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <string>

#include "test/fake/verbs/verbs_double.h"
#include "test/pinrun/plugin.h"

namespace pinrail::test {
namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kLocal = IBV_ACCESS_LOCAL_WRITE;
constexpr int kRemote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

// The parameter names the function of the plugin that returns the functions which it found.
class PinrunDoors : public ::testing::TestWithParam<const char*> {
 protected:
  PinrunDoors() : domain(ibv_alloc_pd(&device)) {
    memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  }
  ~PinrunDoors() override { munmap(memory, kBytes); }

  void SetUp() override {
    void* plugin = dlopen("test/pinrun/.libs/plugin.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    ASSERT_NE(plugin, nullptr) << dlerror();
    const auto get = reinterpret_cast<GetDoor>(dlsym(plugin, GetParam()));
    ASSERT_NE(get, nullptr) << dlerror();
    door = get();
    ASSERT_NE(door.reg_mr, &::ibv_reg_mr) << "the plugin calls libibverbs itself";
    ASSERT_NE(door.dereg_mr, &::ibv_dereg_mr);
  }

  ibv_mr* reg() { return ibv_reg_mr(domain, memory, kBytes, kRemote); }

  ibv_context device{};
  ibv_pd* domain;
  char* memory = nullptr;
  Door door{};
};

TEST_P(PinrunDoors, what_libibverbs_registers_for_them_is_its_own) {
  const uint64_t before = verbs_double_registered();
  for (int i = 0; i < 3; ++i) {
    ibv_mr* region = door.reg_mr(domain, memory, kBytes, kRemote);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(door.rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
    EXPECT_EQ(door.dereg_mr(region), 0);
  }
  EXPECT_EQ(verbs_double_registered() - before, 3u);
  EXPECT_EQ(door.dealloc_pd(domain), 0);
}

TEST_P(PinrunDoors, a_region_of_libibverbs_is_deregistered_by_ours) {
  EXPECT_EQ(ibv_dereg_mr(door.reg_mr(domain, memory, kBytes, kRemote)), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_P(PinrunDoors, a_region_of_ours_is_deregistered_by_libibverbs) {
  const uint64_t before = verbs_double_live();
  ibv_mr *one = reg(), *other = reg();
  EXPECT_EQ(door.dereg_mr(one), 0);
  EXPECT_TRUE(verbs_double_allows(other->rkey, domain, memory, kRemote));
  EXPECT_EQ(ibv_dealloc_pd(domain), EBUSY) << "it has one region";
  EXPECT_EQ(door.dereg_mr(other), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
  EXPECT_EQ(verbs_double_live(), before);
}

TEST_P(PinrunDoors, libibverbs_refuses_to_change_a_region_of_ours) {
  ibv_mr* region = reg();
  errno = 0;
  EXPECT_EQ(door.rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), IBV_REREG_MR_ERR_INPUT);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_TRUE(verbs_double_allows(region->rkey, domain, memory, kRemote));
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dealloc_pd(domain), 0);
}

TEST_P(PinrunDoors, what_is_kept_for_a_domain_goes_when_libibverbs_frees_it) {
  const uint64_t before = verbs_double_live();
  ibv_mr* region = reg();
  EXPECT_EQ(door.dealloc_pd(domain), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(door.dealloc_pd(domain), 0);
  EXPECT_EQ(verbs_double_live(), before);
}

INSTANTIATE_TEST_SUITE_P(Ways, PinrunDoors, ::testing::Values("plugin_own_calls", "plugin_next"),
                         [](const ::testing::TestParamInfo<const char*>& way) { return std::string(way.param); });

}  // namespace
}  // namespace pinrail::test
