// SPDX-License-Identifier: BSD-3-Clause
// perf_memory_test.cc - memory that pinrail_perf replays on: where it lies, and that it really changes.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <set>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/replay_memory.h"
#include "contrib/tools/perf/session.h"
#include "test/support/host_table.h"

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

// A trace's ranges keep their distances, and an event changes the right pages.

constexpr uint64_t kPage = 4096, kGap = 1 << 20;

TraceRecord record(TraceOp op, uint64_t addr, uint64_t size) { return {addr, size, 0, 0, 0, 1, op}; }

Layout layout(const std::vector<TraceRecord>& records) {
  Trace trace;
  trace.records = records;
  return Layout::of(trace, kPage, kGap);
}

// Three ranges: two that share a page's neighbourhood, one far away.
std::vector<TraceRecord> three() {
  return {record(TraceOp::reg, 0x700000001100, 0x100), record(TraceOp::reg, 0x700000004ff0, 0x20),
          record(TraceOp::reg, 0x100000000, 3 * kPage)};
}

TEST(PerfLayout, near_ranges_share_a_cluster_and_far_ones_do_not) {
  const Layout found = layout(three());
  ASSERT_EQ(found.clusters().size(), 2u);
  EXPECT_EQ(found.clusters()[0].begin, 0x100000000u);
  EXPECT_EQ(found.clusters()[0].end, 0x100000000u + 3 * kPage);
  EXPECT_EQ(found.clusters()[1].begin, 0x700000001000u);
  EXPECT_EQ(found.clusters()[1].end, 0x700000006000u);
}

TEST(PerfLayout, the_gap_is_kept_to_the_byte) {
  const uint64_t base = 0x10000000;
  EXPECT_EQ(
      layout({record(TraceOp::reg, base, kPage), record(TraceOp::reg, base + kPage + kGap, kPage)}).clusters().size(),
      1u);
  EXPECT_EQ(layout({record(TraceOp::reg, base, kPage), record(TraceOp::reg, base + 2 * kPage + kGap, kPage)})
                .clusters()
                .size(),
            2u);
}

TEST(PerfLayout, only_pages_of_R_lines_are_touched_but_F_lines_have_a_place_too) {
  const Layout found = layout({record(TraceOp::reg, 0x10000000, 1), record(TraceOp::find, 0x10010000, 1),
                               record(TraceOp::invalidate, 0x20000000, kPage)});
  ASSERT_EQ(found.clusters().size(), 1u);
  EXPECT_EQ(found.clusters()[0].end, 0x10011000u);
  ASSERT_EQ(found.touched().size(), 1u);
  EXPECT_EQ(found.touched_pages(), 1u);
}

TEST(PerfLayout, a_moved_cluster_moves_all_its_ranges_by_the_same_distance) {
  Layout moved = layout(three());
  moved.clusters()[1].base = 0x555500001000;
  EXPECT_EQ(moved.translate(0x700000001100), 0x555500001100u);
  EXPECT_EQ(moved.translate(0x700000004ff0), 0x555500004ff0u);
  EXPECT_EQ(moved.translate(0x100000010), 0x100000010u);
}

TEST(PerfLayout, an_event_is_reported_to_the_byte_where_it_meets_clusters) {
  Layout moved = layout(three());
  moved.clusters()[1].base = 0x555500001000;
  const std::vector<Piece> inside = moved.in_clusters({0x700000001108, 0x700000001138});
  ASSERT_EQ(inside.size(), 1u);
  EXPECT_EQ(inside[0].base, 0x555500001108u);
  EXPECT_EQ(inside[0].length, 0x30u);
  EXPECT_EQ(moved.in_clusters({0, UINT64_MAX / 2}).size(), 2u);
  EXPECT_TRUE(moved.in_clusters({0x200000000, 0x300000000}).empty());
  EXPECT_TRUE(moved.in_clusters({0x700000001108, 0x700000001108}).empty());
}

TEST(PerfLayout, an_event_changes_every_touched_page_that_it_overlaps_by_a_byte) {
  const Layout found = layout(three());
  // 0x700000001fff..0x700000004000: the first touched page by its last byte; the next touched one begins at 4000.
  const std::vector<Piece> one = found.touched_pages_in({0x700000001fff, 0x700000004000});
  ASSERT_EQ(one.size(), 1u);
  EXPECT_EQ(one[0].base, 0x700000001000u);
  EXPECT_EQ(one[0].length, kPage);
  const std::vector<Piece> two = found.touched_pages_in({0x700000001fff, 0x700000004001});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].base, 0x700000004000u);
  EXPECT_TRUE(found.touched_pages_in({0x700000002000, 0x700000004000}).empty());
  EXPECT_TRUE(found.touched_pages_in({0x700000001100, 0x700000001100}).empty());
}

TEST(PerfLayout, touched_pages_have_ordinals_of_their_own) {
  const Layout found = layout(three());
  EXPECT_EQ(found.touched_pages(), 6u);
  EXPECT_EQ(found.touched_pages_in({0x100001000, 0x100002000})[0].first_page, 1u);
  EXPECT_EQ(found.touched_pages_in({0x700000001000, 0x700000002000})[0].first_page, 3u);
  EXPECT_EQ(found.touched_pages_in({0x700000005000, 0x700000006000})[0].first_page, 5u);
}

TEST(PerfLayout, random_traces_keep_distances_within_clusters_and_clusters_apart) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 200; round++) {
    std::vector<TraceRecord> records;
    for (int i = 0; i < 50; i++)
      records.push_back(record(TraceOp::reg, 0x10000000 + random() % (256 << 20), 1 + random() % (64 << 10)));
    const Layout found = layout(records);
    uint64_t end = 0, pages = 0;
    for (const Cluster& cluster : found.clusters()) {
      EXPECT_TRUE(end == 0 || cluster.begin > end + kGap);
      end = cluster.end;
    }
    for (const Touched& touched : found.touched()) pages += (touched.end - touched.begin) / kPage;
    EXPECT_EQ(pages, found.touched_pages());
    for (const TraceRecord& one : records) {
      EXPECT_EQ(found.translate(one.addr), one.addr);
      const std::vector<Piece> whole = found.touched_pages_in({one.addr, one.addr + one.size});
      ASSERT_EQ(whole.size(), 1u) << "a registered range is touched without a hole";
      EXPECT_LE(whole[0].base, one.addr);
      EXPECT_GE(whole[0].base + whole[0].length, one.addr + one.size);
    }
  }
}

// pinrail_perf notices a registration that lies.

// A device that sees the processor's memory, but for one byte.
struct Device {
  size_t wrong_offset = SIZE_MAX;
  pinrail_status_t status = PINRAIL_SUCCESS;
};

pinrail_status_t accept(void*, const pinrail_register_request_t*, pinrail_registration_t*) { return PINRAIL_SUCCESS; }
pinrail_status_t give_back(void*, pinrail_registration_t*, pinrail_reason_t) { return PINRAIL_SUCCESS; }

pinrail_status_t see(void* context, const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  const auto* device = static_cast<const Device*>(context);
  if (device->status != PINRAIL_SUCCESS) return device->status;
  memcpy(into, static_cast<const char*>(reg->base) + offset, length);
  const size_t wrong = device->wrong_offset;
  if (wrong >= offset && wrong < offset + length) static_cast<char*>(into)[wrong - offset] ^= 1;
  return PINRAIL_SUCCESS;
}

class PerfByteCheck : public testing::Test {
 protected:
  void SetUp() override {
    static const pinrail_setting_t kSettings[] = {
        {"monitor", "external"}, {"mpool_grdma_rights", "asked"}, {"mpool_grdma_extent", "0"}};
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = kSettings;
    options.setting_count = std::size(kSettings);
    ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS);
    table_ = test::host_table("test", &device_);
    table_.register_mem = accept;
    table_.deregister_mem = give_back;
    table_.device_read = see;
    const pinrail_registrar_choice_t choice = {nullptr, &table_, nullptr};
    ASSERT_EQ(pinrail_mpool_create(nullptr, &choice, nullptr, nullptr, &pool_), PINRAIL_SUCCESS);
    ASSERT_TRUE(buffers_.map(1, kSize, Pages::small).ok());
    testing::internal::CaptureStderr();
  }

  void TearDown() override {
    testing::internal::GetCapturedStderr();
    buffers_.unmap();
    if (pool_ != nullptr) {
      EXPECT_EQ(pinrail_mpool_destroy(pool_, 0), PINRAIL_SUCCESS);
    }
    EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
  }

  Asked asked() const { return {buffers_.at(0), kSize, PINRAIL_ACCESS_REMOTE_READ, 0, 0}; }

  // Registers the buffer and has it checked as the registrar of that name.
  void check(ByteCheck* bytes, const Asked& asked) {
    pinrail_handle_t handle;
    ASSERT_EQ(pinrail_mpool_register(pool_, buffers_.at(0), kSize, PINRAIL_ACCESS_REMOTE_READ, 0, &handle),
              PINRAIL_SUCCESS);
    bytes->check(asked, handle);
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }

  static constexpr size_t kSize = (3 << 20) + 100;
  Device device_;
  pinrail_registrar_t table_ = {};
  pinrail_mpool_t* pool_ = nullptr;
  Buffers buffers_;
  Errors errors_;
};

TEST_F(PerfByteCheck, a_device_that_sees_what_the_processor_sees_is_no_error) {
  ByteCheck bytes("iouring", &errors_);
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 0u);
  EXPECT_EQ(bytes.compared_bytes(), kSize);
  EXPECT_EQ(bytes.said(), "device");
}

TEST_F(PerfByteCheck, one_wrong_byte_anywhere_is_an_error) {
  uint64_t expected = 0;
  for (const size_t offset : {size_t{0}, size_t{4097}, size_t{1} << 20, kSize - 1}) {
    device_.wrong_offset = offset;
    ByteCheck bytes("iouring", &errors_);
    check(&bytes, asked());
    EXPECT_EQ(errors_.count(), ++expected) << offset;
  }
  device_.wrong_offset = kSize;
  ByteCheck bytes("iouring", &errors_);
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), expected) << "that byte was not requested";
}

TEST_F(PerfByteCheck, samples_take_the_first_and_the_last_bytes_and_little_else) {
  uint64_t expected = 0;
  for (const size_t offset : {size_t{0}, kSize - 1}) {
    device_.wrong_offset = offset;
    ByteCheck bytes("verbs", &errors_);
    check(&bytes, asked());
    EXPECT_EQ(errors_.count(), ++expected) << offset;
    EXPECT_LT(bytes.compared_bytes(), 1024u);
    EXPECT_EQ(bytes.said(), "device, samples");
  }
}

TEST_F(PerfByteCheck, a_range_or_a_right_that_is_not_covered_is_an_error) {
  ByteCheck bytes("iouring", &errors_);
  Asked more = asked();
  more.length = round_up(kSize, page_size()) + 1;
  check(&bytes, more);
  EXPECT_EQ(errors_.count(), 1u);
  Asked before = asked();
  before.addr = static_cast<const char*>(before.addr) - 1;
  check(&bytes, before);
  EXPECT_EQ(errors_.count(), 2u);
  Asked rights = asked();
  rights.access |= PINRAIL_ACCESS_REMOTE_ATOMIC;
  check(&bytes, rights);
  EXPECT_EQ(errors_.count(), 3u);
}

TEST_F(PerfByteCheck, a_hit_on_what_was_made_before_the_memory_changed_is_an_error) {
  ByteCheck bytes("mlock", &errors_);
  check(&bytes, asked());
  Asked later = asked();
  later.changed_at = later.changes = 1;
  check(&bytes, later);
  EXPECT_EQ(errors_.count(), 1u) << "nothing was reported, so that the cache must still have it";
  ASSERT_TRUE(buffers_.remap(0).ok());
  later.changed_at = later.changes = 2;
  check(&bytes, later);
  EXPECT_EQ(errors_.count(), 1u) << "it was reported, so that the registration is a new one";
}

TEST_F(PerfByteCheck, a_device_that_fails_is_an_error_and_one_that_cannot_is_unchecked) {
  ByteCheck bytes("iouring", &errors_);
  device_.status = PINRAIL_ERR_ERROR;
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 1u);
  device_.status = PINRAIL_ERR_NOT_SUPPORTED;
  check(&bytes, asked());
  EXPECT_EQ(errors_.count(), 1u);
  EXPECT_EQ(bytes.unchecked_bytes(), kSize);
  EXPECT_EQ(bytes.said(), "unchecked");
}

}  // namespace
}  // namespace pinrail::perf
