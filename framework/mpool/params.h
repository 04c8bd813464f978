// SPDX-License-Identifier: BSD-3-Clause
// params.h - declarations of parameters that several mpool components have, one line each.
#ifndef PINRAIL_FRAMEWORK_MPOOL_PARAMS_H
#define PINRAIL_FRAMEWORK_MPOOL_PARAMS_H

#include <pinrail/component_mpool.h>

#include <cstdint>

namespace pinrail::mpool {

// minimum, maximum: bounds of a number; both 0: none. values: the values of an enumeration.
constexpr pinrail_param_t param(const char* name, const char* fallback, const char* help, pinrail_param_type_t type,
                                int level, const char* const* synonyms = nullptr, int64_t minimum = 0,
                                int64_t maximum = 0, const pinrail_enum_value_t* values = nullptr) {
  return {sizeof(pinrail_param_t),
          name,
          fallback,
          help,
          type,
          PINRAIL_SCOPE_READONLY,
          level,
          values,
          minimum,
          maximum,
          synonyms};
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
    param("print_stats", "no", "Print the pool's figures when it is destroyed.", PINRAIL_TYPE_BOOL, 3);

}  // namespace pinrail::mpool

#endif
