// SPDX-License-Identifier: BSD-3-Clause
// text.h - small text functions for parsers. ASCII only, independent of the locale. They may be called by any thread.
#ifndef PINRAIL_BASE_PARAM_TEXT_H
#define PINRAIL_BASE_PARAM_TEXT_H

#include <string_view>
#include <vector>

namespace pinrail::param {

// Returns the text without white space at both ends.
std::string_view trim(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);

bool starts_with(std::string_view text, std::string_view beginning);

// Returns whether a text may be the name of a parameter or component: letters, digits and underscores, at least one.
bool is_name(std::string_view text);

// Returns the trimmed, non-empty pieces between the separators.
std::vector<std::string_view> split(std::string_view text, std::string_view separators);

}  // namespace pinrail::param

#endif
