// SPDX-License-Identifier: BSD-3-Clause
// param_parse_test.cc - texts to values and back, parameter files, good and bad, and lists of components.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <limits>
#include <string>
#include <vector>

#include "base/loader/loader.h"
#include "base/param/param.h"
#include "base/param/registry_impl.h"
#include "test/support/cases.h"
#include "test/support/files.h"

namespace pinrail::param {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr pinrail_enum_value_t kChoices[] = {{-1, "auto"}, {0, "no"}, {1, "yes"}, {0, nullptr}};

pinrail_param_t of_type(pinrail_param_type_t type, int64_t minimum = 0, int64_t maximum = 0) {
  pinrail_param_t declaration{};
  declaration.size = sizeof(declaration);
  declaration.type = type;
  declaration.minimum = minimum;
  declaration.maximum = maximum;
  declaration.values = type == PINRAIL_TYPE_ENUM ? kChoices : nullptr;
  return declaration;
}

// The value, or "BAD_PARAM: why".
std::string read(const pinrail_param_t& declaration, const char* text) {
  pinrail_param_value_t value{};
  std::string why;
  const Status status = parse(declaration, text, &value, &why);
  if (!status.ok()) return std::string(status_name(status.code())) + ": " + why;
  const bool is_unsigned = declaration.type == PINRAIL_TYPE_UNSIGNED || declaration.type == PINRAIL_TYPE_SIZE;
  if (declaration.type == PINRAIL_TYPE_STRING) return value.s;
  return is_unsigned ? std::to_string(value.u) : std::to_string(value.i);
}

std::string rewrite(const pinrail_param_t& declaration, const char* text) {
  pinrail_param_value_t value{};
  std::string why;
  EXPECT_TRUE(parse(declaration, text, &value, &why).ok()) << text << ": " << why;
  return format(declaration, value);
}

TEST(ParamParse, booleans_have_many_words) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_BOOL);
  for (const char* text : {"1", "yes", "true", "on", "YES", "True", " on\t"}) EXPECT_EQ(read(declaration, text), "1");
  for (const char* text : {"0", "no", "false", "off", "No", "OFF"}) EXPECT_EQ(read(declaration, text), "0");
  for (const char* text : {"2", "maybe", "y", "-1"}) {
    EXPECT_EQ(read(declaration, text), "BAD_PARAM: is neither yes nor no") << text;
  }
}

struct Row {
  const char* text;
  std::string value;
};
void expect_values(const pinrail_param_t& declaration, const std::vector<Row>& rows) {
  for (const Row& row : rows) EXPECT_EQ(read(declaration, row.text), row.value) << row.text;
}
void expect_refused(const pinrail_param_t& declaration, const std::string& why, const std::vector<const char*>& texts) {
  for (const char* text : texts) EXPECT_EQ(read(declaration, text), "BAD_PARAM: " + why) << text;
}
const char kTooLarge[] = "is larger than 64 bits hold", kNotWhole[] = "is not a whole number";

TEST(ParamParse, integers_are_decimal_or_hexadecimal_and_have_a_sign) {
  expect_values(of_type(PINRAIL_TYPE_INT), {{"42", "42"},
                                            {"-42", "-42"},
                                            {"+42", "42"},
                                            {"010", "10"},  // no octal numbers
                                            {"0x1F", "31"},
                                            {"-0x10", "-16"},
                                            {"9223372036854775807", "9223372036854775807"},
                                            {"-9223372036854775808", "-9223372036854775808"}});
}

TEST(ParamParse, what_is_no_whole_number_is_refused_with_a_reason) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_INT);
  expect_refused(declaration, "is empty", {"", "  "});
  expect_refused(declaration, "is not a number", {"-"});
  expect_refused(declaration, kNotWhole, {"0x", "12a", "1.5", "1 2", "--1"});
  expect_refused(declaration, kTooLarge, {"9223372036854775808", "-9223372036854775809", "99999999999999999999999"});
}

TEST(ParamParse, unsigned_numbers_are_never_negative) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_UNSIGNED);
  for (const char* text : {"18446744073709551615", "Unlimited"}) {
    EXPECT_EQ(read(declaration, text), std::to_string(kUnlimited));
  }
  expect_refused(declaration, kTooLarge, {"18446744073709551616"});
  expect_refused(declaration, "is negative", {"-1"});
  expect_refused(declaration, kNotWhole, {"8M"});  // suffixes are for sizes
}

TEST(ParamParse, sizes_have_suffixes_of_1024) {
  expect_values(of_type(PINRAIL_TYPE_SIZE), {{"4096", "4096"},
                                             {"4k", "4096"},
                                             {"8M", "8388608"},
                                             {"8 M", "8388608"},
                                             {"2G", "2147483648"},
                                             {"1T", "1099511627776"},
                                             {"0x10K", "16384"},
                                             {"unlimited", std::to_string(kUnlimited)},
                                             {"16777215T", "18446742974197923840"}});
}

TEST(ParamParse, sizes_that_are_none_are_refused) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_SIZE);
  expect_refused(declaration, kTooLarge, {"16777216T", "unlimitedK"});
  expect_refused(declaration, "is negative", {"-8M"});
  expect_refused(declaration, "is not a number", {"M"});
  expect_refused(declaration, kNotWhole, {"8MB", "8P", "1.5G"});
}

TEST(ParamParse, ranges_include_their_ends) {
  const pinrail_param_t verbosity = of_type(PINRAIL_TYPE_INT, -1, 100);
  const pinrail_param_t size = of_type(PINRAIL_TYPE_SIZE, 4096, 1 << 20);
  expect_values(verbosity, {{"-1", "-1"}, {"100", "100"}});
  expect_refused(verbosity, "is out of its range", {"-2", "101"});
  expect_values(size, {{"4K", "4096"}, {"1M", "1048576"}});
  expect_refused(size, "is out of its range", {"4095", "unlimited"});
}

TEST(ParamParse, enums_are_chosen_by_name_or_by_number) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_ENUM);
  expect_values(declaration, {{"auto", "-1"}, {"-1", "-1"}, {"Yes", "1"}, {"0x1", "1"}});
  expect_refused(declaration, "is not one of its values", {"maybe", "2"});
}

TEST(ParamParse, strings_are_taken_as_they_are) {
  EXPECT_EQ(read(of_type(PINRAIL_TYPE_STRING), " a,b "), " a,b ");
  EXPECT_EQ(read(of_type(PINRAIL_TYPE_STRING), ""), "");
}

TEST(ParamParse, an_error_writes_no_value) {
  pinrail_param_value_t value{};
  value.i = 7;
  std::string why;
  EXPECT_FALSE(parse(of_type(PINRAIL_TYPE_INT), "x", &value, &why).ok());
  EXPECT_EQ(value.i, 7);
}

TEST(ParamFormat, values_are_written_as_a_user_may_type_them_again) {
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_BOOL), "on"), "yes");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_INT), "-0x10"), "-16");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "8388608"), "8M");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "18446744073709551615"), "unlimited");
  for (const char* text : {"1536K", "1025", "4096T", "0"}) EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), text), text);
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_UNSIGNED), "unlimited"), "unlimited");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_ENUM), "-1"), "auto");
}

TEST(ParamFormat, what_is_accepted_is_told_by_type) {
  EXPECT_EQ(accepted(of_type(PINRAIL_TYPE_ENUM)), "auto (-1), no (0) or yes (1)");
  EXPECT_EQ(accepted(of_type(PINRAIL_TYPE_INT, 0, 100)), "a whole number from 0 to 100");
  EXPECT_EQ(accepted(of_type(PINRAIL_TYPE_SIZE, 4096, 1 << 20)),
            "bytes from 4K to 1M, K, M, G or T may follow the number");
  EXPECT_EQ(accepted(of_type(PINRAIL_TYPE_SIZE)), "bytes, K, M, G or T may follow the number; or unlimited");
}

TEST(Suggest, counts_letters_to_change) {
  EXPECT_EQ(edit_distance("grdma", "grdma"), 0U);
  EXPECT_EQ(edit_distance("grdam", "grdma"), 1U) << "neighbours swapped are one slip";
  EXPECT_EQ(edit_distance("leav_pinned", "leave_pinned"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(edit_distance("", "abc"), 3U);
}

TEST(Suggest, takes_the_nearest_name) {
  EXPECT_EQ(suggest("size_limt", {"count_limit", "size_limit", "gc_limit"}), "size_limit");
  EXPECT_EQ(suggest("gpusn", {"rgpusm", "gpusm"}), "gpusm");
}

TEST(Suggest, is_silent_when_nothing_is_near) {
  EXPECT_EQ(suggest("verbs", {"mlock", "iouring"}), "");
  EXPECT_EQ(suggest("x", {"y"}), "") << "of one letter every other one is a slip away";
  EXPECT_EQ(suggest("", {"a"}), "");
  EXPECT_EQ(suggest(std::string(100000, 'a'), {std::string_view("a")}), "");
}

// Parameter files, good and bad.

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

namespace pinrail::loader {
namespace {

// Lists of components.

Selection parsed(const char* text) {
  Selection selection;
  std::string why;
  EXPECT_TRUE(Selection::parse(text, &selection, &why).ok()) << text << ": " << why;
  return selection;
}

std::string refusal(const char* text) {
  Selection selection;
  std::string why = "accepted";
  EXPECT_TRUE(Selection::parse(text, &selection, &why).is(PINRAIL_ERR_BAD_PARAM)) << text;
  return why;
}

TEST(Selection, an_empty_list_allows_everything_that_need_not_be_named) {
  for (const char* text : {"", "  ", ",", " , ,"}) {
    EXPECT_TRUE(parsed(text).allows("grdma", 0)) << text;
    EXPECT_FALSE(parsed(text).allows("grdma", -1)) << text;
    EXPECT_FALSE(parsed(text).requests("grdma")) << text;
  }
}

TEST(Selection, none_allows_nothing_and_stands_alone) {
  EXPECT_TRUE(parsed(" none ").is_none());
  EXPECT_FALSE(parsed("none").allows("grdma", 50));
  EXPECT_FALSE(parsed("").is_none() || parsed("grdma").is_none());
  EXPECT_EQ(refusal("none,grdma"), "none stands alone");
  EXPECT_EQ(refusal("^none"), "none stands alone");
}

TEST(Selection, a_list_allows_what_it_names_at_any_priority) {
  const Selection selection = parsed("grdma,rgpusm");
  EXPECT_TRUE(selection.allows("grdma", -1));
  EXPECT_TRUE(selection.allows("rgpusm", 50));
  EXPECT_FALSE(selection.allows("gpusm", 50));
  EXPECT_TRUE(selection.requests("grdma"));
  EXPECT_FALSE(selection.requests("gpusm"));
}

TEST(Selection, white_space_and_empty_and_repeated_names_mean_nothing) {
  const Selection selection = parsed("  grdma ,, rgpusm,\tgrdma, ");
  EXPECT_EQ(selection.names, (std::vector<std::string>{"grdma", "rgpusm"}));
}

TEST(Selection, a_caret_leaves_out_the_whole_list) {
  for (const char* text : {"^grdma,rgpusm", " ^ grdma , rgpusm"}) {
    const Selection selection = parsed(text);
    EXPECT_FALSE(selection.allows("grdma", 50)) << text;
    EXPECT_FALSE(selection.allows("rgpusm", 50)) << text;
    EXPECT_TRUE(selection.allows("gpusm", 50)) << text;
    EXPECT_FALSE(selection.allows("gpusm", -1)) << "left out is not named: " << text;
    EXPECT_FALSE(selection.requests("grdma")) << text;
  }
}

TEST(Selection, a_caret_elsewhere_is_refused) {
  EXPECT_EQ(refusal("grdma,^rgpusm"), "^ must be the first character, and leaves out the whole list");
  EXPECT_EQ(refusal("^grdma,^rgpusm"), "^ must be the first character, and leaves out the whole list");
  EXPECT_EQ(refusal("^"), "^ leaves out nothing");
  EXPECT_EQ(refusal("^ ,"), "^ leaves out nothing");
}

TEST(Selection, what_no_component_is_called_is_refused) {
  EXPECT_EQ(refusal("grdma rgpusm"), "\"grdma rgpusm\" is not a component's name");
  EXPECT_EQ(refusal("grdma;rgpusm"), "\"grdma;rgpusm\" is not a component's name");
  EXPECT_EQ(refusal("../grdma"), "\"../grdma\" is not a component's name");
}

}  // namespace
}  // namespace pinrail::loader
