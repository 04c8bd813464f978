// SPDX-License-Identifier: BSD-3-Clause
// perf_trace_test.cc - what pinrail_perf takes for a trace, and what it says of everything else.
#include <config.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "contrib/tools/advise/study.h"
#include "contrib/tools/perf/basics.h"
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

// Traces in files: plain, compressed, damaged, missing.

#if defined(HAVE_LZMA)
#include <lzma.h>
#endif

namespace pinrail::perf {
namespace {

class TempFile {
 public:
  explicit TempFile(const std::string& content) {
    const int fd = mkstemp(path_.data());
    EXPECT_GE(fd, 0);
    EXPECT_EQ(write(fd, content.data(), content.size()), static_cast<ssize_t>(content.size()));
    close(fd);
  }
  ~TempFile() { unlink(path_.c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_ = testing::TempDir() + "pinrail_trace_XXXXXX";
};

std::string long_trace() {
  std::string text = "# program: long\n";
  for (int i = 0; i < 20000; i++) {
    text += std::to_string(i) + " 0 R 7f0000001234 " + std::to_string(1 + i * 7919 % 5000) + " 5 0 " +
            std::to_string(i) + "\n";
  }
  return text;
}

std::string refusal_of_file(const std::string& content) {
  const TempFile file(content);
  Trace trace;
  const Result read = read_trace(file.path(), &trace);
  EXPECT_FALSE(read.ok());
  EXPECT_NE(read.why().find(file.path()), std::string::npos) << "names the file: " << read.why();
  return read.why();
}

TEST(PerfTraceFile, a_plain_file_is_read_whole) {
  const TempFile file(long_trace());
  Trace trace;
  const Result read = read_trace(file.path(), &trace);
  ASSERT_TRUE(read.ok()) << read.why();
  EXPECT_EQ(trace.records.size(), 20000u);
}

TEST(PerfTraceFile, what_cannot_be_read_is_named_with_the_reason) {
  Trace trace;
  EXPECT_NE(read_trace("/nonexistent/a.trace", &trace).why().find("No such file"), std::string::npos);
  EXPECT_NE(read_trace("/", &trace).why().find("directory"), std::string::npos);
  EXPECT_NE(refusal_of_file("").find("is empty"), std::string::npos);
  EXPECT_NE(refusal_of_file("\x7f"
                            "ELF")
                .find("line 1"),
            std::string::npos);
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
  const size_t middle = text.find('\n', text.size() / 2) + 1;
  for (const std::string& content :
       {compressed(text), compressed(text.substr(0, middle)) + compressed(text.substr(middle))}) {
    const TempFile file(content);
    Trace trace;
    const Result read = read_trace(file.path(), &trace);
    ASSERT_TRUE(read.ok()) << read.why();
    EXPECT_EQ(trace.records.size(), 20000u);
  }
}

TEST(PerfTraceFile, an_xz_file_that_is_cut_off_anywhere_is_refused) {
  const std::string whole = compressed(long_trace());
  for (size_t length = 6; length < whole.size(); length += whole.size() / 50)
    EXPECT_NE(refusal_of_file(whole.substr(0, length)).find("cut off"), std::string::npos) << length;
  EXPECT_NE(refusal_of_file(whole.substr(0, whole.size() - 1)).find("cut off"), std::string::npos);
}

TEST(PerfTraceFile, a_damaged_xz_file_is_refused) {
  const std::string whole = compressed(long_trace());
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; round++) {
    std::string damaged = whole;
    const size_t at = 6 + random() % (damaged.size() - 6);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    refusal_of_file(damaged);
  }
}

TEST(PerfTraceFile, a_file_that_expands_without_end_is_refused) {
  EXPECT_NE(refusal_of_file(compressed(std::string(100 << 20, '\n'))).find("expands more than"), std::string::npos);
  std::string lines = "1 0 E 0 0 0 0 0\n";
  while (lines.size() < size_t{64} << 20) lines += lines;
  EXPECT_NE(refusal_of_file(compressed(lines)).find("expands more than"), std::string::npos);
}

TEST(PerfTraceFile, compressed_nothing_is_empty) {
  EXPECT_NE(refusal_of_file(compressed("")).find("is empty"), std::string::npos);
}

#endif

// Sizes and numbers as pinrail_perf reads them.

std::vector<size_t> list(const char* typed) {
  std::vector<size_t> sizes;
  const Result parsed = parse_size_list(typed, &sizes);
  EXPECT_TRUE(parsed.ok()) << typed << ": " << parsed.why();
  return sizes;
}

std::string refusal_of_file(const char* typed) {
  std::vector<size_t> sizes = {7};
  const Result parsed = parse_size_list(typed, &sizes);
  EXPECT_FALSE(parsed.ok()) << typed;
  EXPECT_EQ(sizes, std::vector<size_t>{7}) << "an error changes nothing";
  return parsed.why();
}

TEST(PerfText, suffixes_multiply_by_powers_of_1024) {
  EXPECT_EQ(list("4096"), (std::vector<size_t>{4096}));
  EXPECT_EQ(list("4K,4k,1M,2m,1G,3g"),
            (std::vector<size_t>{4096, 4096, 1 << 20, 2 << 20, size_t{1} << 30, size_t{3} << 30}));
}

TEST(PerfText, a_list_keeps_its_order_and_its_repetitions) {
  EXPECT_EQ(list("1M,1,1M"), (std::vector<size_t>{1 << 20, 1, 1 << 20}));
}

TEST(PerfText, what_is_no_size_is_named_in_the_message) {
  for (const char* typed :
       {"", ",", "4K,", ",4K", "4K,,1M", "K", "-1", "+1", "4 K", " 4K", "4KB", "4T", "0x10", "1.5M", "four", "4K;1M"}) {
    EXPECT_NE(refusal_of_file(typed).find("is not a size"), std::string::npos) << typed;
  }
  EXPECT_NE(refusal_of_file("4K,zzz").find("'zzz'"), std::string::npos);
}

TEST(PerfText, zero_and_what_no_address_space_holds_are_refused) {
  refusal_of_file("0");
  refusal_of_file("0K");
  EXPECT_NE(refusal_of_file("99999999999G").find("too large"), std::string::npos);
  refusal_of_file("99999999999999999999999999");
  EXPECT_EQ(list("65536G"), (std::vector<size_t>{size_t{1} << 46}));
  EXPECT_NE(refusal_of_file("65537G").find("too large"), std::string::npos);
}

TEST(PerfText, sizes_read_as_people_write_them) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(4096), "4 KiB");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(UINT64_MAX), "unlimited");
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

TEST(AdviseStudy, a_distance_is_the_bytes_that_were_used_since) {
  const Study all =
      Calls().request(0, 1).request(10, 2).request(20, 4).request(0, 1).request(0, 1).request(10, 2).study();
  EXPECT_EQ(all.distances, (std::vector<uint64_t>{1 * kPage, 7 * kPage, 7 * kPage}));
  EXPECT_EQ(all.misses_of_lru(0), 6u);
  EXPECT_EQ(all.misses_of_lru(1 * kPage), 5u);
  EXPECT_EQ(all.misses_of_lru(7 * kPage - 1), 5u);
  EXPECT_EQ(all.misses_of_lru(7 * kPage), 3u);
  EXPECT_EQ(all.peak_bytes, 7 * kPage);
}

TEST(AdviseStudy, what_an_event_has_ended_is_no_distance) {
  const Study all = Calls().request(0, 1).request(10, 2).event(10, 1).request(0, 1).study();
  EXPECT_EQ(all.distances, (std::vector<uint64_t>{kPage}));
  EXPECT_TRUE(all.lives[1].by_event);
  EXPECT_EQ(all.lives[1].died_ns, 2u);
  EXPECT_FALSE(all.lives[0].by_event);
  EXPECT_EQ(all.lives[0].uses, 2u);
}

TEST(AdviseStudy, places_hold_every_request) {
  const Study all = Calls().request(0, 2).request(2, 2).request(0, 1).request(50, 1).study();
  ASSERT_EQ(all.places.size(), 2u);
  EXPECT_EQ(all.places[0].requests, 3u);
  EXPECT_EQ(all.places[0].misses, 2u);
  EXPECT_EQ(all.places[0].end, 4 * kPage);
  EXPECT_EQ(all.places[1].requests, 1u);
}

TEST(AdviseStudy, a_name_from_a_file_is_no_markup) {
  EXPECT_EQ(escaped("<script>\"a\" & 'b'\x01\xff"), "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;??");
}

}  // namespace
}  // namespace pinrail::advise
