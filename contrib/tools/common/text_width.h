// SPDX-License-Identifier: BSD-3-Clause
// text_width.h - breaks text into lines that fit the reader's window.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_WIDTH_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_WIDTH_H

#include <cstddef>
#include <string>
#include <string_view>

namespace pinrail::tools {

// The width of a line in characters: the environment variable COLUMNS, at least 40; 100 if it is not a number.
size_t text_width();

// Wraps each line of the text to lines of at most text_width() characters that begin with indent and end with a line
// feed. A longer word stands alone. A line that begins with a blank is not wrapped.
std::string wrapped(std::string_view text, std::string_view indent);

}  // namespace pinrail::tools

#endif
