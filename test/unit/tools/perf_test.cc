// SPDX-License-Identifier: BSD-3-Clause
// perf_test.cc - pinrail_perf: memory that it replays on, where it lies, and that it really changes; what it takes for
// a trace, and what it says of everything else. And what pinrail_advise makes of a trace.
#include <config.h>

#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <cstring>
#include <random>
#include <set>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/replay_memory.h"
#include "contrib/tools/perf/session.h"
#include "contrib/tools/perf/trace.h"
#include "test/support/files.h"
#include "test/support/host_table.h"
#include "test/support/library.h"
#if defined(HAVE_LZMA)
#include <lzma.h>
#endif

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

TEST(PerfMemory, more_than_this_machine_has_is_refused_in_words) {
  Buffers buffers;
  for (const size_t count : {SIZE_MAX / 2, size_t{1} << 20}) {
    EXPECT_FALSE(buffers.map(count, size_t{1} << 40, Pages::small).ok());
  }
  Trace trace;
  trace.records = {{0x1000, uint64_t{1} << 60, 0, 1, 0, 1, TraceOp::reg}};
  ReplayMemory memory;
  EXPECT_NE(memory.map(trace).why().find("more memory"), std::string::npos);
}

TEST(PerfMemory, what_was_refused_gets_no_memory_of_its_own) {
  Trace trace = two_ranges(0x7e0000000000);
  trace.records.push_back({0x1000, uint64_t{1} << 60, -1, 1, 0, 3, TraceOp::reg});
  ReplayMemory memory;
  EXPECT_TRUE(memory.map(trace).ok());
  EXPECT_FALSE(memory.has({0x1000, 0x1000 + (uint64_t{1} << 60)}));
  EXPECT_TRUE(memory.has({0x7e0000000020, 0x7e0000000030}));
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

TEST(PerfLayout, an_event_is_reported_to_the_byte_where_it_meets_clusters) {
  Layout moved = layout(three());
  moved.clusters()[1].base = 0x555500001000;
  EXPECT_EQ(moved.translate(0x700000004ff0), 0x555500004ff0u);
  EXPECT_EQ(moved.translate(0x100000010), 0x100000010u);
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
  EXPECT_EQ(found.touched_pages(), 6u);
  // The first touched page by its last byte; the next touched one begins at 4000.
  const std::vector<Piece> two = found.touched_pages_in({0x700000001fff, 0x700000004001});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].base, 0x700000001000u);
  EXPECT_EQ(two[0].length, kPage);
  EXPECT_EQ(two[0].first_page, 3u);
  EXPECT_EQ(two[1].base, 0x700000004000u);
  EXPECT_TRUE(found.touched_pages_in({0x700000002000, 0x700000004000}).empty());
  EXPECT_TRUE(found.touched_pages_in({0x700000001100, 0x700000001100}).empty());
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
  PerfByteCheck() {
    EXPECT_TRUE(buffers_.map(1, kSize, Pages::small).ok());
    testing::internal::CaptureStderr();
  }
  ~PerfByteCheck() override { testing::internal::GetCapturedStderr(); }

  static pinrail_registrar_t table_of(Device* device) {
    pinrail_registrar_t table = test::host_table("test", device);
    table.device_read = see;
    return table;
  }
  Asked asked() const { return {buffers_.at(0), kSize, PINRAIL_ACCESS_REMOTE_READ, 0, 0}; }

  // Registers the buffer and has it checked as the registrar of that name.
  void check(ByteCheck* bytes, const Asked& asked) {
    const pinrail_handle_t handle = pool_.must(reinterpret_cast<uintptr_t>(buffers_.at(0)), kSize);
    bytes->check(asked, handle);
    test::drop(handle);
  }

  static constexpr size_t kSize = (3 << 20) + 100;
  Device device_;
  const pinrail_registrar_t table_ = table_of(&device_);
  const test::Library library_{{{"mpool_grdma_rights", "asked"}}};
  const test::Pool pool_{test::lend(table_), {}, "grdma", PINRAIL_ACCESS_REMOTE_READ};
  Buffers buffers_;
  Errors errors_;
};

TEST_F(PerfByteCheck, one_wrong_byte_anywhere_is_an_error_and_of_samples_the_first_or_the_last) {
  const struct {
    const char* registrar;
    size_t wrong_offset;
    uint64_t errors;
  } rows[] = {{"iouring", 0, 1},         {"iouring", 4097, 1},   {"iouring", size_t{1} << 20, 1},
              {"iouring", kSize - 1, 1}, {"iouring", kSize, 0},  // that byte was not requested
              {"verbs", 0, 1},           {"verbs", kSize - 1, 1}};
  for (const auto& row : rows) {
    device_.wrong_offset = row.wrong_offset;
    Errors errors;
    ByteCheck bytes(row.registrar, &errors);
    check(&bytes, asked());
    EXPECT_EQ(errors.count(), row.errors) << row.registrar << row.wrong_offset;
    const bool is_whole = std::string_view(row.registrar) == "iouring";
    EXPECT_EQ(bytes.said(), is_whole ? "device" : "device, samples");
    EXPECT_TRUE(is_whole || bytes.compared_bytes() < 1024);
    EXPECT_TRUE(row.errors != 0 || bytes.compared_bytes() == kSize);
  }
}

TEST_F(PerfByteCheck, a_range_or_a_right_that_is_not_covered_is_an_error) {
  Asked wrong[] = {asked(), asked(), asked()};
  wrong[0].length = round_up(kSize, page_size()) + 1;
  wrong[1].addr = static_cast<const char*>(wrong[1].addr) - 1;
  wrong[2].access |= PINRAIL_ACCESS_REMOTE_ATOMIC;
  ByteCheck bytes("iouring", &errors_);
  for (const Asked& each : wrong) check(&bytes, each);
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

// What is a trace, and what is none.

const char kGood[] =
    "# rcache-trace 1\n"
    "# program: a program, with spaces\n"
    "10 0 R 7f0000001234 5000 5 0 0\n"
    "11 0 F 7f0000001234 100 1 0 1\n"
    "11 1 F 7f0000009000 100 1 0 -1\n"
    "12 0 D 7f0000001000 8192 5 0 0\n"
    "13 0 I 7f0000001000 48 0 0 0\n"
    "14 0 E 0 0 0 0 1\n"
    "15 0 R 7f0000001234 5000 f 3 2\n"
    "16 0 X 7f0000001000 8192 5 0 0\n";

Result parse(std::string_view text, Trace* trace, size_t piece = SIZE_MAX) {
  TraceParser parser;
  while (!text.empty()) {
    Result fed = parser.feed(text.substr(0, piece));
    if (!fed.ok()) return fed;
    text.remove_prefix(std::min(piece, text.size()));
  }
  return parser.finish(trace);
}

std::string refusal(std::string_view text) {
  Trace trace;
  const Result parsed = parse(text, &trace);
  EXPECT_FALSE(parsed.ok()) << text;
  EXPECT_TRUE(trace.records.empty()) << "an error changes nothing";
  return parsed.why();
}

void expect_refused(const std::string& text, const char* said) {
  const std::string why = refusal(text);
  EXPECT_NE(why.find(said), std::string::npos) << text << " -> " << why;
}

TEST(PerfTrace, every_field_of_every_line_is_kept) {
  Trace trace;
  ASSERT_TRUE(parse(kGood, &trace).ok());
  ASSERT_EQ(trace.records.size(), 8u);
  EXPECT_EQ(trace.program, "a program, with spaces");
  EXPECT_EQ(trace.registers, 2u);
  const TraceRecord& first = trace.records[0];
  EXPECT_EQ(first.op, TraceOp::reg);
  EXPECT_EQ(first.addr, 0x7f0000001234u);
  EXPECT_EQ(first.size, 5000u);
  EXPECT_EQ(first.access, 5u);
  EXPECT_EQ(first.line, 3u);
  EXPECT_EQ(trace.records[2].id, -1);
  EXPECT_EQ(trace.records[6].access, 0xfu);
  EXPECT_EQ(trace.records[6].flags, 3u);
}

TEST(PerfTrace, pieces_of_any_length_make_the_same_trace_and_a_trace_ends_with_a_whole_line) {
  const std::string_view whole(kGood);
  for (size_t length = 1; length < whole.size(); length++) {
    Trace trace, cut_off;
    ASSERT_TRUE(parse(whole, &trace, length).ok()) << length;
    EXPECT_EQ(trace.records.size(), 8u);
    EXPECT_EQ(trace.records.back().line, 10u);
    const std::string_view start = whole.substr(0, length);
    const bool is_whole = start.back() == '\n' && start.find(" R ") != std::string::npos;
    EXPECT_EQ(parse(start, &cut_off).ok(), is_whole) << length;
  }
  Trace trace;
  EXPECT_TRUE(parse("\r\n1 0\tR  1000 10 0 0 0\r\n\n", &trace).ok()) << "white space does no harm";
  EXPECT_EQ(trace.records.size(), 1u);
}

TEST(PerfTrace, a_header_that_counts_records_shows_that_lines_are_missing) {
  const std::string head = "# records: 2 dropped 0 threads 1\n", line = "1 0 R 1000 10 0 0 ";
  Trace trace;
  EXPECT_TRUE(parse(head + line + "0\n" + line + "1\n", &trace).ok());
  EXPECT_EQ(trace.missing, 0u);
  expect_refused("# rcache-trace 2\n" + line + "0\n", "line 1: is the header of a newer kind");
  EXPECT_TRUE(parse("# records: 1 dropped 3\n" + line + "0\n", &trace).ok());
  EXPECT_EQ(trace.missing, 3u);
  expect_refused("# records: 1 dropped x\n" + line + "0\n", "line 1:");
  expect_refused(head + line + "0\n", "line 2: is the last one, but the header speaks of 2 records");
  expect_refused("# records: 18446744073709551615\n" + line + "0\n", "line 1: '# records:' names more");
  expect_refused("# records: many\n" + line + "0\n", "line 1:");
  expect_refused("1 0 I 1000 10 0 0 0\n", "no R line");
}

TEST(PerfTrace, malformed_lines_are_named_by_number_and_reason) {
  const std::string good = "1 0 R 1000 10 0 0 0\n";
  const struct {
    const char *line, *why;
  } rows[] = {
      {"garbage\n", "line 2: does not begin with a time"},
      {"2 0 Q 1000 10 0 0 1\n", "line 2: its operation"},
      {"2 0 RR 1000 10 0 0 1\n", "line 2: its operation"},
      {"2 0 R 1000 10 0 0\n", "line 2: is not"},
      {"2 0 R 1000 10 0 0 1 9\n", "line 2: has more fields"},
      {"2 0 R 0x1000 10 0 0 1\n", "line 2: is not"},
      {"2 0 R 1000 -10 0 0 1\n", "line 2: is not"},
      {"2 0 R 1000 1a 0 0 1\n", "line 2: is not"},
      {"0 0 I 1000 10 0 0 0\n", "line 2: is earlier"},
      {"2 0 R 1000 0 0 0 1\n", "line 2: its range is empty"},
      {"2 0 R 1000 10 10 0 1\n", "line 2: its access"},
      {"2 0 R 1000 10 0 0 -2\n", "line 2: its id"},
      {"2 0 R 1000 10 0 0 0\n", "line 2: its id is not new"},
      {"2 0 D 1000 10 0 0 1\n", "line 2: releases an id"},
      {"2 0 D 1000 10 0 0 0\n3 0 D 1000 10 0 0 0\n", "line 3: releases an id"},
      {"2 0 R ffffffffffffffff 10 0 0 1\n", "line 2: its range ends beyond"},
      {"2 0 I 7000 ffffffffffffffffffff 0 0 0\n", "line 2: is not"},
      {"2 0 I 7000 18446744073709551615 0 0 0\n", "line 2: its range ends beyond"},
  };
  for (const auto& row : rows) expect_refused(good + row.line, row.why);
  expect_refused(good + std::string(100000, '1'), "line 2: is too long");
}

TEST(PerfTrace, a_good_trace_with_random_damage_parses_or_is_refused_with_a_reason) {
  std::mt19937_64 random(2);
  unsigned refused = 0;
  for (unsigned round = 0; round < 20000; round++) {
    std::string bytes(kGood);
    for (uint64_t flips = 1 + random() % 4; flips > 0; flips--) {
      static const char kLikely[] = "0123456789abcdefRDFIEX \n-#";
      const uint64_t bits = random();
      bytes[bits % bytes.size()] =
          (bits >> 32) % 2 == 0 ? kLikely[(bits >> 40) % (sizeof(kLikely) - 1)] : static_cast<char>(bits >> 48);
    }
    Trace trace;
    const Result parsed = parse(bytes, &trace);
    if (parsed.ok()) {
      EXPECT_GT(trace.registers, 0u);
    } else {
      refused++;
      EXPECT_FALSE(parsed.why().empty());
    }
  }
  EXPECT_GT(refused, 1000u);
}

// Traces in files: plain, compressed, damaged, missing.

std::string long_trace() {
  std::string text = "# program: long\n";
  for (int i = 0; i < 20000; i++) {
    text += std::to_string(i) + " 0 R 7f0000001234 " + std::to_string(1 + i * 7919 % 5000) + " 5 0 " +
            std::to_string(i) + "\n";
  }
  return text;
}

std::string refusal_of_file(const std::string& content) {
  const test::TempFolder folder;
  const std::string path = folder.write("a.trace", content);
  Trace trace;
  const Result read = read_trace(path, &trace);
  EXPECT_FALSE(read.ok());
  EXPECT_NE(read.why().find(path), std::string::npos) << "names the file: " << read.why();
  return read.why();
}

TEST(PerfTraceFile, a_header_without_end_is_refused) {
  EXPECT_NE(refusal_of_file(std::string(65 << 20, '\n')).find("more of a header"), std::string::npos);
}

#if defined(HAVE_LZMA)

std::string compressed(const std::string& text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t length = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(0, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<uint8_t*>(out.data()), &length, out.size()),
            LZMA_OK);
  out.resize(length);
  return out;
}

TEST(PerfTraceFile, an_xz_file_is_read_whole_and_so_are_two_in_one) {
  const std::string text = long_trace();
  const test::TempFolder folder;
  const size_t middle = text.find('\n', text.size() / 2) + 1;
  for (const std::string& content :
       {compressed(text), compressed(text.substr(0, middle)) + compressed(text.substr(middle))}) {
    Trace trace;
    const Result read = read_trace(folder.write("a.trace", content), &trace);
    ASSERT_TRUE(read.ok()) << read.why();
    EXPECT_EQ(trace.records.size(), 20000u);
  }
}

#endif

// Sizes as pinrail_perf reads and writes them.

TEST(PerfText, sizes_are_a_list_of_numbers_with_suffixes) {
  const auto list = [](const char* typed) {
    std::vector<size_t> sizes;
    const Result parsed = parse_size_list(typed, &sizes);
    EXPECT_TRUE(parsed.ok()) << typed << ": " << parsed.why();
    return sizes;
  };
  EXPECT_EQ(list("4096"), (std::vector<size_t>{4096}));
  EXPECT_EQ(list("4K,4k,1M,2m,1G,3g,1,1M"),
            (std::vector<size_t>{4096, 4096, 1 << 20, 2 << 20, size_t{1} << 30, size_t{3} << 30, 1, 1 << 20}));
  EXPECT_EQ(list("65536G"), (std::vector<size_t>{size_t{1} << 46}));
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(4096), "4 KiB");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(UINT64_MAX), "unlimited");
}

TEST(PerfText, what_is_no_size_is_refused_with_a_reason) {
  const auto expect_refusals = [](const std::vector<const char*>& all, const char* said) {
    for (const char* typed : all) {
      std::vector<size_t> sizes = {7};
      const Result parsed = parse_size_list(typed, &sizes);
      EXPECT_NE(parsed.why().find(said), std::string::npos) << typed << ": " << parsed.why();
      EXPECT_EQ(sizes, std::vector<size_t>{7}) << "an error changes nothing";
    }
  };
  expect_refusals({"0", "0K", "", ",", "4K,", ",4K", "4K,,1M", "K", "-1", "+1", "4 K", " 4K", "4KB", "4T", "0x10",
                   "1.5M", "four", "4K;1M"},
                  "is not a size");
  expect_refusals({"4K,zzz"}, "'zzz'");
  expect_refusals({"99999999999999999999999999", "99999999999G", "65537G"}, "too large");
}

}  // namespace
}  // namespace pinrail::perf

namespace pinrail::advise {
namespace {

// Reasons of misses, distances and lives of small traces, and what names become in a page.

constexpr uint64_t kPage = 4096;

// One call at a time, of whole pages.
class Calls {
 public:
  Calls& request(uint64_t first, uint64_t pages, uint32_t access = 1, uint32_t flags = 0) {
    return add({first * kPage, pages * kPage, 0, access, flags, 0, perf::TraceOp::reg, 0});
  }
  Calls& event(uint64_t first, uint64_t pages) {
    return add({first * kPage, pages * kPage, 0, 0, 0, 0, perf::TraceOp::invalidate, 0});
  }
  Study study() const { return advise::study(trace_, kPage); }

 private:
  Calls& add(perf::TraceRecord record) {
    record.ns = trace_.records.size();
    trace_.records.push_back(record);
    return *this;
  }
  perf::Trace trace_;
};

TEST(AdviseStudy, each_miss_has_its_reason) {
  const Study all = Calls()
                        .request(10, 4)        // cold
                        .request(11, 2)        // hit
                        .request(12, 4)        // span
                        .request(10, 4, 4)     // rights
                        .request(10, 4, 5)     // hit: the last one got the rights of the first one, too
                        .event(10, 1)          // ends the first one and the one of more rights
                        .request(10, 2)        // event
                        .request(10, 2, 1, 1)  // bypass
                        .request(100, 1)       // cold
                        .study();
  EXPECT_EQ(all.misses[PINRAIL_MISS_COLD], 2u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_SPAN], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_RIGHTS], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_EVENT], 1u);
  EXPECT_EQ(all.misses[PINRAIL_MISS_BYPASS], 1u);
  EXPECT_EQ(all.hits, 2u);
  EXPECT_EQ(all.requests, all.hits + all.all_misses());
  EXPECT_EQ(all.pages[PINRAIL_MISS_COLD], 5u);
  EXPECT_EQ(all.events, 1u);
}

TEST(AdviseStudy, a_distance_is_the_bytes_that_were_used_since_but_for_what_an_event_has_ended) {
  const Study all =
      Calls().request(0, 1).request(10, 2).request(20, 4).request(0, 1).request(0, 1).request(10, 2).study();
  EXPECT_EQ(all.distances, (std::vector<uint64_t>{1 * kPage, 7 * kPage, 7 * kPage}));
  EXPECT_EQ(all.misses_of_lru(7 * kPage - 1), 5u);
  EXPECT_EQ(all.misses_of_lru(7 * kPage), 3u);
  EXPECT_EQ(Calls().request(0, 1).request(10, 2).event(10, 1).request(0, 1).study().distances,
            (std::vector<uint64_t>{kPage}));
}

TEST(AdviseStudy, a_name_from_a_file_is_no_markup) {
  EXPECT_EQ(escaped("<script>\"a\" & 'b'\x01\xff"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;??");
}

}  // namespace
}  // namespace pinrail::advise
