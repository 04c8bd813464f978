// SPDX-License-Identifier: BSD-3-Clause
// perf_memory_test.cc - memory that pinrail_perf replays on: where it lies, and that it really changes.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <set>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/memory.h"
#include "contrib/tools/perf/replay_memory.h"

namespace pinrail::perf {
namespace {

uint64_t word(const void* at) {
  uint64_t value;
  memcpy(&value, at, sizeof(value));
  return value;
}

Trace two_ranges(uint64_t base) {
  Trace trace;
  trace.records = {{base + 0x10, page_size(), 0, 1, 0, 1, TraceOp::reg},
                   {base + 8 * page_size(), 16, 1, 1, 0, 2, TraceOp::reg}};
  return trace;
}

TEST(PerfMemory, pages_differ_from_each_other_and_from_what_they_were) {
  Buffers buffers;
  ASSERT_TRUE(buffers.map(3, 2 * page_size(), Pages::small).ok());
  std::set<uint64_t> words;
  for (size_t i = 0; i < 3; i++)
    for (size_t page = 0; page < 2; page++) words.insert(word(static_cast<char*>(buffers.at(i)) + page * page_size()));
  EXPECT_EQ(words.size(), 6u);
  ASSERT_TRUE(buffers.remap(1).ok());
  EXPECT_EQ(words.count(word(buffers.at(1))), 0u);
  EXPECT_EQ(words.count(word(buffers.at(2))), 1u);
  EXPECT_EQ(buffers.changed_at(1), 1u);
  EXPECT_EQ(buffers.changed_at(2), 0u);
}

TEST(PerfMemory, more_buffers_than_there_is_memory_are_refused) {
  Buffers buffers;
  EXPECT_FALSE(buffers.map(SIZE_MAX / 2, size_t{1} << 40, Pages::small).ok());
  EXPECT_FALSE(buffers.map(1 << 20, size_t{1} << 40, Pages::small).ok());
}

TEST(PerfMemory, a_trace_keeps_its_addresses_where_they_are_free) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer keeps freed addresses to itself";
#endif
  void* const room = mmap(nullptr, 64 * page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  const auto base = reinterpret_cast<uint64_t>(room);
  {
    ReplayMemory moved;
    ASSERT_TRUE(moved.map(two_ranges(base)).ok());
    EXPECT_NE(reinterpret_cast<uint64_t>(moved.at(base + 0x10)), base + 0x10) << "the address is in use";
    EXPECT_EQ(reinterpret_cast<uint64_t>(moved.at(base + 0x10)) % (2 << 20), (base + 0x10) % (2 << 20));
    EXPECT_EQ(static_cast<char*>(moved.at(base + 8 * page_size())) - static_cast<char*>(moved.at(base + 0x10)),
              static_cast<ptrdiff_t>(8 * page_size() - 0x10));
  }
  munmap(room, 64 * page_size());
  ReplayMemory same;
  ASSERT_TRUE(same.map(two_ranges(base)).ok());
  EXPECT_EQ(reinterpret_cast<uint64_t>(same.at(base + 0x10)), base + 0x10);
}

TEST(PerfMemory, an_event_gives_its_pages_new_contents_and_leaves_the_others) {
  const uint64_t base = 0x7e0000000000;
  ReplayMemory memory;
  ASSERT_TRUE(memory.map(two_ranges(base)).ok());
  const uint64_t first = word(memory.at(base)), second = word(memory.at(base + page_size()));
  ASSERT_TRUE(memory.remap({base + page_size() + 8, base + page_size() + 9}).ok());
  EXPECT_EQ(word(memory.at(base)), first);
  EXPECT_NE(word(memory.at(base + page_size())), second);
  EXPECT_EQ(memory.changed_at({base, base + page_size()}), 0u);
  EXPECT_EQ(memory.changed_at({base, base + page_size() + 1}), 1u);
}

bool is_resident(const void* page) {
  unsigned char state = 0;
  EXPECT_EQ(mincore(const_cast<void*>(page), page_size(), &state), 0);
  return (state & 1) != 0;
}

TEST(PerfMemory, pages_are_resident_from_their_birth_or_from_when_they_are_asked_for) {
  const uint64_t base = 0x7e0000000000;
  {
    ReplayMemory memory;
    ASSERT_TRUE(memory.map(two_ranges(base)).ok());
    EXPECT_TRUE(is_resident(memory.at(base)));
  }
  ReplayMemory memory(Touch::when_asked);
  ASSERT_TRUE(memory.map(two_ranges(base)).ok());
  EXPECT_FALSE(is_resident(memory.at(base)));
  memory.touch({base + 0x10, base + 0x11});
  EXPECT_TRUE(is_resident(memory.at(base)));
  EXPECT_FALSE(is_resident(memory.at(base + page_size())));
  const uint64_t first = word(memory.at(base));
  ASSERT_TRUE(memory.remap({base, base + 1}).ok());
  EXPECT_FALSE(is_resident(memory.at(base)));
  memory.touch({base, base + 1});
  EXPECT_NE(word(memory.at(base)), first);
}

TEST(PerfMemory, an_event_elsewhere_is_reported_where_nothing_is) {
  const uint64_t base = 0x7e0000000000;
  ReplayMemory memory;
  ASSERT_TRUE(memory.map(two_ranges(base)).ok());
  const std::vector<Piece> pieces = memory.to_report({0x1234, 0x1234 + 5000});
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].length, 5000u);
  EXPECT_EQ(pieces[0].base % page_size(), 0x1234 % page_size());
  for (const Cluster& cluster : memory.layout().clusters())
    EXPECT_TRUE(pieces[0].base + pieces[0].length <= cluster.base ||
                pieces[0].base >= cluster.base + (cluster.end - cluster.begin));
}

TEST(PerfMemory, a_trace_beyond_this_machine_is_refused_in_words) {
  Trace trace;
  trace.records = {{0x1000, uint64_t{1} << 60, 0, 1, 0, 1, TraceOp::reg}};
  ReplayMemory memory;
  EXPECT_NE(memory.map(trace).why().find("more memory"), std::string::npos);
}

TEST(PerfMemory, a_range_at_address_0_lies_somewhere_else) {
  Trace trace;
  trace.records = {{0, 100, 0, 1, 0, 1, TraceOp::reg}};
  ReplayMemory memory;
  ASSERT_TRUE(memory.map(trace).ok());
  EXPECT_NE(memory.at(0), nullptr);
}

}  // namespace
}  // namespace pinrail::perf
