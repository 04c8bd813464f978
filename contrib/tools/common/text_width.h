// SPDX-License-Identifier: BSD-3-Clause
// text_width.h - breaks text into lines that fit the reader's window.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_WIDTH_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_WIDTH_H

#include <cstddef>
#include <string>
#include <string_view>

namespace pinrail::tools {

// Characters of a line: the environment's COLUMNS, at least 40; 100 where it is not set or no number.
size_t text_width();

// The words of each line of text, in lines of at most text_width() characters that begin with indent. A word that is
// longer stands alone. A line that begins with a blank is left as it is. Each line ends with a line feed.
std::string wrapped(std::string_view text, std::string_view indent);

}  // namespace pinrail::tools

#endif
