// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/common/reasons.h"

#include <algorithm>
#include <numeric>

#include "contrib/tools/common/text.h"

namespace pinrail::tools {

Misses misses_of(const pinrail_mpool_stats_t& stats) {
  Misses misses;
  for (uint32_t reason = 0; reason < misses.size(); ++reason) misses[reason] = pinrail_stats_misses(&stats, reason);
  return misses;
}

std::vector<uint32_t> reasons_of(const Misses& misses) {
  std::vector<uint32_t> order;
  for (uint32_t reason = 0; reason < misses.size(); ++reason) {
    if (misses[reason] != 0) order.push_back(reason);
  }
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return misses[a] > misses[b]; });
  return order;
}

std::string reasons_text(const Misses& misses, size_t most) {
  const uint64_t all = std::accumulate(misses.begin(), misses.end(), uint64_t{0});
  std::string out;
  for (const uint32_t reason : reasons_of(misses)) {
    if (most-- == 0) break;
    out +=
        (out.empty() ? "" : ", ") + std::string(pinrail_miss_reason_text(reason)) + " " + percent(misses[reason], all);
  }
  return out.empty() ? "-" : out;
}

std::string reason_key(uint32_t reason) {
  const auto is_of = [reason](const pinrail_stat_info_t& stat) {
    return stat.offset == offsetof(pinrail_mpool_stats_t, misses_cold) + reason * sizeof(uint64_t);
  };
  for (size_t i = 0; pinrail_stat_at(i) != nullptr; ++i) {
    if (is_of(*pinrail_stat_at(i))) return pinrail_stat_at(i)->name + sizeof("misses_") - 1;
  }
  return "?";
}

Json reasons_json(const Misses& misses) {
  Json json = Json::object();
  for (const uint32_t reason : reasons_of(misses)) json[reason_key(reason)] = misses[reason];
  return json;
}

}  // namespace pinrail::tools
