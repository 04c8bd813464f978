// SPDX-License-Identifier: BSD-3-Clause
// suggest.h - finds the most similar of some names, for messages with "did you mean".
#ifndef PINRAIL_BASE_PARAM_SUGGEST_H
#define PINRAIL_BASE_PARAM_SUGGEST_H

#include <string_view>
#include <vector>

namespace pinrail::param {

// Returns how many letters must be added, removed, replaced or swapped with their neighbour to turn a into b.
size_t edit_distance(std::string_view a, std::string_view b);

// Returns the candidate most similar to name if it may be a typing error (one letter in four differs, at most 3);
// otherwise an empty text. Of equally similar ones it returns the first.
std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace pinrail::param

#endif
