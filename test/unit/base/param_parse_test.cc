// SPDX-License-Identifier: BSD-3-Clause
// param_parse_test.cc - texts to values and back, parameter files, good and bad, and lists of components.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/loader/loader.h"
#include "base/param/param.h"
#include "test/support/cases.h"
#include "test/support/files.h"

namespace pinrail::param {
namespace {

const char kUnlimited[] = "18446744073709551615";
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

// Many texts of a type, and what each of them is read as.
struct Row {
  pinrail_param_t declaration;
  std::string value;
  std::vector<const char*> texts;
};
const char kTooLarge[] = "BAD_PARAM: is larger than 64 bits hold", kNotWhole[] = "BAD_PARAM: is not a whole number";
const char kOutOfRange[] = "BAD_PARAM: is out of its range";

TEST(ParamParse, each_type_takes_its_own_texts_and_refuses_others_with_a_reason) {
  const pinrail_param_t boolean = of_type(PINRAIL_TYPE_BOOL), integer = of_type(PINRAIL_TYPE_INT),
                        number = of_type(PINRAIL_TYPE_UNSIGNED), size = of_type(PINRAIL_TYPE_SIZE),
                        choice = of_type(PINRAIL_TYPE_ENUM), text = of_type(PINRAIL_TYPE_STRING),
                        verbosity = of_type(PINRAIL_TYPE_INT, -1, 100),
                        block = of_type(PINRAIL_TYPE_SIZE, 4096, 1 << 20);
  const Row rows[] = {
      {boolean, "1", {"1", "yes", "true", "on", "YES", "True", " on\t"}},
      {boolean, "0", {"0", "no", "false", "off", "No", "OFF"}},
      {boolean, "BAD_PARAM: is neither yes nor no", {"2", "maybe", "y", "-1"}},
      {integer, "42", {"42", "+42", "0x2A", "042"}},  // no octal numbers
      {integer, "-16", {"-16", "-0x10"}},
      {integer, "9223372036854775807", {"9223372036854775807"}},
      {integer, "-9223372036854775808", {"-9223372036854775808"}},
      {integer, "BAD_PARAM: is empty", {"", "  "}},
      {integer, "BAD_PARAM: is not a number", {"-"}},
      {integer, kNotWhole, {"0x", "12a", "1.5", "1 2", "--1"}},
      {integer, kTooLarge, {"9223372036854775808", "-9223372036854775809", "99999999999999999999999"}},
      {number, kUnlimited, {"18446744073709551615", "Unlimited"}},
      {number, kTooLarge, {"18446744073709551616"}},
      {number, "BAD_PARAM: is negative", {"-1"}},
      {number, kNotWhole, {"8M"}},  // suffixes are for sizes
      {size, "4096", {"4096", "4k"}},
      {size, "8388608", {"8M", "8 M"}},
      {size, "2147483648", {"2G", "2g"}},
      {size, kUnlimited, {"unlimited"}},
      {size, "18446742974197923840", {"16777215T"}},
      {size, kTooLarge, {"16777216T", "unlimitedK"}},
      {size, "BAD_PARAM: is negative", {"-8M"}},
      {size, "BAD_PARAM: is not a number", {"M"}},
      {size, kNotWhole, {"8MB", "8P", "1.5G"}},
      {verbosity, "-1", {"-1"}},
      {verbosity, "100", {"100"}},
      {verbosity, kOutOfRange, {"-2", "101"}},
      {block, "4096", {"4K"}},
      {block, "1048576", {"1M"}},
      {block, kOutOfRange, {"4095", "unlimited"}},
      {choice, "-1", {"auto", "-1"}},
      {choice, "1", {"Yes", "0x1"}},
      {choice, "BAD_PARAM: is not one of its values", {"maybe", "2"}},
      {text, " a,b ", {" a,b "}},
      {text, "", {""}},
  };
  for (const Row& row : rows) {
    for (const char* const it : row.texts) EXPECT_EQ(read(row.declaration, it), row.value) << it;
  }
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

TEST(Suggest, takes_the_nearest_name_and_is_silent_when_nothing_is_near) {
  EXPECT_EQ(suggest("size_limt", {"count_limit", "size_limit", "gc_limit"}), "size_limit");
  EXPECT_EQ(suggest("gpusn", {"rgpusm", "gpusm"}), "gpusm");
  EXPECT_EQ(edit_distance("grdam", "grdma"), 1U) << "neighbours swapped are one slip";
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
  EXPECT_EQ(suggest("verbs", {"mlock", "iouring"}), "");
  EXPECT_EQ(suggest("x", {"y"}), "") << "of one letter every other one is a slip away";
  EXPECT_EQ(suggest("", {"a"}), "");
  EXPECT_EQ(suggest(std::string(100000, 'a'), {std::string_view("a")}), "");
}

// Parameter files, good and bad.

using test::TempFolder;

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

TEST(ParamFile, has_a_name_and_a_value_a_line_and_says_what_is_wrong_in_which) {
  const struct {
    std::string text, read;
  } rows[] = {
      {"", ""},
      {"a = 1\nb=2\n\tc\t=\t3 4 ", "a=1|b=2|c=3 4"},
      {"\n  \n# a = 1\n  # b = 2\n", ""},
      {"a = 1 # why\nb = x#y\nc = # nothing\n", "a=1|b=x#y|c="},
      {"a = \" 1 # 2 \"\nb = 'x\"y'  # c\nc = \"\"\n", "a= 1 # 2 |b=x\"y|c="},
      {"a = x\"y\n", "a=x\"y"},
      {"a = b=c\n", "a=b=c"},
      {"a = 1\r\nb = \"2\"\r\n\r\n# c\r\n", "a=1|b=2"},
      {"\xEF\xBB\xBF"
       "a = 1\n",
       "a=1"},  // a byte order mark
      {"a = 1\n\nb 2\n", "3: has no ="},
      {"= 1\n", "1: has no parameter's name before the ="},
      {"a b = 1\n", "1: has no parameter's name before the ="},
      {"a-b = 1\n", "1: has no parameter's name before the ="},
      {"a = \"1\n", "1: has a quote that is not closed"},
      {"a = \"\n", "1: has a quote that is not closed"},
      {"a = \"1\" 2\n", "1: has text behind the closing quote"},
      {std::string("a = 1\nb = 2\0003\n", 14), "2: has a NUL byte"},
  };
  for (const auto& row : rows) EXPECT_EQ(read(row.text), row.read) << row.text;
}

TEST(ParamFile, a_line_may_be_long_but_not_endless) {
  const std::string value(kLongestLine - 4, 'x');
  EXPECT_EQ(read("a = " + value), "a=" + value);
  EXPECT_EQ(read("a = " + value + "y"), "1: is longer than 65536 bytes");
  EXPECT_EQ(read("#" + std::string(kLongestLine, 'x')), "1: is longer than 65536 bytes");
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

TEST(ParamFile, no_free_descriptor_says_nothing_about_the_file) {
  const TempFolder folder;
  const std::string path = folder.write("f", "a = 1");
  test::expect_success_in_child([&] {
    const rlimit none{0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none) != 0) return 1;
    Sources sources;
    sources.site_file = path;
    param::Registry registry;
    return registry.read_sources(sources).is(PINRAIL_ERR_OUT_OF_RESOURCE) ? 0 : 2;
  });
}

TEST(ParamFile, a_missing_file_is_told_from_an_unreadable_one) {
  const TempFolder folder;
  std::vector<FileLine> lines;
  FileError error;
  EXPECT_TRUE(read_file(folder.path("none"), &lines, &error).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_TRUE(read_file(folder.write("f", "") + "/below", &lines, &error).is(PINRAIL_ERR_NOT_FOUND));
  EXPECT_EQ(why_unreadable(folder.path()), "it is a folder");
  ASSERT_EQ(mkfifo(folder.path("pipe").c_str(), 0600), 0);
  EXPECT_EQ(why_unreadable(folder.path("pipe")), "it is not a regular file")
      << "opening it does not block until a writer comes";
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

// Which of the names a list allows at this priority, and which it requests.
std::string allowed(const char* text, int priority) {
  const Selection selection = parsed(text);
  std::string names;
  for (const char* name : {"grdma", "rgpusm", "gpusm"}) {
    if (selection.allows(name, priority)) names += std::string(selection.requests(name) ? "+" : " ") + name;
  }
  return names;
}

TEST(Selection, a_list_names_what_is_allowed_or_with_a_caret_what_is_left_out) {
  const struct {
    const char *text, *allowed, *allowed_below_zero;
  } rows[] = {
      {"", " grdma rgpusm gpusm", ""},
      {"  ", " grdma rgpusm gpusm", ""},
      {" , ,", " grdma rgpusm gpusm", ""},
      {" none ", "", ""},
      {"grdma,rgpusm", "+grdma+rgpusm", "+grdma+rgpusm"},
      {"^grdma,rgpusm", " gpusm", ""},
      {" ^ grdma , rgpusm", " gpusm", ""},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(allowed(row.text, 0), row.allowed) << row.text;
    EXPECT_EQ(allowed(row.text, -1), row.allowed_below_zero) << row.text;
  }
  EXPECT_TRUE(parsed(" none ").is_none());
  EXPECT_FALSE(parsed("").is_none() || parsed("grdma").is_none());
  EXPECT_EQ(parsed("  grdma ,, rgpusm,\tgrdma, ").names, (std::vector<std::string>{"grdma", "rgpusm"}));
}

TEST(Selection, what_is_no_list_is_refused_with_a_reason) {
  for (const char* text : {"none,grdma", "^none"}) EXPECT_EQ(refusal(text), "none stands alone");
  for (const char* text : {"grdma,^rgpusm", "^grdma,^rgpusm"}) {
    EXPECT_EQ(refusal(text), "^ must be the first character, and leaves out the whole list");
  }
  for (const char* text : {"^", "^ ,"}) EXPECT_EQ(refusal(text), "^ leaves out nothing");
  for (const std::string text : {"grdma rgpusm", "grdma;rgpusm", "../grdma"}) {
    EXPECT_EQ(refusal(text.c_str()), "\"" + text + "\" is not a component's name");
  }
}

}  // namespace
}  // namespace pinrail::loader
