// SPDX-License-Identifier: BSD-3-Clause
// json.h - writes one JSON document, as it comes, to a stream.
//
//   JsonWriter json(std::cout);
//   json.begin_object();
//   json.field("pool", "grdma");
//   json.key("rows");
//   json.begin_array();
//   ...
//   json.end_array();
//   json.end_object();   // a newline follows the outermost end
//
// Threads  one at a time.
//
// json/J1  Text is valid UTF-8 whatever it is given: a byte that is not part of a valid sequence becomes U+FFFD.
// json/J2  Integers are written exactly; a double that is not finite, for which JSON has no word, becomes null.
// json/J3  In an object each value follows a key. The caller sees to that; balanced() tells whether ends match begins.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_JSON_H

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace pinrail::tools {

class JsonWriter {
 public:
  explicit JsonWriter(std::ostream& out) : out_(out) {}
  JsonWriter(const JsonWriter&) = delete;
  JsonWriter& operator=(const JsonWriter&) = delete;

  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }

  void key(std::string_view name);

  void value(std::string_view text);
  void value(const char* text) { value(std::string_view(text)); }
  void value(const std::string& text) { value(std::string_view(text)); }
  void value(double number);
  void null() { raw("null"); }

  template <typename T, std::enable_if_t<std::is_integral_v<T>, int> = 0>
  void value(T number) {
    if constexpr (std::is_same_v<T, bool>) {
      raw(number ? "true" : "false");
    } else {
      raw(std::to_string(number));
    }
  }

  template <typename T>
  void field(std::string_view name, const T& content) {
    key(name);
    value(content);
  }

  bool balanced() const { return levels_.empty() && !after_key_; }

 private:
  struct Level {
    bool empty = true;
  };

  void begin(char bracket);
  void end(char bracket);
  void raw(std::string_view text);
  void separate();
  void indent();

  std::ostream& out_;
  std::vector<Level> levels_;
  bool after_key_ = false;
};

// The text between quotes, escaped, quotes included.
std::string json_quote(std::string_view text);

}  // namespace pinrail::tools

#endif
