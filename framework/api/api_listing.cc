// SPDX-License-Identifier: BSD-3-Clause
// The functions of listing.h, params.h and stats.h, which document them. API context; they take no lock but that of the
// parameters. The caller may hold references.
#include "config.h"

#include <pinrail/listing.h>
#include <pinrail/params.h>
#include <pinrail/stats.h>

#include <cstdio>
#include <iterator>

#include "base/core/calling_thread.h"
#include "base/core/machine.h"
#include "framework/api/api.h"
#include "framework/monitor/monitor.h"

#define TEXT_OF(value) TEXT_OF_EXPANDED(value)
#define TEXT_OF_EXPANDED(value) #value

using namespace pinrail;
using api::refuse;
using loader::Listed;
using param::Registry;

namespace {

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
  auto info = sized<pinrail_component_info_t>();
  info.framework = listed.framework.c_str();
  info.name = listed.name.c_str();
  info.version = listed.version.c_str();
  info.help = listed.help.c_str();
  info.path = listed.path.c_str();
  info.reason = listed.reason.c_str();
  if (listed.reason.empty() && listed.framework == "monitor") info.reason = monitor::why_idle(listed.name);
  info.priority = listed.priority;
  info.selected = listed.selected ? 1 : 0;
  info.status = listed.status.code();
  return info;
}

// The components found; NULL before init and after finalize.
const std::vector<const Listed*>* listed() {
  const loader::Loader* loader = api::the_loader();
  return loader != nullptr ? &loader->listed() : nullptr;
}

// Reads what find(registry, info) finds. fault: NULL, or what is wrong with the arguments.
template <typename Find>
pinrail_status_t read_param(const char* call, const char* fault, pinrail_param_info_t* info_out, Find find) {
  return guarded([=]() -> Status {
    const Registry* params = api::the_registry();
    if (fault != nullptr) return refuse(call, fault);
    if (params == nullptr) return PINRAIL_ERR_NOT_FOUND;
    pinrail_param_info_t info{};
    const Status status = find(*params, &info);
    if (!status.ok()) return status;
    return api::report_if_bad(param::copy_info(info, info_out).code(), call,
                              "info_out->size is not sizeof(pinrail_param_info_t)");
  });
}

// A size that ends inside the text would leave it without its end.
bool is_possible(size_t size) {
  const bool has_whole_text = size >= offsetof(pinrail_machine_t, locked_limit);
  const bool has_no_text = size <= offsetof(pinrail_machine_t, default_limit_from);
  return ends_between_fields<pinrail_machine_t>(size) && (has_whole_text || has_no_text);
}

pinrail_machine_t read_machine_with_limits() {
  pinrail_machine_t machine = read_machine();
  const mpool::Bounds bounds = mpool::read_bounds();
  const mpool::DefaultLimit limit = mpool::default_limit(bounds);
  machine.locked_limit = bounds.memlock;
  machine.default_limit = limit.bytes;
  std::snprintf(machine.default_limit_from, sizeof(machine.default_limit_from), "%s", limit.derivation.c_str());
  return machine;
}

#define STAT(field, unit, help) \
  { #field, unit, help, offsetof(pinrail_mpool_stats_t, field) }

constexpr pinrail_stat_info_t kStats[] = {
    STAT(hits, "calls", "register and find calls that the cache served"),
    STAT(misses, "calls", "register calls that asked the device"),
    STAT(evictions, "registrations", "idle registrations given back to make room"),
    STAT(invalidations, "registrations", "registrations that a memory event killed"),
    STAT(races, "registrations", "registrations that a memory event overtook while they were made"),
    STAT(retries, "calls", "device calls repeated after it was out of resources"),
    STAT(uncovered, "registrations", "not kept, for no monitor sees all that can happen to their memory"),
    STAT(extent_hits, "calls", "requests that memory answered which was registered beside what was asked for"),
    STAT(extent_lost, "registrations",
         "registrations that a memory event killed before such memory had paid for itself"),
    STAT(indexed, "registrations", "registrations in the index now"),
    STAT(dead_bytes, "bytes", "killed and not yet given back"),
    STAT(registered_bytes, "bytes", "registered with the device now; of all pools of the cache"),
    STAT(registered_count, "registrations", "the same, counted"),
    STAT(peak_registered_bytes, "bytes", "the most there ever was"),
    STAT(pinned_bytes, "bytes", "unique pages of registered_bytes"),
    STAT(size_limit, "bytes", "limit of registered_bytes"),
    STAT(count_limit, "registrations", "limit of registered_count"),
    STAT(misses_cold, "calls", "misses of ranges that were not cached before, or long ago"),
    STAT(misses_span, "calls", "misses of ranges that overlap what is cached, which does not contain them"),
    STAT(misses_rights, "calls", "misses of ranges that are cached with fewer rights"),
    STAT(misses_event, "calls", "misses of ranges that were cached until their memory went away"),
    STAT(misses_evicted, "calls", "misses of ranges that were cached until they were evicted"),
    STAT(misses_extent, "calls", "misses of ranges cached in a longer registration, of which another part went away"),
    STAT(misses_uncovered, "calls", "misses of memory that is not kept, because no monitor sees all its events"),
    STAT(misses_bypass, "calls", "misses of requests with CACHE_BYPASS or options of their own"),
    STAT(misses_raced, "calls", "misses whose memory had an event while they were made"),
    STAT(misses_full, "calls", "misses that failed because what is in use fills a limit"),
    STAT(misses_refused, "calls", "misses that the registrar refused"),
    STAT(misses_not_kept, "calls", "misses where nothing is kept: leave_pinned=no, or PERSISTENT"),
    STAT(held_bytes, "bytes", "referenced, or being registered"),
    STAT(held_count, "registrations", "the same, counted"),
    STAT(dead_count, "registrations", "killed and not yet given back"),
    STAT(registrar_ns, "nanoseconds", "inside the registrar's functions, of all threads together"),
};

#undef STAT

}  // namespace

size_t pinrail_component_count(void) { return listed() != nullptr ? listed()->size() : 0; }

pinrail_status_t pinrail_component_at(size_t index, pinrail_component_info_t* info_out) {
  if (info_out == nullptr || !ends_between_fields<pinrail_component_info_t>(info_out->size)) {
    return refuse(__func__, "info_out is NULL, or its size is not sizeof(pinrail_component_info_t)");
  }
  if (index >= pinrail_component_count()) return PINRAIL_ERR_NOT_FOUND;
  copy_sized(info_of(*(*listed())[index]), info_out);
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_memory_kind_at(size_t index, pinrail_memory_kind_t* kind_out) {
  if (kind_out == nullptr || !ends_between_fields<pinrail_memory_kind_t>(kind_out->size)) {
    return refuse(__func__, "kind_out is NULL, or its size is not sizeof(pinrail_memory_kind_t)");
  }
  auto kind = sized<pinrail_memory_kind_t>();
  const bool found = listed() != nullptr && monitor::kept_at(index, &kind.name, &kind.why_not);
  if (!found) return PINRAIL_ERR_NOT_FOUND;
  kind.is_kept = *kind.why_not == 0 ? 1 : 0;
  copy_sized(kind, kind_out);
  return PINRAIL_SUCCESS;
}

const char* pinrail_monitors_at_work(void) { return listed() != nullptr ? monitor::names_of_started() : ""; }

const pinrail_build_fact_t* pinrail_build_at(size_t index) {
  return index < std::size(kFacts) ? &kFacts[index] : nullptr;
}

pinrail_status_t pinrail_mpool_left_out(pinrail_mpool_t* pool, pinrail_left_out_t* entries_out, size_t room,
                                        size_t* count_out) {
  if (pool == nullptr || count_out == nullptr) return refuse(__func__, "pool or count_out is NULL");
  if (entries_out == nullptr && room != 0) return refuse(__func__, "entries_out is NULL");
  return api::on_pool(pool, [=]() -> pinrail_status_t {
    if (pool->ops->left_out == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
    return pool->ops->left_out(pool->module, entries_out, room, count_out);
  });
}

size_t pinrail_param_count(void) {
  const Registry* params = api::the_registry();
  return params != nullptr ? params->count() : 0;
}

pinrail_status_t pinrail_param_at(size_t index, pinrail_param_info_t* info_out) {
  const char* const fault = info_out == nullptr ? "info_out is NULL" : nullptr;
  return read_param(__func__, fault, info_out,
                    [=](const Registry& params, pinrail_param_info_t* info) { return params.at(index, info); });
}

pinrail_status_t pinrail_param_find(const char* name, pinrail_param_info_t* info_out) {
  const char* const fault = name == nullptr || info_out == nullptr ? "name or info_out is NULL" : nullptr;
  return read_param(__func__, fault, info_out,
                    [=](const Registry& params, pinrail_param_info_t* info) { return params.find(name, info); });
}

pinrail_status_t pinrail_param_set(const char* name, const char* value) {
  return guarded([=]() -> Status {
    Registry* params = api::the_registry();
    if (name == nullptr || value == nullptr) return refuse("pinrail_param_set", "name or value is NULL");
    if (params == nullptr) return PINRAIL_ERR_NOT_FOUND;
    return params->set(name, value);
  });
}

const char* pinrail_param_source_name(pinrail_param_source_t source) {
  switch (source) {
    case PINRAIL_SOURCE_DEFAULT: return "default";
    case PINRAIL_SOURCE_FILE: return "file";
    case PINRAIL_SOURCE_ENVIRONMENT: return "environment";
    case PINRAIL_SOURCE_COMMAND_LINE: return "program";
    case PINRAIL_SOURCE_API: return "API";
    case PINRAIL_SOURCE_OVERRIDE: return "override file";
  }
  return "unknown source";
}

pinrail_status_t pinrail_machine_read(pinrail_machine_t* machine_out) {
  if (machine_out == nullptr || !is_possible(machine_out->size)) {
    return api::refuse(__func__, "machine_out is NULL, or its size is not sizeof(pinrail_machine_t)");
  }
  const NoCancel no_cancel;  // reading files is a cancellation point
  return guarded([machine_out] { copy_sized(read_machine_with_limits(), machine_out); });
}

const pinrail_stat_info_t* pinrail_stat_at(size_t index) {
  return index < sizeof(kStats) / sizeof(kStats[0]) ? &kStats[index] : nullptr;
}
