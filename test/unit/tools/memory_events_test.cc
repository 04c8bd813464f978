// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/memory_events.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "test/support/memory.h"

namespace pinrail::tools {
namespace {

constexpr size_t kLength = size_t{64} << 10;

unsigned char stamp(size_t at) { return static_cast<unsigned char>(1 + at % 251); }

void fill(const EventMemory& memory) {
  for (size_t i = 0; i < memory.length; ++i) memory.base[i] = stamp(i);
}

bool is_zero(const Extent& extent) {
  return std::all_of(extent.base, extent.base + extent.length, [](unsigned char byte) { return byte == 0; });
}

bool is_filled(const EventMemory& memory, size_t length) {
  for (size_t i = 0; i < length; ++i) {
    if (memory.base[i] != stamp(i)) return false;
  }
  return true;
}

// What an older kernel or libc may lack, or the file system of the folder for temporary files; all else must work
// wherever the tests run.
bool may_lack(const std::string& name) {
  const char* const kYoung[] = {"madvise-dontneed-locked",
                                "madvise-guard-install",
                                "process-madvise",
                                "remap-file-pages",
                                "madvise-pageout",
                                "madvise-cold",
                                "mremap-dontunmap",
                                "mremap-back",
                                "ring-madvise",
                                "ring-fallocate",
                                "ring-ftruncate",
                                "ring-open-truncate",
                                "write-direct",
                                "write-dontcache"};
  return std::any_of(std::begin(kYoung), std::end(kYoung),
                     [&](const char* young) { return name == young || name == std::string(young) + "-raw"; });
}

class Event : public ::testing::TestWithParam<const MemoryEvent*> {};

std::string case_name(const ::testing::TestParamInfo<const MemoryEvent*>& info) {
  std::string name = info.param->name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<const MemoryEvent*> all_events() {
  std::vector<const MemoryEvent*> all;
  for (const MemoryEvent& event : memory_events()) all.push_back(&event);
  return all;
}

TEST_P(Event, does_what_the_table_says_each_time) {
  const MemoryEvent& event = *GetParam();
  const std::string why = why_no_memory_event(event);
  if (!why.empty() && may_lack(event.name)) GTEST_SKIP() << "this machine lacks it: " << why;
  ASSERT_EQ(why, "");
  const auto memory = prepare_memory(event.kind, kLength);
  ASSERT_NE(memory, nullptr) << std::strerror(errno);
  EXPECT_TRUE(is_zero({memory->base, memory->length}));
  for (int round = 0; round < 5; ++round) {
    fill(*memory);
    const Extent extent = lost(event, *memory);
    EXPECT_TRUE(extent.base >= memory->base && extent.length > 0);
    EXPECT_EQ(extent.base + extent.length, memory->base + memory->length);
    const unsigned char* const before = memory->base;
    const size_t length = memory->length;
    ASSERT_TRUE(fire_memory_event(event, memory.get())) << std::strerror(errno);
    EXPECT_EQ(memory->length, length);
    if (event.place == Place::same) {
      EXPECT_EQ(memory->base, before);
    }
    if (event.contents == Contents::zero) {
      EXPECT_TRUE(is_zero(lost(event, *memory)));
    }
    if (event.contents == Contents::kept) {
      EXPECT_TRUE(is_filled(*memory, memory->length));
    }
    if (event.part == Part::second_half) {
      EXPECT_TRUE(is_filled(*memory, memory->length / 2)) << "the first half was not to be touched";
    }
    fill(*memory);  // it can be written
    EXPECT_TRUE(is_filled(*memory, memory->length));
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, Event, ::testing::ValuesIn(all_events()), case_name);

TEST(MemoryEvents, a_heap_under_which_others_moved_the_break_is_busy) {
  const MemoryEvent* const event = find_memory_event("brk");
  const auto below = prepare_memory(MemoryKind::heap, kLength);
  ASSERT_NE(below, nullptr);
  const auto above = prepare_memory(MemoryKind::heap, kLength);
  ASSERT_NE(above, nullptr);
  EXPECT_FALSE(fire_memory_event(*event, below.get()));
  EXPECT_EQ(errno, EBUSY);
  EXPECT_EQ(below->length, kLength);
}

void try_a_large_block_where_there_is_room() {
  constexpr size_t kBlock = kLargeBlock / 4;  // of an arena, in every allocator
  std::vector<void*> blocks(64);
  for (void*& block : blocks) block = std::malloc(kBlock);
  const std::unique_ptr<void, decltype(&std::free)> above(std::malloc(kBlock), std::free);
  for (void* block : blocks) std::free(block);
  const auto large = prepare_memory(MemoryKind::large_block, kLargeBlock);
  ASSERT_NE(large, nullptr);
  auto* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(large->base + 8192) & ~uintptr_t{4095});
  std::free(std::exchange(large->owner, nullptr));
  large->base = nullptr;
  unsigned char resident = 0;
  EXPECT_EQ(mincore(page, 4096, &resident), -1) << "the pages are still mapped";
  EXPECT_EQ(errno, ENOMEM);
}

TEST(MemoryEvents, a_large_block_is_a_mapping_of_its_own_though_the_arena_has_room) {
  if (!test::malloc_is_libcs()) GTEST_SKIP() << "malloc is not libc's here";
  try_a_large_block_where_there_is_room();
  std::thread(try_a_large_block_where_there_is_room).join();  // its arena is not below the break
}

// The length of all mappings of this process.
size_t mapped_bytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

// As many blocks as would be held if a mapping were taken for a block of an arena do not fit.
TEST(MemoryEvents, a_large_block_is_had_where_there_is_room_for_few) {
  if (!test::malloc_is_libcs()) GTEST_SKIP() << "malloc is not libc's here";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit little{mapped_bytes() + 64 * kLargeBlock, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &little), 0);
  const auto large = prepare_memory(MemoryKind::large_block, kLargeBlock);
  EXPECT_EQ(prepare_memory(MemoryKind::anonymous, size_t{1} << 60), nullptr);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_NE(large, nullptr);
}

}  // namespace
}  // namespace pinrail::tools
