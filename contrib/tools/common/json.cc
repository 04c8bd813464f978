// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/json.h"

#include <array>
#include <cmath>
#include <cstdio>

namespace pinrail::tools {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

unsigned byte_at(std::string_view text, size_t index) { return static_cast<unsigned char>(text[index]); }

// Bytes of the valid UTF-8 sequence that text begins with; 0 if there is none. Overlong forms, surrogates and what lies
// above U+10FFFF are not valid: the second byte's range tells.
size_t sequence_length(std::string_view text) {
  const unsigned lead = byte_at(text, 0);
  size_t length = 0;
  unsigned low = 0x80, high = 0xBF;
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) length = 2;
  if (lead >= 0xE0 && lead <= 0xEF) length = 3;
  if (lead >= 0xF0 && lead <= 0xF4) length = 4;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  if (length == 0 || text.size() < length) return 0;
  if (byte_at(text, 1) < low || byte_at(text, 1) > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if ((byte_at(text, i) & 0xC0) != 0x80) return 0;
  }
  return length;
}

void append_ascii(std::string* out, char c) {
  switch (c) {
    case '"': *out += "\\\""; return;
    case '\\': *out += "\\\\"; return;
    case '\b': *out += "\\b"; return;
    case '\f': *out += "\\f"; return;
    case '\n': *out += "\\n"; return;
    case '\r': *out += "\\r"; return;
    case '\t': *out += "\\t"; return;
    default: break;
  }
  if (static_cast<unsigned char>(c) >= 0x20 && c != 0x7F) {
    *out += c;
    return;
  }
  std::array<char, 8> escaped{};
  std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
  *out += escaped.data();
}

}  // namespace

std::string json_quote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    if (length == 1) {
      append_ascii(&out, text[0]);
    } else {
      out += length == 0 ? kReplacement : text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out + "\"";
}

void JsonWriter::indent() {
  out_ << '\n';
  for (size_t i = 0; i < levels_.size(); ++i) out_ << "  ";
}

// What stands between the last thing and the next one.
void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (levels_.empty()) return;
  if (!levels_.back().empty) out_ << ',';
  levels_.back().empty = false;
  indent();
}

void JsonWriter::begin(char bracket) {
  separate();
  out_ << bracket;
  levels_.push_back({});
}

void JsonWriter::end(char bracket) {
  if (levels_.empty()) return;
  const bool empty = levels_.back().empty;
  levels_.pop_back();
  if (!empty) indent();
  out_ << bracket;
  if (levels_.empty()) out_ << '\n';
}

void JsonWriter::key(std::string_view name) {
  separate();
  out_ << json_quote(name) << ": ";
  after_key_ = true;
}

void JsonWriter::value(std::string_view text) { raw(json_quote(text)); }

void JsonWriter::value(double number) {
  if (!std::isfinite(number)) {
    null();
    return;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.10g", number);
  // A locale of the process may write a decimal comma, which JSON has not.
  for (char& c : text) {
    if (c == ',') c = '.';
  }
  raw(text.data());
}

void JsonWriter::raw(std::string_view text) {
  separate();
  out_ << text;
}

}  // namespace pinrail::tools
