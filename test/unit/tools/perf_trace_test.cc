// SPDX-License-Identifier: BSD-3-Clause
// perf_trace_test.cc - what pinrail_perf takes for a trace, and what it says of everything else.
#include <gtest/gtest.h>

#include <random>

#include "contrib/tools/perf/trace.h"

namespace pinrail::perf {
namespace {

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

TEST(PerfTrace, pieces_of_any_length_make_the_same_trace) {
  for (size_t piece = 1; piece < sizeof(kGood); piece++) {
    Trace trace;
    ASSERT_TRUE(parse(kGood, &trace, piece).ok()) << piece;
    EXPECT_EQ(trace.records.size(), 8u);
    EXPECT_EQ(trace.records.back().line, 10u);
  }
}

TEST(PerfTrace, a_trace_that_is_cut_off_anywhere_is_refused_or_ends_with_a_whole_line) {
  const std::string_view whole(kGood);
  for (size_t length = 0; length < whole.size(); length++) {
    Trace trace;
    const Result parsed = parse(whole.substr(0, length), &trace);
    const bool at_line_end = length > 0 && whole[length - 1] == '\n';
    EXPECT_EQ(parsed.ok(), at_line_end && whole.substr(0, length).find(" R ") != std::string::npos) << length;
  }
}

TEST(PerfTrace, a_header_that_counts_records_shows_that_lines_are_missing) {
  const std::string head = "# records: 2 dropped 0 threads 1\n", line = "1 0 R 1000 10 0 0 ";
  Trace trace;
  EXPECT_TRUE(parse(head + line + "0\n" + line + "1\n", &trace).ok());
  expect_refused(head + line + "0\n", "line 2: is the last one, but the header speaks of 2 records");
  expect_refused("# records: 18446744073709551615\n" + line + "0\n", "line 1: '# records:' names more");
  expect_refused("# records: many\n" + line + "0\n", "line 1:");
}

TEST(PerfTrace, an_empty_file_and_one_without_R_lines_say_so) {
  expect_refused("", "is empty");
  expect_refused("# program: x\n", "no R line");
  expect_refused("1 0 I 1000 10 0 0 0\n", "no R line");
}

TEST(PerfTrace, malformed_lines_are_named_by_number_and_reason) {
  const std::string good = "1 0 R 1000 10 0 0 0\n";
  expect_refused(good + "garbage\n", "line 2: does not begin with a time");
  expect_refused(good + "2 0 Q 1000 10 0 0 1\n", "line 2: its operation");
  expect_refused(good + "2 0 RR 1000 10 0 0 1\n", "line 2: its operation");
  expect_refused(good + "2 0 R 1000 10 0 0\n", "line 2: is not");
  expect_refused(good + "2 0 R 1000 10 0 0 1 9\n", "line 2: has more fields");
  expect_refused(good + "2 0 R 0x1000 10 0 0 1\n", "line 2: is not");
  expect_refused(good + "2 0 R 1000 -10 0 0 1\n", "line 2: is not");
  expect_refused(good + "2 0 R 1000 1a 0 0 1\n", "line 2: is not");
  expect_refused(good + "0 0 I 1000 10 0 0 0\n", "line 2: is earlier");
  expect_refused(good + "2 0 R 1000 0 0 0 1\n", "line 2: its range is empty");
  expect_refused(good + "2 0 R 1000 10 10 0 1\n", "line 2: its access");
  expect_refused(good + "2 0 R 1000 10 0 0 -2\n", "line 2: its id");
  expect_refused(good + "2 0 R 1000 10 0 0 0\n", "line 2: its id is not new");
  expect_refused(good + "2 0 D 1000 10 0 0 1\n", "line 2: releases an id");
  expect_refused(good + "2 0 D 1000 10 0 0 0\n3 0 D 1000 10 0 0 0\n", "line 3: releases an id");
  expect_refused(good + "2 0 R ffffffffffffffff 10 0 0 1\n", "line 2: its range ends beyond");
  expect_refused(good + "2 0 I 7000 ffffffffffffffffffff 0 0 0\n", "line 2: is not");
  expect_refused(good + "2 0 I 7000 18446744073709551615 0 0 0\n", "line 2: its range ends beyond");
  expect_refused(good + std::string(100000, '1'), "line 2: is too long");
}

TEST(PerfTrace, carriage_returns_empty_lines_and_tabs_do_no_harm) {
  Trace trace;
  EXPECT_TRUE(parse("\r\n1 0\tR  1000 10 0 0 0\r\n\n", &trace).ok());
  EXPECT_EQ(trace.records.size(), 1u);
}

TEST(PerfTrace, random_bytes_are_refused_and_nothing_breaks) {
  std::mt19937_64 random(1);
  for (unsigned round = 0; round < 20000; round++) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    EXPECT_FALSE(parse(bytes, std::make_unique<Trace>().get()).ok());
  }
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

}  // namespace
}  // namespace pinrail::perf
