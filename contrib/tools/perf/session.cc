// SPDX-License-Identifier: BSD-3-Clause
// session.cc - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing.
#include "contrib/tools/perf/session.h"

#include <pinrail/listing.h>

#include <iterator>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

namespace {

Result refused(const char* mpool, const char* registrar, pinrail_status_t status) {
  return Result::bad(text("cannot make %s%s%s%s%s: %s", mpool == nullptr ? "a pool" : "pool ",
                          mpool == nullptr ? "" : mpool, registrar == nullptr ? "" : " on registrar ",
                          registrar == nullptr ? "" : registrar, registrar == nullptr ? " on any registrar" : "",
                          pinrail_status_name(status)));
}

// By these a pool registers exactly what it is asked for. A library that lacks a parameter does so anyway.
constexpr std::pair<const char*, const char*> kExact[] = {{"mpool_grdma_extent", "0"}, {"mpool_grdma_rights", "asked"}};

void add_exact(tools::Pairs* mca) {
  for (const auto& [name, value] : kExact) {
    pinrail_param_info_t info = {};
    info.size = sizeof(info);
    if (pinrail_param_find(name, &info) == PINRAIL_SUCCESS) mca->emplace_back(name, value);
  }
}

}  // namespace

Session::~Session() {
  if (cached_ != nullptr) pinrail_mpool_destroy(cached_, PINRAIL_DESTROY_FORCE);
  if (uncached_ != nullptr) pinrail_mpool_destroy(uncached_, PINRAIL_DESTROY_FORCE);
  (void)device_.close();
  if (initialised_) pinrail_finalize();
}

Result Session::initialise(const Options& options) {
  // The scenario transfers whole pages.
  std::vector<pinrail_setting_t> paging = {{"registrar_verbs_odp", "auto"},
                                           {"registrar_verbs_odp_page_aligned", "yes"}};
  if (options.scenario != "odp") paging.clear();
  const pinrail_status_t status = tools::init(tools::settings_of(options.mca), paging);
  return status == PINRAIL_SUCCESS ? Result::good()
                                   : Result::bad(text("pinrail_init: %s", pinrail_status_name(status)));
}

Result Session::open(const Options& given) {
  Options options = given;
  Result initialised = initialise(options);
  if (initialised.ok() && options.exact) {
    add_exact(&options.mca);
    (void)pinrail_finalize();
    initialised = initialise(options);
  }
  if (!initialised.ok()) return initialised;
  initialised_ = true;
  return options.traces.empty() ? open_pools(options) : open_replayed(options);
}

Result Session::open_replayed(const Options& options) {
  const Result opened = device_.open(options.registrar);
  if (!opened.ok()) return opened;
  const char* const mpool = options.pool.empty() ? nullptr : options.pool.c_str();
  const pinrail_registrar_choice_t choice = {nullptr, device_.table(), nullptr};
  pinrail_mpool_options_t limits = PINRAIL_MPOOL_OPTIONS_INIT;
  if (options.limit != 0) limits.size_limit = static_cast<int64_t>(options.limit);
  const pinrail_status_t status = pinrail_mpool_create(mpool, &choice, nullptr, &limits, &cached_);
  return status == PINRAIL_SUCCESS ? Result::good() : refused(mpool, device_.table()->name, status);
}

Result Session::open_pools(const Options& options) {
  const char* const mpool = options.pool.empty() ? nullptr : options.pool.c_str();
  pinrail_registrar_choice_t choice = {options.registrar.empty() ? nullptr : options.registrar.c_str(), nullptr,
                                       nullptr};
  pinrail_status_t status = pinrail_mpool_create(mpool, &choice, nullptr, nullptr, &cached_);
  if (status != PINRAIL_SUCCESS) return refused(mpool, choice.name, status);
  if (!pool_of_scenario(options.scenario).empty()) return Result::good();  // these always keep
  choice.name = registrar_name();
  const pinrail_mpool_options_t nothing = keep_nothing();
  // Of the best component: not each can keep nothing.
  status = pinrail_mpool_create(nullptr, &choice, "pinrail_perf_uncached", &nothing, &uncached_);
  return status == PINRAIL_SUCCESS ? Result::good() : refused(nullptr, choice.name, status);
}

Result Session::close() {
  for (pinrail_mpool_t** pool : {&uncached_, &cached_}) {
    const pinrail_status_t status = *pool == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(*pool, 0);
    if (status != PINRAIL_SUCCESS)
      return Result::bad(text("destroying a pool without references: %s", pinrail_status_name(status)));
    *pool = nullptr;
  }
  return device_.close();
}

std::string Session::why_not_kept() {
  pinrail_memory_kind_t kind{};
  kind.size = sizeof(kind);
  return pinrail_memory_kind_at(0, &kind) == PINRAIL_SUCCESS && kind.is_kept == 0 ? kind.why_not : "";
}

pinrail_mpool_stats_t Session::stats_of(pinrail_mpool_t* pool) {
  pinrail_mpool_stats_t stats = {};
  stats.size = sizeof(stats);
  (void)pinrail_mpool_read_stats(pool, &stats);
  return stats;
}

PoolFacts Session::facts() const {
  const pinrail_mpool_stats_t now = stats();
  return {pool_name(), registrar_name(), pinrail_monitors_at_work(), why_not_kept(), now.size_limit, now.leave_pinned};
}

std::string Session::parameter(const char* short_name) const { return text("mpool_%s_%s", pool_name(), short_name); }

std::string Session::describe(const char* short_name) const {
  pinrail_param_info_t info = {};
  info.size = sizeof(info);
  if (pinrail_param_find(parameter(short_name).c_str(), &info) != PINRAIL_SUCCESS) return "unknown";
  // This program's own settings are those of its command line.
  const bool is_own = info.source == PINRAIL_SOURCE_COMMAND_LINE;
  std::string said =
      text("%s, from the %s", info.value, is_own ? "command line" : pinrail_param_source_name(info.source));
  if (*info.source_file != '\0') said += text(" %s line %d", info.source_file, info.source_line);
  return said;
}

}  // namespace pinrail::perf
