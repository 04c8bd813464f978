// SPDX-License-Identifier: BSD-3-Clause
// messages.h - the messages that pools have in common: their statistics at the end, what keeps them from being
// destroyed (R10), and a request that exceeds a limit (R8).
//
// Threads  all functions may run together. API context, never a hook: they log and may allocate.
#ifndef PINRAIL_FRAMEWORK_MPOOL_MESSAGES_H
#define PINRAIL_FRAMEWORK_MPOOL_MESSAGES_H

#include <pinrail/component_mpool.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <numeric>
#include <string>

#include "base/core/own_component.h"
#include "base/core/status.h"

namespace pinrail::mpool {

// Counts referenced registrations and lists the first few in words. list_out NULL: only counts.
class Referenced {
 public:
  explicit Referenced(std::string* list_out) : list_(list_out) {}
  // references: the registration's reference count; nothing is counted if it is 0 or less.
  void add(const pinrail_registration_t* reg, int64_t references) {
    if (references <= 0) return;
    if (++count_ > kNamed || list_ == nullptr) return;
    char line[96];
    std::snprintf(line, sizeof(line), "%s[%p, +%zu) with %lld reference(s)", list_->empty() ? "" : ", ", reg->base,
                  reg->length, static_cast<long long>(references));
    (void)guarded([&] {  // without memory it is counted, and not named
      *list_ += line;
    });
  }
  size_t count() const { return count_; }

 private:
  static constexpr size_t kNamed = 4;
  std::string* const list_;
  size_t count_ = 0;
};

// Misses by reason in words, the most frequent reason first: " (evicted 75.0 %, cold 25.0 %)". Empty if the pool names
// no reasons. May throw bad_alloc.
inline std::string miss_reasons(const pinrail_mpool_stats_t& totals) {
  std::array<uint32_t, PINRAIL_MISS_REASONS> order;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return pinrail_stats_misses(&totals, a) > pinrail_stats_misses(&totals, b);
  });
  std::string text;
  for (const uint32_t reason : order) {
    const uint64_t count = pinrail_stats_misses(&totals, reason);
    if (count == 0) break;
    char share[64];
    std::snprintf(share, sizeof(share), "%s%s %.1f %%", text.empty() ? " (" : ", ", pinrail_miss_reason_text(reason),
                  100.0 * static_cast<double>(count) / static_cast<double>(totals.misses));
    text += share;
  }
  return text.empty() ? text : text + ")";
}

// Logs the statistics of a pool that is being destroyed, in one line. Without memory they are left out.
template <typename Pool>
void report_last_stats(const pinrail_host_t* host, Pool* pool) {
  (void)guarded([&] {
    pinrail_mpool_stats_t totals{};
    pool->stats(&totals);
    const std::string reasons = miss_reasons(totals);
    char line[512];
    std::snprintf(line, sizeof(line),
                  "stats: %" PRIu64 " hits, %" PRIu64 " misses%s, %" PRIu64 " evictions, %" PRIu64
                  " invalidations, peak %" PRIu64 " bytes registered, %.3f ms in the registrar",
                  totals.hits, totals.misses, reasons.c_str(), totals.evictions, totals.invalidations,
                  totals.peak_registered_bytes, static_cast<double>(totals.registrar_ns) / 1e6);
    host->log(host, PINRAIL_LOG_WARN, line);
  });
}

// Where the value of a parameter comes from: "the environment", "/etc/... line 3". May throw bad_alloc.
inline std::string source_of(const pinrail_host_t* host, const char* parameter) {
  constexpr const char* kNames[] = {
      "the default", "a file", "the environment", "the program", "a call of the program", "the site's override file"};
  pinrail_param_info_t info{};
  info.size = sizeof(info);
  if (host->param_info(host, parameter, &info) != PINRAIL_SUCCESS) return "unknown";
  if (info.source_line > 0) return std::string(info.source_file) + " line " + std::to_string(info.source_line);
  return kNames[info.source];
}

}  // namespace pinrail::mpool

#endif
