// SPDX-License-Identifier: BSD-3-Clause
// perf_trace_file_test.cc - traces in files: plain, compressed, damaged, missing.
#include <config.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <random>

#include "contrib/tools/perf/trace.h"

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

std::string refusal(const std::string& content) {
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
  EXPECT_NE(refusal("").find("is empty"), std::string::npos);
  EXPECT_NE(refusal("\x7f"
                    "ELF")
                .find("line 1"),
            std::string::npos);
}

TEST(PerfTraceFile, a_header_without_end_is_refused) {
  EXPECT_NE(refusal(std::string(65 << 20, '\n')).find("more of a header"), std::string::npos);
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
    EXPECT_NE(refusal(whole.substr(0, length)).find("cut off"), std::string::npos) << length;
  EXPECT_NE(refusal(whole.substr(0, whole.size() - 1)).find("cut off"), std::string::npos);
}

TEST(PerfTraceFile, a_damaged_xz_file_is_refused) {
  const std::string whole = compressed(long_trace());
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; round++) {
    std::string damaged = whole;
    const size_t at = 6 + random() % (damaged.size() - 6);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random() % 8));
    refusal(damaged);
  }
}

TEST(PerfTraceFile, a_file_that_expands_without_end_is_refused) {
  EXPECT_NE(refusal(compressed(std::string(100 << 20, '\n'))).find("expands more than"), std::string::npos);
  std::string lines = "1 0 E 0 0 0 0 0\n";
  while (lines.size() < size_t{64} << 20) lines += lines;
  EXPECT_NE(refusal(compressed(lines)).find("expands more than"), std::string::npos);
}

TEST(PerfTraceFile, compressed_nothing_is_empty) {
  EXPECT_NE(refusal(compressed("")).find("is empty"), std::string::npos);
}

#endif

}  // namespace
}  // namespace pinrail::perf
