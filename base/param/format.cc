// SPDX-License-Identifier: BSD-3-Clause
// Values as text. Any thread; start-up or API context, no lock.
#include <limits>

#include "base/param/param.h"

namespace pinrail::param {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

std::string format_unsigned(uint64_t value) { return value == kUnlimited ? "unlimited" : std::to_string(value); }

// Formats with the largest suffix that leaves a whole number.
std::string format_size(uint64_t value) {
  if (value == 0 || value == kUnlimited) return format_unsigned(value);
  constexpr std::string_view kSuffixes = "KMGT";
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

pinrail_param_value_t of_bound(const pinrail_param_t& declaration, int64_t bound) {
  pinrail_param_value_t value{};
  value.i = bound;
  if (declaration.type != PINRAIL_TYPE_INT) value.u = bound < 0 ? 0 : static_cast<uint64_t>(bound);
  return value;
}

std::string range_of(const pinrail_param_t& declaration) {
  if (declaration.minimum == 0 && declaration.maximum == 0) return "";
  return " from " + format(declaration, of_bound(declaration, declaration.minimum)) + " to " +
         format(declaration, of_bound(declaration, declaration.maximum));
}

}  // namespace

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
  const std::string range = range_of(declaration);
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
