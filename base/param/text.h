// SPDX-License-Identifier: BSD-3-Clause
// text.h - small questions about text that parsing asks everywhere. ASCII only, whatever the locale is.
#ifndef PINRAIL_BASE_PARAM_TEXT_H
#define PINRAIL_BASE_PARAM_TEXT_H

#include <string_view>
#include <vector>

namespace pinrail::param {

// Without white space at both ends.
std::string_view trim(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);

bool starts_with(std::string_view text, std::string_view beginning);

// Letters, digits and underscores, at least one: what a parameter or a component may be called.
bool is_name(std::string_view text);

// The pieces between the separators, trimmed, without empty ones.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

}  // namespace pinrail::param

#endif
