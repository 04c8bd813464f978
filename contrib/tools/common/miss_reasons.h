// SPDX-License-Identifier: BSD-3-Clause
// miss_reasons.h - the misses of a pool by reason, the most frequent reason first.
//
// Threads  all functions may run together.
#ifndef PINRAIL_TOOLS_COMMON_MISS_REASONS_H
#define PINRAIL_TOOLS_COMMON_MISS_REASONS_H

#include <pinrail/stats.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace pinrail::tools {

struct MissReason {
  std::string name;  // "evicted", "not kept"
  uint64_t count;
};

// Those that occurred.
inline std::vector<MissReason> miss_reasons(const pinrail_mpool_stats_t& stats) {
  constexpr char kPrefix[] = "misses_";
  constexpr size_t kLength = sizeof(kPrefix) - 1;
  std::vector<MissReason> reasons;
  for (size_t i = 0; pinrail_stat_at(i) != nullptr; ++i) {
    const pinrail_stat_info_t& info = *pinrail_stat_at(i);
    if (std::strncmp(info.name, kPrefix, kLength) != 0) continue;
    uint64_t count;
    std::memcpy(&count, reinterpret_cast<const char*>(&stats) + info.offset, sizeof(count));
    std::string name = info.name + kLength;
    std::replace(name.begin(), name.end(), '_', ' ');
    if (count != 0) reasons.push_back({std::move(name), count});
  }
  std::stable_sort(reasons.begin(), reasons.end(),
                   [](const MissReason& a, const MissReason& b) { return a.count > b.count; });
  return reasons;
}

// "evicted 75.0 %, cold 25.0 %"; empty if no reason is known.
inline std::string miss_reasons_text(const pinrail_mpool_stats_t& stats) {
  std::string text;
  for (const MissReason& reason : miss_reasons(stats)) {
    char share[16];
    std::snprintf(share, sizeof(share), " %.1f %%",
                  100.0 * static_cast<double>(reason.count) / static_cast<double>(stats.misses));
    text += (text.empty() ? "" : ", ") + reason.name + share;
  }
  return text;
}

}  // namespace pinrail::tools

#endif
