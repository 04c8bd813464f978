// SPDX-License-Identifier: BSD-3-Clause
#include "base/core/machine.h"

#include <gtest/gtest.h>
#include <pinrail/listing.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "config.h"

namespace pinrail {
namespace {

uint64_t mem_total_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string word;
  uint64_t kibibytes = 0;
  while (meminfo >> word) {
    if (word == "MemTotal:" && meminfo >> kibibytes) return kibibytes * 1024;
  }
  return 0;
}

unsigned nodes_of_sysfs() {
  unsigned count = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", none)) {
    unsigned number = 0;
    if (std::sscanf(entry.path().filename().c_str(), "node%u", &number) == 1) ++count;
  }
  return count;
}

void expect_sound(const Machine& machine) {
  EXPECT_EQ(machine.page_bytes, static_cast<uint64_t>(getpagesize()));
  EXPECT_GT(machine.memory_bytes, uint64_t{16} << 20);
  EXPECT_LE(machine.memory_bytes, mem_total_bytes() + machine.page_bytes);
  EXPECT_GE(machine.numa_nodes, 1u);
  uint64_t before = machine.page_bytes;
  for (const uint64_t bytes : machine.hugepage_bytes) {
    if (bytes == 0) break;
    EXPECT_GT(bytes, before) << "sizes rise";
    EXPECT_EQ(bytes & (bytes - 1), 0u);
    before = bytes;
  }
}

TEST(Machine, the_system_alone_gives_page_memory_and_one_node) {
  const Machine machine = read_machine_of_system();
  expect_sound(machine);
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
}

TEST(Machine, hwloc_is_asked_where_it_is_built_in) {
  const Machine machine = read_machine();
  expect_sound(machine);
#ifdef HAVE_HWLOC
  EXPECT_STREQ(machine.source, "hwloc");
  if (nodes_of_sysfs() == 0) GTEST_SKIP() << "this kernel lists no NUMA nodes to compare with";
  EXPECT_LE(machine.numa_nodes, nodes_of_sysfs());
#else
  EXPECT_STREQ(machine.source, "system");
  EXPECT_EQ(machine.numa_nodes, 1u);
#endif
}

TEST(Machine, each_hugepage_size_is_one_that_the_kernel_lists) {
  const Machine machine = read_machine();
  size_t listed = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/kernel/mm/hugepages", none)) {
    unsigned long long kibibytes = 0;
    if (std::sscanf(entry.path().filename().c_str(), "hugepages-%llukB", &kibibytes) != 1) continue;
    ++listed;
    const auto& sizes = machine.hugepage_bytes;
    EXPECT_NE(std::find(sizes.begin(), sizes.end(), kibibytes * 1024), sizes.end()) << entry.path();
  }
  EXPECT_EQ(std::count_if(machine.hugepage_bytes.begin(), machine.hugepage_bytes.end(),
                          [](uint64_t bytes) { return bytes != 0; }),
            static_cast<std::ptrdiff_t>(listed));
}

TEST(Machine, the_public_view_shows_the_same_before_init_too) {
  const Machine machine = read_machine();
  pinrail_machine_t view{};
  view.size = sizeof(view);
  ASSERT_EQ(pinrail_machine_read(&view), PINRAIL_SUCCESS);
  EXPECT_EQ(view.size, sizeof(view));
  EXPECT_STREQ(view.source, machine.source);
  EXPECT_EQ(view.page_size, machine.page_bytes);
  EXPECT_EQ(view.memory, machine.memory_bytes);
  EXPECT_EQ(view.numa_nodes, machine.numa_nodes);
  EXPECT_EQ(view.hugepage_sizes[0], machine.hugepage_bytes[0]);
}

TEST(Machine, a_caller_that_knows_a_shorter_struct_gets_no_more_than_that) {
  pinrail_machine_t view{};
  std::memset(&view, 0x5a, sizeof(view));
  view.size = offsetof(pinrail_machine_t, memory);
  ASSERT_EQ(pinrail_machine_read(&view), PINRAIL_SUCCESS);
  EXPECT_EQ(view.page_size, static_cast<uint64_t>(getpagesize()));
  EXPECT_EQ(view.memory, 0x5a5a5a5a5a5a5a5aull);
}

TEST(Machine, no_struct_or_one_without_a_size_is_refused) {
  pinrail_machine_t view{};
  EXPECT_EQ(pinrail_machine_read(nullptr), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM);
  view.size = sizeof(view.size) - 1;
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_ERR_BAD_PARAM) << "not even the size has room";
  EXPECT_EQ(view.page_size, 0u);
}

TEST(Machine, a_struct_of_nothing_but_its_size_is_left_as_it_is) {
  pinrail_machine_t view{};
  view.size = sizeof(view.size);
  EXPECT_EQ(pinrail_machine_read(&view), PINRAIL_SUCCESS);
  EXPECT_EQ(view.size, sizeof(view.size));
  EXPECT_EQ(view.page_size, 0u);
}

}  // namespace
}  // namespace pinrail
