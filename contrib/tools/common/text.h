// SPDX-License-Identifier: BSD-3-Clause
// text.h - formats numbers, and breaks text into lines that fit the reader's window.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_TEXT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pinrail::tools {

// Formats as printf does.
__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...);

// "4 KiB", "1.5 MiB", "100 B"; UINT64_MAX is "unlimited".
std::string size_text(uint64_t bytes);

// "12.5 %"; of nothing "0.0 %".
std::string percent(uint64_t part, uint64_t whole);

// The sentence after "What happened" in the last of these messages of Pinrail, without its full stop; empty if there is
// none. The last one says why a call failed; warnings may come before.
std::string what_happened(const std::string& messages);

// "amr.r0" of "/traces/amr.r0.trace.xz".
std::string name_of_trace(const std::string& file);

// The width of a line in characters: the environment variable COLUMNS, at least 40; 100 if it is not a number.
size_t text_width();

// Wraps each line of the text to lines of at most text_width() characters that begin with indent and end with a line
// feed. A longer word stands alone. A line that begins with a blank is not wrapped.
std::string wrapped(std::string_view text, std::string_view indent);

}  // namespace pinrail::tools

#endif
