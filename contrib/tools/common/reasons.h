// SPDX-License-Identifier: BSD-3-Clause
// reasons.h - why requests missed, for people and for programs; and the tools' JSON documents.
//
// Threads  all functions may run together.
#ifndef PINRAIL_CONTRIB_TOOLS_COMMON_REASONS_H
#define PINRAIL_CONTRIB_TOOLS_COMMON_REASONS_H

#include <pinrail/stats.h>

#include <array>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

namespace pinrail::tools {

// The tools' JSON documents: objects keep the order in which their keys were written.

using Json = nlohmann::ordered_json;

// Prints a document. A byte that is not UTF-8 becomes U+FFFD; a number that is not finite becomes null.
inline void print(const Json& document, std::ostream& out) {
  out << document.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
}

// By pinrail_miss_reason_t.
using Misses = std::array<uint64_t, PINRAIL_MISS_REASONS>;
Misses misses_of(const pinrail_mpool_stats_t& stats);

// The reasons that occurred, the most frequent first.
std::vector<uint32_t> reasons_of(const Misses& misses);

// "evicted 75.0 %, cold 25.0 %": at most so many; "-": there is none.
std::string reasons_text(const Misses& misses, size_t most = PINRAIL_MISS_REASONS);

// For programs: "evicted" of the statistic misses_evicted.
std::string reason_key(uint32_t reason);
Json reasons_json(const Misses& misses);

}  // namespace pinrail::tools

#endif
