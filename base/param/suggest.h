// SPDX-License-Identifier: BSD-3-Clause
// suggest.h - did you mean? The nearest of some names.
#ifndef PINRAIL_BASE_PARAM_SUGGEST_H
#define PINRAIL_BASE_PARAM_SUGGEST_H

#include <string_view>
#include <vector>

namespace pinrail::param {

// How many letters must be added, left out, replaced or swapped with their neighbour to make one of the other.
size_t edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to name, if it is near enough to be a slip of the fingers (one letter in four, 3 at most);
// else empty. Of equally near ones the first.
std::string_view suggest(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace pinrail::param

#endif
