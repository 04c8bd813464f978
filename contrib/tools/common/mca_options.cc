// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/mca_options.h"

#include <string_view>

namespace pinrail::tools {
namespace {

bool is_name(std::string_view name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  return !name.empty() && name.find_first_not_of(kLetters) == std::string_view::npos;
}

}  // namespace

bool McaOptions::add(const std::string& name, const std::string& value, std::string* why_out) {
  if (!is_name(name)) {
    *why_out = "--mca: \"" + name + "\" is not a parameter's name";
    return false;
  }
  const char* const kept_name = texts_.emplace_back(name).c_str();
  const char* const kept_value = texts_.emplace_back(value).c_str();
  settings_.push_back({kept_name, kept_value});
  return true;
}

bool McaOptions::take(const char* name, int argc, char* const* argv, int* next, std::string* why_out) {
  if (*next >= argc) {
    *why_out = std::string("--mca ") + name + ": the value is missing";
    return false;
  }
  if (!add(name, argv[*next], why_out)) return false;
  ++*next;
  return true;
}

}  // namespace pinrail::tools
