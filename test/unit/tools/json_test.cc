// SPDX-License-Identifier: BSD-3-Clause
// json_test.cc - what the tools' JSON writer writes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <sstream>

#include "contrib/tools/common/json.h"

namespace pinrail::tools {
namespace {

constexpr const char* kReplacement = "\"\xEF\xBF\xBD\"";

template <typename T>
std::string written(const T& content) {
  std::ostringstream out;
  JsonWriter json(out);
  json.value(content);
  return out.str();
}

TEST(Json, objects_and_arrays_nest_and_commas_stand_between) {
  std::ostringstream out;
  JsonWriter json(out);
  json.begin_object();
  json.field("a", 1);
  json.key("b");
  json.begin_array();
  json.value("x");
  json.begin_object();
  json.end_object();
  json.end_array();
  json.field("c", true);
  EXPECT_FALSE(json.balanced());
  json.end_object();
  EXPECT_TRUE(json.balanced());
  EXPECT_EQ(out.str(), "{\n  \"a\": 1,\n  \"b\": [\n    \"x\",\n    {}\n  ],\n  \"c\": true\n}\n");
}

TEST(Json, integers_are_exact) {
  EXPECT_EQ(written(std::numeric_limits<uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(written(std::numeric_limits<int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(written(false), "false");
}

TEST(Json, numbers_that_json_cannot_write_become_null) {
  EXPECT_EQ(written(1.5), "1.5");
  EXPECT_EQ(written(-0.001), "-0.001");
  EXPECT_EQ(written(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(written(std::nan("")), "null");
}

TEST(Json, quotes_backslashes_and_control_characters_are_escaped) {
  EXPECT_EQ(written("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
  EXPECT_EQ(written("\b\f\n\r\t"), "\"\\b\\f\\n\\r\\t\"");
  EXPECT_EQ(written(std::string("\0\x1f\x7f", 3)), "\"\\u0000\\u001f\\u007f\"");
}

TEST(Json, valid_utf8_stays_as_it_is) {
  for (const char* text : {"\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEF\xBF\xBD", "\xF0\x90\x80\x80",
                           "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(written(text), "\"" + std::string(text) + "\"");
  }
}

TEST(Json, a_byte_that_is_not_utf8_is_replaced) {
  EXPECT_EQ(written("\x80"), kReplacement) << "a byte that only continues";
  EXPECT_EQ(written("\xC1"), kReplacement) << "a lead of overlong forms";
  EXPECT_EQ(written("\xFF"), kReplacement);
  EXPECT_EQ(written("\xE2\x82"), std::string("\"\xEF\xBF\xBD\xEF\xBF\xBD\"")) << "cut off";
  EXPECT_EQ(written("\xE0\x9F\xBF").size(), 11U) << "overlong";
  EXPECT_EQ(written("\xED\xA0\x80").size(), 11U) << "a surrogate";
  EXPECT_EQ(written("\xF4\x90\x80\x80").size(), 14U) << "above U+10FFFF";
  EXPECT_EQ(written("\xC3(").substr(0, 6), "\"\xEF\xBF\xBD(\"") << "what follows is not lost";
}

TEST(Json, keys_are_escaped_as_texts_are) {
  std::ostringstream out;
  JsonWriter json(out);
  json.begin_object();
  json.field("a\"b", nullptr == nullptr);
  json.end_object();
  EXPECT_EQ(out.str(), "{\n  \"a\\\"b\": true\n}\n");
}

}  // namespace
}  // namespace pinrail::tools
