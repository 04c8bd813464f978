// SPDX-License-Identifier: BSD-3-Clause
// text.h - small text functions for parsers and messages. ASCII only, independent of the locale. They may be called by
// any thread.
#ifndef PINRAIL_BASE_PARAM_TEXT_H
#define PINRAIL_BASE_PARAM_TEXT_H

#include <string>
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

// Returns how many letters must be added, removed, replaced or swapped with their neighbour to turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns "did you mean NAME?" with the most similar of the names, or otherwise `advice`.
std::string did_you_mean(std::string_view name, const std::vector<std::string_view>& names, std::string_view advice);

// Returns the candidate most similar to name if it may be a typing error (one letter in four differs, at most 3);
// otherwise an empty text. Of equally similar ones it returns the first.
std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace pinrail::param

#endif
