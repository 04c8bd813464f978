// SPDX-License-Identifier: BSD-3-Clause
// param_file_test.cc - parameter files, good and bad.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/param/registry_impl.h"
#include "test/support/answer_of.h"
#include "test/support/temp_folder.h"

namespace pinrail::param {
namespace {

using test::TempFolder;

constexpr uid_t kNobody = 65534;

// "name=value name=value", or "line: why".
std::string read(std::string_view text) {
  std::vector<FileLine> lines;
  FileError error;
  if (!parse_file(text, &lines, &error).ok()) return std::to_string(error.line) + ": " + error.why;
  std::string all;
  for (const FileLine& line : lines) all += (all.empty() ? "" : "|") + line.name + "=" + line.value;
  return all;
}

std::string why_unreadable(const std::string& path) {
  std::vector<FileLine> lines;
  FileError error;
  return read_file(path, &lines, &error).is(PINRAIL_ERR_ERROR) ? error.why : "";
}

TEST(ParamFile, has_a_name_and_a_value_a_line) { EXPECT_EQ(read("a = 1\nb=2\n\tc\t=\t3 4 \n"), "a=1|b=2|c=3 4"); }

TEST(ParamFile, remembers_the_lines_numbers) {
  std::vector<FileLine> lines;
  FileError error;
  ASSERT_TRUE(parse_file("# one\n\na = 1\n", &lines, &error).ok());
  EXPECT_EQ(lines.at(0).line, 3);
}

TEST(ParamFile, comments_and_blank_lines_set_nothing) {
  EXPECT_EQ(read("\n  \n# a = 1\n  # b = 2\n"), "");
  EXPECT_EQ(read("a = 1 # why\nb = x#y\nc = # nothing\n"), "a=1|b=x#y|c=");
}

TEST(ParamFile, a_pair_of_quotes_is_taken_off) {
  EXPECT_EQ(read("a = \" 1 # 2 \"\nb = 'x\"y'  # c\nc = \"\"\n"), "a= 1 # 2 |b=x\"y|c=");
  EXPECT_EQ(read("a = x\"y\n"), "a=x\"y") << "a quote inside is text";
}

TEST(ParamFile, the_value_may_hold_an_equals_sign) { EXPECT_EQ(read("a = b=c\n"), "a=b=c"); }

TEST(ParamFile, lines_may_end_as_on_other_systems) {
  EXPECT_EQ(read("a = 1\r\nb = \"2\"\r\n\r\n# c\r\n"), "a=1|b=2");
  EXPECT_EQ(read("\xEF\xBB\xBF"
                 "a = 1\n"),
            "a=1")
      << "a byte order mark";
}

TEST(ParamFile, the_last_line_needs_no_end) {
  EXPECT_EQ(read("a = 1\nb = 2"), "a=1|b=2");
  EXPECT_EQ(read(""), "");
}

TEST(ParamFile, a_line_that_is_no_setting_is_an_error_with_its_number) {
  EXPECT_EQ(read("a = 1\n\nb 2\n"), "3: has no =");
  EXPECT_EQ(read("= 1\n"), "1: has no parameter's name before the =");
  EXPECT_EQ(read("a b = 1\n"), "1: has no parameter's name before the =");
  EXPECT_EQ(read("a-b = 1\n"), "1: has no parameter's name before the =");
  EXPECT_EQ(read("a = \"1\n"), "1: has a quote that is not closed");
  EXPECT_EQ(read("a = \"\n"), "1: has a quote that is not closed");
  EXPECT_EQ(read("a = \"1\" 2\n"), "1: has text behind the closing quote");
  EXPECT_EQ(read(std::string("a = 1\nb = 2\0003\n", 14)), "2: has a NUL byte");
}

TEST(ParamFile, a_line_may_be_long_but_not_endless) {
  const std::string value(kLongestLine - 4, 'x');
  EXPECT_EQ(read("a = " + value), "a=" + value);
  EXPECT_EQ(read("a = " + value + "y"), "1: is longer than 65536 bytes");
  EXPECT_EQ(read("#" + std::string(kLongestLine, 'x')), "1: is longer than 65536 bytes");
}

TEST(ParamFile, what_is_read_from_disk_is_the_same) {
  const TempFolder folder;
  std::vector<FileLine> lines;
  FileError error;
  ASSERT_TRUE(read_file(folder.write("f", "a = 1\nb = 2"), &lines, &error).ok());
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1].value, "2");
}

TEST(ParamFile, a_file_is_read_where_standard_input_is_closed) {
  const TempFolder folder;
  const std::string path = folder.write("f", "a = 1");
  const int kept = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  close(STDIN_FILENO);  // the file gets its number
  std::vector<FileLine> lines;
  FileError error;
  const bool is_read = read_file(path, &lines, &error).ok();
  if (kept >= 0) {
    dup2(kept, STDIN_FILENO);
    close(kept);
  }
  ASSERT_TRUE(is_read) << error.why;
  EXPECT_EQ(lines.at(0).value, "1");
}

TEST(ParamFile, a_missing_file_is_told_from_an_unreadable_one) {
  const TempFolder folder;
  std::vector<FileLine> lines;
  FileError error;
  EXPECT_TRUE(read_file(folder.path("none"), &lines, &error).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(read_file(folder.write("f", "") + "/below", &lines, &error).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(why_unreadable(folder.path()), "it is a folder");
}

TEST(ParamFile, a_file_without_permission_cannot_be_read) {
  const TempFolder folder;
  const std::string path = folder.write("f", "a = 1\n");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  const test::ChildAnswer refused = test::answer_of([&path] {
    if (geteuid() == 0 && setuid(kNobody) != 0) return test::ChildAnswer{-1};
    return test::ChildAnswer{why_unreadable(path) == "Permission denied"};
  });
  EXPECT_EQ(refused[0], 1);
}

TEST(ParamFile, a_pipe_does_not_hold_up_the_program) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(why_unreadable(folder.path("pipe")), "it is not a regular file");
}

TEST(ParamFile, the_null_device_is_an_empty_file_and_an_endless_one_is_refused) {
  std::vector<FileLine> lines = {{"a", "1", 1}};
  FileError error;
  EXPECT_TRUE(read_file("/dev/null", &lines, &error).ok());
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(why_unreadable("/dev/zero"), "it is larger than 16M");
}

TEST(ParamFile, no_bytes_whatever_make_it_fall) {
  // A small generator of its own: the same bytes in every run.
  uint32_t state = 12345;
  const auto next = [&state] { return state = state * 1664525 + 1013904223; };
  constexpr std::string_view kPieces = "a=\"'#\n\r \t_\0\\x9\xEF\xBB\xBF";
  size_t accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (uint32_t left = (next() >> 16) % 40; left > 0; --left) text += kPieces[(next() >> 16) % kPieces.size()];
    std::vector<FileLine> lines;
    FileError error;
    const bool right = parse_file(text, &lines, &error).ok();
    if (right) ++accepted;
    EXPECT_EQ(right, error.line == 0) << text;
    for (const FileLine& line : lines) EXPECT_FALSE(line.name.empty());
  }
  EXPECT_GT(accepted, 0U);
  EXPECT_LT(accepted, 20000U);
}

}  // namespace
}  // namespace pinrail::param
