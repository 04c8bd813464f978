// SPDX-License-Identifier: BSD-3-Clause
// params.h - parameters that several mpool components have, one line each, and how a pool's settings are read from
// them and from its creator's options; and messages that pools have in common.
//
// Threads  one reader belongs to one thread. API context, while a pool is created: it may allocate, and takes no lock.
#ifndef PINRAIL_FRAMEWORK_MPOOL_PARAMS_H
#define PINRAIL_FRAMEWORK_MPOOL_PARAMS_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <numeric>
#include <string>

#include "base/core/own_component.h"
#include "base/core/status.h"
#include "framework/mpool/budget.h"

namespace pinrail::mpool {

// minimum, maximum: bounds of a number; both 0: none. values: the values of an enumeration.
constexpr pinrail_param_t param(const char* name, const char* fallback, const char* help, pinrail_param_type_t type,
                                int level, const char* const* synonyms = nullptr, int64_t minimum = 0,
                                int64_t maximum = 0, const pinrail_enum_value_t* values = nullptr) {
  constexpr pinrail_param_scope_t kScope = PINRAIL_SCOPE_READONLY;
  return {sizeof(pinrail_param_t), name, fallback, help, type, kScope, level, values, minimum, maximum, synonyms};
}

constexpr pinrail_enum_value_t kLeavePinned[] = {{-1, "auto"}, {0, "no"}, {1, "yes"}, {0, nullptr}};

constexpr pinrail_param_t leave_pinned_param(const char* fallback, const char* help) {
  return param("leave_pinned", fallback, help, PINRAIL_TYPE_ENUM, 3, nullptr, 0, 0, kLeavePinned);
}
constexpr pinrail_param_t size_limit_param(const char* help, const char* const* synonyms = nullptr) {
  return param("size_limit", "unlimited", help, PINRAIL_TYPE_SIZE, 2, synonyms);
}
constexpr pinrail_param_t count_limit_param(const char* help) {
  return param("count_limit", "unlimited", help, PINRAIL_TYPE_UNSIGNED, 2);
}
constexpr pinrail_param_t max_reg_size_param(const char* help) {
  return param("max_reg_size", "2M", help, PINRAIL_TYPE_SIZE, 5, nullptr, 1, INT64_MAX);
}
constexpr pinrail_param_t kRcacheName =
    param("rcache_name", "vma", "Component that indexes the registrations.", PINRAIL_TYPE_STRING, 7);
constexpr pinrail_param_t kEmptyCache =
    param("empty_cache", "no", "When room is needed, give back everything idle at once instead of the oldest one.",
          PINRAIL_TYPE_BOOL, 6);
constexpr pinrail_enum_value_t kChecks[] = {{0, "off"}, {1, "sample"}, {2, "all"}, {0, nullptr}};
constexpr pinrail_param_t kCheck = param(
    "check", "off",
    "Whether hits are compared with what the device sees, to prove or drop a suspicion of stale bytes: page frames "
    "where the kernel shows them (CAP_SYS_ADMIN), otherwise bytes, if the registrar has device_read. A hit that "
    "differs is reported with the life of its registration, and its memory is registered anew. sample: some "
    "pages or bytes of each hit. all: every one. Hits take microseconds, or a copy of their bytes.",
    PINRAIL_TYPE_ENUM, 6, nullptr, 0, 0, kChecks);
constexpr pinrail_param_t kPrintStats =
    param("print_stats", "no",
          "Print the pool's figures when it is destroyed. Its times are exact then, at some dozens of "
          "nanoseconds for each call of the registrar.",
          PINRAIL_TYPE_BOOL, 3);

// Reports why there can be no pool, under that topic of the component's messages.
inline Status refuse(const pinrail_host_t* host, const char* topic, const char* why) {
  show(host, topic, {{"why", why}});
  return PINRAIL_ERR_NOT_SUPPORTED;
}

// For pools that keep host memory registered, in pieces of their own choice. unfit: NULL, or why the registrar cannot
// serve such a pool.
inline Status check_config(const pinrail_host_t* host, const pinrail_mpool_config_t& config, const char* topic,
                           const char* unfit) {
  if ((config.limits->kinds & PINRAIL_KIND_HOST) == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (unfit != nullptr) return refuse(host, topic, unfit);
  if ((config.flags & PINRAIL_POOL_EXACT) != 0) {
    return refuse(host, topic, "the pool was asked for exact ranges (EXACT)");
  }
  return config.leave_pinned != 0 ? success() : refuse(host, topic, "leave_pinned=no was asked for");
}

// What each pool is told.
struct PoolSettings {
  const char* prefix = "";  // of the names of the component's parameters: "mpool_grdma_"
  bool leave_pinned = true;
  bool empty_cache = false;
  bool print_stats = false;
  uint64_t gc_limit = UINT64_MAX;
  size_t max_reg_size = 0;
  WantedLimits limits;
  std::string rcache_name;
};

// A parameter is named without the prefix. One that is not declared reads as 0 or empty, and is_complete() says so.
class SettingsReader {
 public:
  // prefix: what the component's parameters begin with, "mpool_grdma_".
  SettingsReader(const pinrail_host_t* host, const char* prefix) : host_(host), prefix_(prefix) {}

  uint64_t number(const char* name) { return info(name).typed.u; }
  int64_t choice(const char* name) { return info(name).typed.i; }
  bool flag(const char* name) { return info(name).typed.i != 0; }
  std::string text(const char* name) {
    const char* const value = info(name).typed.s;
    return value != nullptr ? value : "";
  }

  // -1 (auto), 0 or 1. Where the component's parameter is not set, the host answers with the global leave_pinned.
  int64_t leave_pinned(const pinrail_mpool_config_t& config) {
    const pinrail_param_info_t own = info("leave_pinned");
    return option_wins(config.leave_pinned, own) ? config.leave_pinned : own.typed.i;
  }

  // What the parameters of all pools say.
  void read(const pinrail_mpool_config_t& config, PoolSettings* settings) {
    settings->prefix = prefix_;
    settings->limits.bytes = limit("size_limit", config.size_limit, &settings->limits.explicit_bytes);
    settings->limits.count = limit("count_limit", config.count_limit, &settings->limits.explicit_count);
    settings->max_reg_size = number("max_reg_size");
    settings->print_stats = flag("print_stats");
  }

  // Whether the limit of bytes is a default, as a rule the one that is derived from the machine (mpool.h): no
  // user, administrator or creator of the pool has set it.
  bool is_size_limit_default(const pinrail_mpool_config_t& config) {
    const pinrail_param_info_t own = info("size_limit");
    return !option_wins(config.size_limit, own) && own.source == PINRAIL_SOURCE_DEFAULT;
  }

  bool is_complete() const { return is_complete_; }

 private:
  pinrail_param_info_t info(const char* name) {
    auto info = sized<pinrail_param_info_t>();
    if (host_->param_info(host_, (std::string(prefix_) + name).c_str(), &info) != PINRAIL_SUCCESS) is_complete_ = false;
    return info;
  }

  // The strongest is an override file's value, then the creator's option, then the parameter.
  static bool option_wins(int64_t option, const pinrail_param_info_t& own) {
    return option != PINRAIL_UNSET && own.source != PINRAIL_SOURCE_OVERRIDE;
  }

  uint64_t limit(const char* name, int64_t option, bool* is_explicit_out) {
    const pinrail_param_info_t own = info(name);
    *is_explicit_out = option_wins(option, own);
    const uint64_t value = *is_explicit_out ? static_cast<uint64_t>(option) : own.typed.u;
    return value == 0 ? UINT64_MAX : value;  // 0: no limit
  }

  const pinrail_host_t* const host_;
  const char* const prefix_;
  bool is_complete_ = true;
};

// The messages that pools have in common: their statistics at the end, what keeps them from being destroyed (R10), and
// the source of a limit that a request exceeds (R8).
//
// Threads  all functions may run together. API context, never a hook: they log and may allocate.

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
  auto info = sized<pinrail_param_info_t>();
  if (host->param_info(host, parameter, &info) != PINRAIL_SUCCESS) return "unknown";
  if (info.source_line > 0) return std::string(info.source_file) + " line " + std::to_string(info.source_line);
  return kNames[info.source];
}

}  // namespace pinrail::mpool

#endif
