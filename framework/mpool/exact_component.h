// SPDX-License-Identifier: BSD-3-Clause
// exact_component.h - what the descriptors of the pools of GPU memory have in common: parameters, and the functions of
// the table that only forward. The module is an exact::Pool.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_COMPONENT_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_COMPONENT_H

#include "base/core/guarded.h"
#include "framework/mpool/exact_pool.h"

namespace pinrail::exact {

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

constexpr pinrail_param_t leave_pinned_param(const char* help) {
  return param("leave_pinned", "yes", help, PINRAIL_TYPE_ENUM, 3, nullptr, 0, 0, kLeavePinned);
}
constexpr pinrail_param_t size_limit_param(const char* help, const char* const* synonyms) {
  return param("size_limit", "unlimited", help, PINRAIL_TYPE_SIZE, 4, synonyms);
}
constexpr pinrail_param_t kCountLimit =
    param("count_limit", "unlimited", "Most allocations known to the pools of one cache, in use or not. 0: no limit.",
          PINRAIL_TYPE_SIZE, 4);
constexpr pinrail_param_t kEmptyCache =
    param("empty_cache", "no", "When room is needed, give back everything idle at once instead of the oldest one.",
          PINRAIL_TYPE_BOOL, 6);
constexpr pinrail_param_t kPrintStats =
    param("print_stats", "no", "Print the pool's figures when it is destroyed.", PINRAIL_TYPE_BOOL, 5);
constexpr pinrail_param_t kGcInterval = param(
    "gc_interval", "100",
    "Milliseconds between two looks for memory that its owner freed: so long, at most, is an idle mapping of it "
    "kept. 0: no thread looks; what died goes at the next call that needs the driver, or pinrail_mpool_progress().",
    PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, 3600000);
constexpr pinrail_param_t kMaxRegSize =
    param("max_reg_size", "2M", "Largest piece in bytes that the chunk iterator cuts a buffer into.", PINRAIL_TYPE_SIZE,
          5, nullptr, 1, INT64_MAX);

inline Pool* pool_of(void* module) { return static_cast<Pool*>(module); }

inline void no_shortcut(void*, pinrail_shortcut_t* shortcut_out) { *shortcut_out = {}; }
inline pinrail_status_t destroy(void* module, pinrail_thread_t* thread, uint32_t flags) {
  return guarded([&] { return pool_of(module)->destroy(thread, flags); });
}
inline size_t referenced(void* module) { return pool_of(module)->referenced(); }
inline void dropped_dead(void*, pinrail_thread_t*, pinrail_handle_t, uint64_t) {}  // there is no shortcut
inline pinrail_status_t evict(void* module, pinrail_thread_t* thread) {
  return guarded([&] { return pool_of(module)->evict(thread); });
}
inline pinrail_status_t progress(void* module, pinrail_thread_t* thread) {
  return guarded([&] { return pool_of(module)->progress(thread); });
}
inline pinrail_status_t ft_event(void* module, pinrail_thread_t* thread, pinrail_ft_state_t state) {
  return guarded([&] { return pool_of(module)->ft_event(thread, state); });
}
inline pinrail_status_t stats(void* module, pinrail_mpool_stats_t* stats_out) {
  return guarded([&] {
    pool_of(module)->stats(stats_out);
    return success();
  });
}
inline size_t max_reg_size(void* module) { return pool_of(module)->settings().max_reg_size; }
inline void counters(void* module, pinrail_mpool_stats_t* stats_out) { pool_of(module)->counters(stats_out); }
inline pinrail_status_t check(void* module) {
  return pool_of(module)->check() == nullptr ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}
inline pinrail_handle_t handle_of(pinrail_registration_t* reg) { return {reg, generation_of(reg)}; }

}  // namespace pinrail::exact

#endif
