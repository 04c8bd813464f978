// SPDX-License-Identifier: BSD-3-Clause
#include "framework/mpool/default_limits.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "test/support/temp_folder.h"

namespace pinrail::mpool {
namespace {

constexpr uint64_t kMebi = uint64_t{1} << 20, kGibi = uint64_t{1} << 30;

Bounds bounds(uint64_t memory, uint64_t cgroup, uint64_t memlock, unsigned processes) {
  Bounds bounds;
  bounds.memory = memory;
  bounds.cgroup = cgroup;
  bounds.memlock = memlock;
  bounds.processes = processes;
  return bounds;
}

TEST(DefaultLimits, three_quarters_of_the_memory_are_shared_by_the_local_processes) {
  EXPECT_EQ(default_limit(bounds(16 * kGibi, UINT64_MAX, UINT64_MAX, 1)).bytes, 12 * kGibi);
  EXPECT_EQ(default_limit(bounds(16 * kGibi, UINT64_MAX, UINT64_MAX, 4)).bytes, 3 * kGibi);
  EXPECT_EQ(default_limit(bounds(16 * kGibi, UINT64_MAX, UINT64_MAX, 4)).derivation,
            "3/4 of 16384 MiB (memory), for 4 local processes");
}

TEST(DefaultLimits, a_control_group_below_the_memory_decides) {
  const DefaultLimit limit = default_limit(bounds(16 * kGibi, 4 * kGibi, UINT64_MAX, 1));
  EXPECT_EQ(limit.bytes, 3 * kGibi);
  EXPECT_EQ(limit.derivation, "3/4 of 4096 MiB (limit of the control group), for 1 process");
}

TEST(DefaultLimits, locked_memory_is_each_processs_own) {
  const DefaultLimit limit = default_limit(bounds(16 * kGibi, UINT64_MAX, 8 * kMebi, 64));
  EXPECT_EQ(limit.bytes, 8 * kMebi);
  EXPECT_EQ(limit.derivation, "the limit of locked memory (ulimit -l)");
}

TEST(DefaultLimits, a_limit_is_at_least_a_page_and_nothing_bounds_where_nothing_is_known) {
  EXPECT_EQ(default_limit(bounds(16 * kGibi, UINT64_MAX, 0, 1)).bytes, 4096u);
  EXPECT_EQ(default_limit(bounds(UINT64_MAX, UINT64_MAX, UINT64_MAX, 0)).bytes, UINT64_MAX);
}

class Groups : public testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) {
    for (size_t at = path.find('/'); at != std::string::npos; at = path.find('/', at + 1)) {
      mkdir((root() + "/" + path.substr(0, at)).c_str(), 0700);
    }
    std::ofstream(root() + "/" + path) << text;
  }
  std::string root() const { return folder_.path(); }
  uint64_t limit() const { return cgroup_limit(root() + "/self", root()); }

 private:
  test::TempFolder folder_;
};

TEST_F(Groups, the_smallest_limit_from_the_group_upwards_counts) {
  write("self", "0::/slice/job\n");
  write("slice/job/memory.max", "max\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("slice/memory.max", "3000000\n");
  EXPECT_EQ(limit(), 3000000u);
  write("slice/job/memory.max", "1000000\n");
  EXPECT_EQ(limit(), 1000000u);
  write("memory.max", "500000\n");
  EXPECT_EQ(limit(), 500000u);
}

TEST_F(Groups, version_1_has_a_tree_of_its_own_for_memory) {
  write("self", "5:cpu,cpuacct:/a\n4:memory:/b\n");
  write("memory/a/memory.limit_in_bytes", "1000\n");
  write("memory/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  write("memory/b/memory.limit_in_bytes", "7000000\n");
  EXPECT_EQ(limit(), 7000000u);
}

TEST_F(Groups, what_is_no_list_of_groups_is_no_limit) {
  write("self", "nonsense\n:\n0:\n");
  EXPECT_EQ(limit(), UINT64_MAX);
  EXPECT_EQ(cgroup_limit(root() + "/missing", root()), UINT64_MAX);
}

TEST(LocalProcesses, are_what_the_launcher_says) {
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "24", 1);
  EXPECT_EQ(local_processes(), 24u);
  setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "many", 1);
  EXPECT_EQ(local_processes(), 1u);
  unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
  setenv("PMI_LOCAL_SIZE", "3", 1);
  EXPECT_EQ(local_processes(), 3u);
  unsetenv("PMI_LOCAL_SIZE");
}

}  // namespace
}  // namespace pinrail::mpool
