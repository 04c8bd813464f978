// SPDX-License-Identifier: BSD-3-Clause
// The functions of listing.h, which documents them. API context; they take no lock. The caller may hold references.
#include "config.h"

#include <pinrail/component.h>
#include <pinrail/listing.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/core/struct_size.h"
#include "base/sync/call_scope.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"
#include "framework/monitor/monitor.h"

#define TEXT_OF(value) TEXT_OF_EXPANDED(value)
#define TEXT_OF_EXPANDED(value) #value

namespace {

using pinrail::ends_between_fields;
using pinrail::front::refuse;
using pinrail::loader::Listed;

#ifdef PINRAIL_DEBUG
constexpr const char* kDebugChecks = "yes";
#else
constexpr const char* kDebugChecks = "no";
#endif

#ifdef __OPTIMIZE__
constexpr const char* kOptimized = "yes";
#else
constexpr const char* kOptimized = "no";
#endif

constexpr pinrail_build_fact_t kFacts[] = {
    {"version", PACKAGE_VERSION},   {"sysconfdir", PINRAIL_SYSCONFDIR},    {"pkglibdir", PINRAIL_PKGLIBDIR},
    {"compiler", __VERSION__},      {"c++", TEXT_OF(__cplusplus)},         {"optimized", kOptimized},
    {"debug_checks", kDebugChecks}, {"configure", PINRAIL_CONFIGURE_LINE}, {"third_parties", PINRAIL_THIRD_PARTIES},
};

pinrail_component_info_t info_of(const Listed& listed) {
  pinrail_component_info_t info{};
  info.size = sizeof(info);
  info.framework = listed.framework.c_str();
  info.name = listed.name.c_str();
  info.version = listed.version.c_str();
  info.help = listed.help.c_str();
  info.path = listed.path.c_str();
  info.reason = listed.reason.c_str();
  if (listed.reason.empty() && listed.framework == "monitor") info.reason = pinrail::monitor::why_idle(listed.name);
  info.priority = listed.priority;
  info.selected = listed.selected ? 1 : 0;
  info.status = listed.status.code();
  return info;
}

// The components found; NULL before init and after finalize.
const std::vector<Listed>* listed() {
  const pinrail::loader::Loader* loader = pinrail::front::front_loader();
  return loader != nullptr ? &loader->listed() : nullptr;
}

}  // namespace

size_t pinrail_component_count(void) { return listed() != nullptr ? listed()->size() : 0; }

pinrail_status_t pinrail_component_at(size_t index, pinrail_component_info_t* info_out) {
  if (info_out == nullptr || !ends_between_fields<pinrail_component_info_t>(info_out->size)) {
    return refuse("pinrail_component_at", "info_out is NULL, or its size is not sizeof(pinrail_component_info_t)");
  }
  if (index >= pinrail_component_count()) return PINRAIL_ERR_NOT_FOUND;
  const pinrail_component_info_t info = info_of((*listed())[index]);
  const size_t size = std::min(info_out->size, sizeof(info));
  std::memcpy(info_out, &info, size);
  info_out->size = size;
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_memory_kind_at(size_t index, pinrail_memory_kind_t* kind_out) {
  if (kind_out == nullptr || !ends_between_fields<pinrail_memory_kind_t>(kind_out->size)) {
    return refuse("pinrail_memory_kind_at", "kind_out is NULL, or its size is not sizeof(pinrail_memory_kind_t)");
  }
  pinrail_memory_kind_t kind{};
  kind.size = sizeof(kind);
  const bool found = listed() != nullptr && pinrail::monitor::kept_at(index, &kind.name, &kind.why_not);
  if (!found) return PINRAIL_ERR_NOT_FOUND;
  kind.is_kept = *kind.why_not == 0 ? 1 : 0;
  const size_t size = std::min(kind_out->size, sizeof(kind));
  std::memcpy(kind_out, &kind, size);
  kind_out->size = size;
  return PINRAIL_SUCCESS;
}

const char* pinrail_monitors_at_work(void) { return listed() != nullptr ? pinrail::monitor::names_of_started() : ""; }

const pinrail_build_fact_t* pinrail_build_at(size_t index) {
  return index < std::size(kFacts) ? &kFacts[index] : nullptr;
}

pinrail_status_t pinrail_mpool_left_out(pinrail_mpool_t* pool, pinrail_left_out_t* entries_out, size_t room,
                                        size_t* count_out) {
  constexpr const char* kCall = "pinrail_mpool_left_out";
  if (pool == nullptr || count_out == nullptr) return refuse(kCall, "pool or count_out is NULL");
  if (entries_out == nullptr && room != 0) return refuse(kCall, "entries_out is NULL");
  const pinrail::deferred::Call call;
  if (!call) return PINRAIL_ERR_BUSY;
  pinrail::front::handle_fork();
  if (pinrail::front::is_inherited(pool)) return PINRAIL_ERR_NOT_AVAILABLE;
  if (pool->ops->left_out == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return pool->ops->left_out(pool->module, entries_out, room, count_out);
}
