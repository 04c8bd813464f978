// SPDX-License-Identifier: BSD-3-Clause
// param_parse_test.cc - texts to values and back.
#include <gtest/gtest.h>

#include <limits>

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

TEST(ParamParse, integers_are_decimal_or_hexadecimal_and_have_a_sign) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_INT);
  EXPECT_EQ(read(declaration, "42"), "42");
  EXPECT_EQ(read(declaration, "-42"), "-42");
  EXPECT_EQ(read(declaration, "+42"), "42");
  EXPECT_EQ(read(declaration, "010"), "10") << "no octal numbers";
  EXPECT_EQ(read(declaration, "0x1F"), "31");
  EXPECT_EQ(read(declaration, "-0x10"), "-16");
  EXPECT_EQ(read(declaration, "9223372036854775807"), "9223372036854775807");
  EXPECT_EQ(read(declaration, "-9223372036854775808"), "-9223372036854775808");
}

TEST(ParamParse, what_is_no_whole_number_is_refused_with_a_reason) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_INT);
  EXPECT_EQ(read(declaration, ""), "BAD_PARAM: is empty");
  EXPECT_EQ(read(declaration, "  "), "BAD_PARAM: is empty");
  EXPECT_EQ(read(declaration, "-"), "BAD_PARAM: is not a number");
  EXPECT_EQ(read(declaration, "0x"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "12a"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "1.5"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "1 2"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "--1"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "9223372036854775808"), "BAD_PARAM: is larger than 64 bits hold");
  EXPECT_EQ(read(declaration, "-9223372036854775809"), "BAD_PARAM: is larger than 64 bits hold");
  EXPECT_EQ(read(declaration, "99999999999999999999999"), "BAD_PARAM: is larger than 64 bits hold");
}

TEST(ParamParse, unsigned_numbers_are_never_negative) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_UNSIGNED);
  EXPECT_EQ(read(declaration, "18446744073709551615"), std::to_string(kUnlimited));
  EXPECT_EQ(read(declaration, "18446744073709551616"), "BAD_PARAM: is larger than 64 bits hold");
  EXPECT_EQ(read(declaration, "Unlimited"), std::to_string(kUnlimited));
  EXPECT_EQ(read(declaration, "-1"), "BAD_PARAM: is negative");
  EXPECT_EQ(read(declaration, "8M"), "BAD_PARAM: is not a whole number") << "suffixes are for sizes";
}

TEST(ParamParse, sizes_have_suffixes_of_1024) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_SIZE);
  EXPECT_EQ(read(declaration, "4096"), "4096");
  EXPECT_EQ(read(declaration, "4k"), "4096");
  EXPECT_EQ(read(declaration, "8M"), "8388608");
  EXPECT_EQ(read(declaration, "8 M"), "8388608");
  EXPECT_EQ(read(declaration, "2G"), "2147483648");
  EXPECT_EQ(read(declaration, "1T"), "1099511627776");
  EXPECT_EQ(read(declaration, "0x10K"), "16384");
  EXPECT_EQ(read(declaration, "unlimited"), std::to_string(kUnlimited));
  EXPECT_EQ(read(declaration, "16777215T"), "18446742974197923840");
}

TEST(ParamParse, sizes_that_are_none_are_refused) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_SIZE);
  EXPECT_EQ(read(declaration, "16777216T"), "BAD_PARAM: is larger than 64 bits hold");
  EXPECT_EQ(read(declaration, "unlimitedK"), "BAD_PARAM: is larger than 64 bits hold");
  EXPECT_EQ(read(declaration, "-8M"), "BAD_PARAM: is negative");
  EXPECT_EQ(read(declaration, "M"), "BAD_PARAM: is not a number");
  EXPECT_EQ(read(declaration, "8MB"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "8P"), "BAD_PARAM: is not a whole number");
  EXPECT_EQ(read(declaration, "1.5G"), "BAD_PARAM: is not a whole number");
}

TEST(ParamParse, ranges_include_their_ends) {
  const pinrail_param_t verbosity = of_type(PINRAIL_TYPE_INT, -1, 100);
  EXPECT_EQ(read(verbosity, "-1"), "-1");
  EXPECT_EQ(read(verbosity, "100"), "100");
  EXPECT_EQ(read(verbosity, "-2"), "BAD_PARAM: is out of its range");
  EXPECT_EQ(read(verbosity, "101"), "BAD_PARAM: is out of its range");
  const pinrail_param_t size = of_type(PINRAIL_TYPE_SIZE, 4096, 1 << 20);
  EXPECT_EQ(read(size, "4K"), "4096");
  EXPECT_EQ(read(size, "1M"), "1048576");
  EXPECT_EQ(read(size, "4095"), "BAD_PARAM: is out of its range");
  EXPECT_EQ(read(size, "unlimited"), "BAD_PARAM: is out of its range");
}

TEST(ParamParse, enums_are_chosen_by_name_or_by_number) {
  const pinrail_param_t declaration = of_type(PINRAIL_TYPE_ENUM);
  EXPECT_EQ(read(declaration, "auto"), "-1");
  EXPECT_EQ(read(declaration, "-1"), "-1");
  EXPECT_EQ(read(declaration, "Yes"), "1");
  EXPECT_EQ(read(declaration, "0x1"), "1");
  EXPECT_EQ(read(declaration, "maybe"), "BAD_PARAM: is not one of its values");
  EXPECT_EQ(read(declaration, "2"), "BAD_PARAM: is not one of its values");
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
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "1536K"), "1536K");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "1025"), "1025");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "4096T"), "4096T");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "0"), "0");
  EXPECT_EQ(rewrite(of_type(PINRAIL_TYPE_SIZE), "18446744073709551615"), "unlimited");
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
