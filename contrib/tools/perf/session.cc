// SPDX-License-Identifier: BSD-3-Clause
// session.cc - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing.
#include "contrib/tools/perf/session.h"

#include <pinrail/listing.h>

#include <iterator>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/scenario.h"

namespace pinrail::perf {

// The device of a replay.

namespace {

// The registration that the component has made for one of ours.
pinrail_handle_t& inner(const pinrail_registration_t* reg) {
  return *static_cast<pinrail_handle_t*>(pinrail_registration_tail(reg));
}

pinrail_status_t read_device(void*, const pinrail_registration_t* reg, size_t offset, void* into, size_t length) {
  if (inner(reg).reg == nullptr) return PINRAIL_ERR_NOT_SUPPORTED;
  return pinrail_mpool_device_read(inner(reg), offset, into, length);
}

}  // namespace

pinrail_mpool_options_t keep_nothing() {
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.flags = PINRAIL_POOL_EXACT;
  options.leave_pinned = 0;
  options.size_limit = 0;
  options.count_limit = 0;
  return options;
}

Result Device::open(const std::string& name) {
  table_.size = sizeof(table_);
  table_.context = this;
  table_.thread_mode = PINRAIL_THREAD_CONCURRENT;
  table_.kinds = PINRAIL_KIND_HOST;
  table_.granularity = page_size();
  table_.tail_size = sizeof(pinrail_handle_t);
  table_.register_mem = register_mem;
  table_.deregister_mem = deregister_mem;
  table_.device_read = read_device;
  table_.name = kNone;
  if (name == kNone) return Result::good();
  const pinrail_registrar_choice_t choice = {name.empty() ? nullptr : name.c_str(), nullptr, nullptr};
  const pinrail_mpool_options_t nothing = keep_nothing();
  const pinrail_status_t status = pinrail_mpool_create(nullptr, &choice, "pinrail_perf_device", &nothing, &pool_);
  if (status != PINRAIL_SUCCESS)
    return Result::bad(text("cannot use %s%s: %s", name.empty() ? "any registrar" : "registrar ", name.c_str(),
                            pinrail_status_name(status)));
  table_.name = pinrail_mpool_registrar_name(pool_);
  return Result::good();
}

Result Device::close() {
  const pinrail_status_t status = pool_ == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(pool_, 0);
  if (status != PINRAIL_SUCCESS)
    return Result::bad(text("the pool under test has not given everything back: %s", pinrail_status_name(status)));
  pool_ = nullptr;
  return Result::good();
}

// In that pool everything is referenced, by the pool under test, which can evict: so what lacks room for now lacks
// room.
pinrail_status_t Device::pass_on(const pinrail_register_request_t& request, pinrail_registration_t* reg) {
  if (pool_ == nullptr) return PINRAIL_SUCCESS;
  pinrail_handle_t handle = {};
  const pinrail_status_t status = pinrail_mpool_register(
      pool_, request.addr, request.length, request.rights | request.traits, PINRAIL_FLAG_CACHE_BYPASS, &handle);
  if (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) return PINRAIL_ERR_OUT_OF_RESOURCE;
  if (status != PINRAIL_SUCCESS) return status;
  inner(reg) = handle;
  reg->lkey = handle.reg->lkey;
  reg->rkey = handle.reg->rkey;
  return PINRAIL_SUCCESS;
}

// relaxed throughout: counts, read when the replay has ended.
pinrail_status_t Device::register_mem(void* self, const pinrail_register_request_t* request,
                                      pinrail_registration_t* reg) {
  auto* const device = static_cast<Device*>(self);
  const uint64_t begin = now_ns();
  const pinrail_status_t status = device->pass_on(*request, reg);
  device->register_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  device->calls_.fetch_add(1, std::memory_order_relaxed);
  if (status == PINRAIL_SUCCESS)
    device->pages_.fetch_add(request->length / page_size(), std::memory_order_relaxed);
  else
    device->refused_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

pinrail_status_t Device::deregister_mem(void* self, pinrail_registration_t* reg, pinrail_reason_t) {
  auto* const device = static_cast<Device*>(self);
  if (inner(reg).reg == nullptr) return PINRAIL_SUCCESS;
  const uint64_t begin = now_ns();
  const pinrail_status_t status = pinrail_mpool_deregister(inner(reg));
  device->deregister_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  return status;
}

DeviceCalls Device::calls() const {
  DeviceCalls now;
  now.calls = calls_.load(std::memory_order_relaxed);
  now.refused = refused_.load(std::memory_order_relaxed);
  now.pages = pages_.load(std::memory_order_relaxed);
  now.register_ns = register_ns_.load(std::memory_order_relaxed);
  now.deregister_ns = deregister_ns_.load(std::memory_order_relaxed);
  return now;
}

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
