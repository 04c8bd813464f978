// SPDX-License-Identifier: BSD-3-Clause
// Text functions; and text to value, and value to text. Any thread; start-up or API context, no lock. Functions that
// read a value return what is wrong, or NULL.
#include "base/param/param.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <system_error>

namespace pinrail::param {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

bool is_name_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

}  // namespace

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) + 1 - first);
}

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool starts_with(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

bool ends_with(std::string_view text, std::string_view ending) {
  return text.size() >= ending.size() && text.substr(text.size() - ending.size()) == ending;
}

bool is_name(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_name_letter); }

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t end = text.find_first_of(separators);
    const std::string_view piece = trim(text.substr(0, end));
    if (!piece.empty()) pieces.push_back(piece);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return pieces;
}

size_t edit_distance(std::string_view a, std::string_view b) {
  // Rows of the usual table: row[j] is the distance of a's first i letters to b's first j. A swap needs the row before
  // the last.
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates) {
  // No parameter's name is that long, and a longer text would cost the square of its length.
  constexpr size_t kLongestName = 256, kMaxSlips = 3;
  std::string_view nearest;
  if (name.empty() || name.size() > kLongestName) return nearest;
  size_t least = std::min(std::clamp<size_t>(name.size() / 4, 1, kMaxSlips), name.size() - 1) + 1;
  for (const std::string_view candidate : candidates) {
    if (std::max(candidate.size(), name.size()) - std::min(candidate.size(), name.size()) >= least) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& names, std::string_view advice) {
  const std::string_view near = suggest(name, names);
  return near.empty() ? std::string(advice) : "did you mean " + std::string(near) + "?";
}

// Text to value, and value to text. Any thread; start-up or API context, no lock. Functions that return a text return
// what is wrong, or NULL.

namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr const char* kTooLarge = "is larger than 64 bits hold";

constexpr pinrail_enum_value_t kBooleans[] = {{0, "0"}, {0, "no"},  {0, "false"}, {0, "off"},
                                              {1, "1"}, {1, "yes"}, {1, "true"},  {1, "on"}};

// Accepts a decimal number, or 0x and a hexadecimal one, and nothing else. Returns what is wrong, or NULL.
const char* parse_magnitude(std::string_view text, uint64_t* magnitude_out) {
  const bool is_hex = text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
  if (is_hex) text.remove_prefix(2);
  if (text.empty()) return "is not a number";
  const char* const end = text.data() + text.size();
  const std::from_chars_result result = std::from_chars(text.data(), end, *magnitude_out, is_hex ? 16 : 10);
  if (result.ec == std::errc::result_out_of_range) return kTooLarge;
  return result.ec == std::errc() && result.ptr == end ? nullptr : "is not a whole number";
}

const char* parse_int(std::string_view text, int64_t* value_out) {
  const bool negative = !text.empty() && text[0] == '-';
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  uint64_t magnitude = 0;
  const char* why = parse_magnitude(text, &magnitude);
  if (why != nullptr) return why;
  const uint64_t most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) + (negative ? 1 : 0);
  if (magnitude > most) return kTooLarge;
  *value_out = static_cast<int64_t>(negative ? 0 - magnitude : magnitude);
  return nullptr;
}

const char* parse_unsigned(std::string_view text, uint64_t* value_out) {
  if (equal_ignoring_case(text, "unlimited")) {
    *value_out = kUnlimited;
    return nullptr;
  }
  if (!text.empty() && text[0] == '-') return "is negative";
  return parse_magnitude(text, value_out);
}

constexpr std::string_view kSuffixes = "KMGT";  // of sizes, each 1024 times the one before

// Returns by how many bits a size suffix shifts: 10 for k, 20 for m. 0 if the character is no suffix.
unsigned suffix_shift(char c) {
  for (unsigned i = 0; i < kSuffixes.size(); ++i) {
    if (lower(c) == lower(kSuffixes[i])) return 10 * (i + 1);
  }
  return 0;
}

const char* parse_size(std::string_view text, uint64_t* value_out) {
  const unsigned shift = text.empty() ? 0 : suffix_shift(text.back());
  if (shift != 0) text.remove_suffix(1);
  uint64_t value = 0;
  const char* why = parse_unsigned(trim(text), &value);
  if (why != nullptr) return why;
  if (shift != 0 && value > (kUnlimited >> shift)) return kTooLarge;
  *value_out = value << shift;
  return nullptr;
}

const char* parse_bool(std::string_view text, int64_t* value_out) {
  for (const pinrail_enum_value_t& word : kBooleans) {
    if (!equal_ignoring_case(text, word.name)) continue;
    *value_out = word.value;
    return nullptr;
  }
  return "is neither yes nor no";
}

const char* parse_enum(const pinrail_enum_value_t* values, std::string_view text, int64_t* value_out) {
  int64_t number = 0;
  const bool is_number = parse_int(text, &number) == nullptr;
  for (const pinrail_enum_value_t* v = values; v != nullptr && v->name != nullptr; ++v) {
    const bool chosen = equal_ignoring_case(text, v->name) || (is_number && number == v->value);
    if (!chosen) continue;
    *value_out = v->value;
    return nullptr;
  }
  return "is not one of its values";
}

bool has_range(const pinrail_param_t& declaration) {
  const bool is_number = declaration.type >= PINRAIL_TYPE_INT && declaration.type <= PINRAIL_TYPE_SIZE;
  return is_number && (declaration.minimum != 0 || declaration.maximum != 0);
}

bool in_range(const pinrail_param_t& declaration, pinrail_param_value_t value) {
  if (!has_range(declaration)) return true;
  if (declaration.type == PINRAIL_TYPE_INT) return value.i >= declaration.minimum && value.i <= declaration.maximum;
  const bool above = declaration.minimum <= 0 || value.u >= static_cast<uint64_t>(declaration.minimum);
  return above && declaration.maximum >= 0 && value.u <= static_cast<uint64_t>(declaration.maximum);
}

std::string format_unsigned(uint64_t value) { return value == kUnlimited ? "unlimited" : std::to_string(value); }

// Formats with the largest suffix that leaves a whole number.
std::string format_size(uint64_t value) {
  if (value == 0 || value == kUnlimited) return format_unsigned(value);
  size_t powers = 0;
  while (powers < kSuffixes.size() && value % 1024 == 0) {
    value /= 1024;
    ++powers;
  }
  std::string text = std::to_string(value);
  if (powers > 0) text += kSuffixes[powers - 1];
  return text;
}

std::string format_enum(const pinrail_enum_value_t* values, int64_t value) {
  for (const pinrail_enum_value_t* v = values; v != nullptr && v->name != nullptr; ++v) {
    if (v->value == value) return v->name;
  }
  return std::to_string(value);
}

std::string accepted_enum(const pinrail_enum_value_t* values) {
  std::string text;
  for (const pinrail_enum_value_t* v = values; v != nullptr && v->name != nullptr; ++v) {
    const bool last = v[1].name == nullptr;
    if (v != values) text += last ? " or " : ", ";
    text += std::string(v->name) + " (" + std::to_string(v->value) + ")";
  }
  return text;
}

std::string format_bound(const pinrail_param_t& declaration, int64_t bound) {
  pinrail_param_value_t value{};
  value.i = bound;
  if (declaration.type != PINRAIL_TYPE_INT) value.u = bound < 0 ? 0 : static_cast<uint64_t>(bound);
  return format(declaration, value);
}

}  // namespace

// Converts a text by its declaration. BAD_PARAM, and a reason in *why_out, if it is malformed.
Status parse(const pinrail_param_t& declaration, std::string_view text, pinrail_param_value_t* value_out,
             std::string* why_out) {
  pinrail_param_value_t value{};
  const std::string_view word = trim(text);
  const char* why = nullptr;
  switch (declaration.type) {
    case PINRAIL_TYPE_STRING: value.s = text.data(); break;
    case PINRAIL_TYPE_BOOL: why = parse_bool(word, &value.i); break;
    case PINRAIL_TYPE_ENUM: why = parse_enum(declaration.values, word, &value.i); break;
    case PINRAIL_TYPE_INT: why = parse_int(word, &value.i); break;
    case PINRAIL_TYPE_UNSIGNED: why = parse_unsigned(word, &value.u); break;
    case PINRAIL_TYPE_SIZE: why = parse_size(word, &value.u); break;
  }
  if (why == nullptr && !in_range(declaration, value)) why = "is out of its range";
  if (word.empty() && why != nullptr) why = "is empty";
  if (why != nullptr) {
    *why_out = why;
    return PINRAIL_ERR_BAD_PARAM;
  }
  *value_out = value;
  return success();
}

std::string format(const pinrail_param_t& declaration, pinrail_param_value_t value) {
  switch (declaration.type) {
    case PINRAIL_TYPE_BOOL: return value.i != 0 ? "yes" : "no";
    case PINRAIL_TYPE_INT: return std::to_string(value.i);
    case PINRAIL_TYPE_UNSIGNED: return format_unsigned(value.u);
    case PINRAIL_TYPE_SIZE: return format_size(value.u);
    case PINRAIL_TYPE_STRING: return value.s;
    case PINRAIL_TYPE_ENUM: return format_enum(declaration.values, value.i);
  }
  return "";
}

std::string accepted(const pinrail_param_t& declaration) {
  std::string range;
  if (has_range(declaration)) {
    range = " from " + format_bound(declaration, declaration.minimum) + " to " +
            format_bound(declaration, declaration.maximum);
  }
  switch (declaration.type) {
    case PINRAIL_TYPE_BOOL: return "yes (1, true, on) or no (0, false, off)";
    case PINRAIL_TYPE_INT: return "a whole number" + range;
    case PINRAIL_TYPE_UNSIGNED:
      return range.empty() ? "a whole number that is not negative, or unlimited" : "a whole number" + range;
    case PINRAIL_TYPE_SIZE:
      return "bytes" + range + ", K, M, G or T may follow the number" + (range.empty() ? "; or unlimited" : "");
    case PINRAIL_TYPE_STRING: return "any text";
    case PINRAIL_TYPE_ENUM: return accepted_enum(declaration.values);
  }
  return "";
}

}  // namespace pinrail::param
