// SPDX-License-Identifier: BSD-3-Clause
// param_parse_test.cc - texts to values and back.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/param/param.h"
#include "base/param/text.h"

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

}  // namespace
}  // namespace pinrail::param
