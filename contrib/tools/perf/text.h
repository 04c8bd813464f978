// SPDX-License-Identifier: BSD-3-Clause
// text.h - parses and formats sizes and numbers.
#ifndef PINRAIL_TOOLS_PERF_TEXT_H
#define PINRAIL_TOOLS_PERF_TEXT_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contrib/tools/perf/result.h"

namespace pinrail::perf {

// Formats as printf does.
__attribute__((format(printf, 1, 2))) std::string text(const char* format, ...);

// The text of errno.
std::string errno_text();

// "4 KiB", "1.5 MiB", "100 B"; UINT64_MAX is "unlimited".
std::string size_text(uint64_t bytes);

// "4K" is 4096; K, M and G in either case, no sign, not 0, at most 2^46.
Result parse_size(std::string_view typed, size_t* size_out);

// "4K,1M"; no empty items.
Result parse_size_list(std::string_view typed, std::vector<size_t>* sizes_out);

}  // namespace pinrail::perf

#endif
