// SPDX-License-Identifier: BSD-3-Clause
// session.cc - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing.
#include "contrib/tools/perf/session.h"

#include <pinrail/listing.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <iterator>
#include <string_view>
#include <thread>

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
  if (status != PINRAIL_SUCCESS) return refused(mpool, device_.table()->name, status);
  if (std::string_view(pool_name()) == "mrall")
    return Result::bad("the pool is mrall, which registers all memory by itself: it cannot repeat a trace");
  return Result::good();
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

namespace {

// The gc thread may be deregistering something now, and kernels may count memory as pinned after its registration has
// gone: Linux 6.1 gives back io_uring's buffers a second later; 5.10 gives back what soft-RoCE moved last when it moves
// something else.
constexpr std::chrono::milliseconds kPatience{2000}, kPause{10};

// Whether that came true within kPatience.
template <typename Condition>
bool soon(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

int64_t kernel_bytes(const char* name) { return std::max<int64_t>(status_bytes(name), 0); }

// Whether the kernel has that line of /proc/self/status and counts in it what this registrar registers.
bool kernel_counts(const char* name, std::string_view registrar) {
  const bool locks = registrar == "mlock", pins = registrar == "iouring" || registrar == "verbs";
  return status_bytes(name) >= 0 && (std::string_view(name) == "VmLck" ? locks : pins);
}

int64_t difference(uint64_t now, uint64_t before) { return static_cast<int64_t>(now - before); }

}  // namespace

Budget::Budget(const Session& session, Errors* errors)
    : session_(session),
      errors_(errors),
      counts_pin_(kernel_counts("VmPin", session.registrar_name())),
      counts_lock_(kernel_counts("VmLck", session.registrar_name())) {}

void Budget::begin(bool small_pages) {
  compare_ = small_pages;
  at_start_ = session_.stats();
  growth_ = {};
}

// What else of this process is pinned or locked, for instance the buffer that a registrar moves bytes through: at the
// first check, after a transfer, what is more than Pinrail's.
void Budget::measure_others() {
  const auto others = [this] {
    const pinrail_mpool_stats_t now = session_.stats();
    other_pin_ = kernel_bytes("VmPin") - static_cast<int64_t>(now.registered_bytes);
    other_lock_ = kernel_bytes("VmLck") - static_cast<int64_t>(now.pinned_bytes);
    return (!counts_pin_ || other_pin_ == 0) && (!counts_lock_ || other_lock_ == 0);
  };
  (void)soon(others);
  other_pin_ = std::max<int64_t>(other_pin_, 0);
  other_lock_ = std::max<int64_t>(other_lock_, 0);
  knows_others_ = true;
}

bool Budget::confirmed() {
  const pinrail_mpool_stats_t now = session_.stats();
  growth_.registered = difference(now.registered_bytes, at_start_.registered_bytes);
  growth_.pinned = difference(now.pinned_bytes, at_start_.pinned_bytes);
  growth_.vm_pin = kernel_bytes("VmPin") - other_pin_ - static_cast<int64_t>(at_start_.registered_bytes);
  growth_.vm_lck = kernel_bytes("VmLck") - other_lock_ - static_cast<int64_t>(at_start_.pinned_bytes);
  return !compare_ || ((!counts_pin_ || growth_.registered == growth_.vm_pin) &&
                       (!counts_lock_ || growth_.pinned == growth_.vm_lck));
}

std::string Budget::differences() const {
  return counts_lock_
             ? text("pinned_bytes grew by %" PRId64 ", VmLck by %" PRId64, growth_.pinned, growth_.vm_lck)
             : text("registered_bytes grew by %" PRId64 ", VmPin by %" PRId64, growth_.registered, growth_.vm_pin);
}

void Budget::check(const std::string& when) {
  const auto agreed = [this] {
    if (confirmed()) return true;
    (void)pinrail_mpool_progress(session_.pool());
    return confirmed();
  };
  if (compare_ && !knows_others_) measure_others();
  if (!soon(agreed)) errors_->add(when + ": " + differences());
  const pinrail_mpool_stats_t now = session_.stats();
  if (is_exceeded(now, now.registered_bytes))
    errors_->add(text("%s: %" PRIu64 " bytes are registered, the limit is %" PRIu64, when.c_str(), now.registered_bytes,
                      now.size_limit));
  if (now.registered_count > now.count_limit)
    errors_->add(text("%s: %" PRIu64 " registrations, the limit is %" PRIu64, when.c_str(), now.registered_count,
                      now.count_limit));
}

std::string limit_text(const Session& session) {
  const pinrail_mpool_stats_t stats = session.stats();
  for (const char* name : {"size_limit", "count_limit"}) {
    const uint64_t limit = name[0] == 's' ? stats.size_limit : stats.count_limit;
    if (limit != UINT64_MAX) return session.parameter(name) + " is " + session.describe(name);
  }
  return memlock_limit() == UINT64_MAX ? "" : "ulimit -l is " + size_text(memlock_limit());
}

bool is_refusal(pinrail_status_t status) {
  return status == PINRAIL_ERR_OUT_OF_RESOURCE || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}

Refusal explain_refusal(const Session& session, pinrail_status_t status, size_t length, uint64_t held) {
  (void)pinrail_mpool_progress(session.pool());
  const pinrail_mpool_stats_t stats = session.stats();
  const uint64_t bytes = round_up(length, page_size());
  // What would not fit if everything idle were evicted evicts nothing (R7).
  if (stats.registered_bytes > held && held + bytes <= stats.size_limit)
    return {false,
            text("%s was refused (%s) although %s of idle registrations could be evicted", size_text(bytes).c_str(),
                 pinrail_status_name(status), size_text(stats.registered_bytes - held).c_str())};
  const std::string locked = memlock_limit() == UINT64_MAX ? "" : "; ulimit -l is " + size_text(memlock_limit());
  if (stats.size_limit < held + bytes)
    return {true, text("%s is %s: less than %s%s", session.parameter("size_limit").c_str(),
                       session.describe("size_limit").c_str(), held == 0 ? "one buffer" : "what is in use at once",
                       locked.c_str())};
  return {true, text("%s was refused with %s in use (%s%s)", size_text(bytes).c_str(), size_text(held).c_str(),
                     pinrail_status_name(status), locked.c_str())};
}

// Checks that the device sees through a registration what the processor sees.

namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr size_t kSample = 64;    // bytes
constexpr unsigned kSamples = 6;  // samples between the first and the last one

uintptr_t address(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

std::string place(const Asked& asked) { return text("%p + %s", asked.addr, size_text(asked.length).c_str()); }

}  // namespace

ByteCheck::ByteCheck(const std::string& registrar, Errors* errors)
    : samples_(registrar == "verbs"), errors_(errors), buffer_(kPiece) {}

void ByteCheck::check(const Asked& asked, pinrail_handle_t handle) {
  if (check_coverage(asked, handle)) compare(asked, handle);
}

bool ByteCheck::check_coverage(const Asked& asked, pinrail_handle_t handle) {
  return covers(asked, *handle.reg) && !is_stale(asked, handle);
}

bool ByteCheck::is_stale(const Asked& asked, pinrail_handle_t handle) {
  const Seen now = {handle.generation, asked.changes};
  Seen& seen = seen_.emplace(handle.reg, now).first->second;
  if (seen.generation != handle.generation) seen = now;
  if (seen.changes >= asked.changed_at) return false;
  errors_->add(place(asked) + ": served by a registration that was made before this memory was mapped again");
  return true;
}

bool ByteCheck::covers(const Asked& asked, const pinrail_registration_t& reg) {
  const uintptr_t begin = address(asked.addr), base = address(reg.base);
  const bool range = base <= begin && begin - base <= reg.length && asked.length <= reg.length - (begin - base);
  const uint32_t rights = asked.access & PINRAIL_RIGHTS_MASK;
  if (!range)
    errors_->add(place(asked) + text(": the registration covers %p + %zu bytes only", reg.base, reg.length));
  else if ((reg.rights & rights) != rights)
    errors_->add(place(asked) + text(": asked for rights 0x%x, the registration has 0x%x", rights, reg.rights));
  else
    return true;
  return false;
}

void ByteCheck::compare(const Asked& asked, pinrail_handle_t handle) {
  const pinrail_status_t status = compare_device(asked, handle);
  if (status == PINRAIL_SUCCESS) {
    device_bytes_ += asked.length;
  } else if (status == PINRAIL_ERR_NOT_SUPPORTED) {
    unchecked_ += asked.length;
  } else {
    errors_->add(place(asked) + ": device_read: " + pinrail_status_name(status));
  }
}

pinrail_status_t ByteCheck::compare_device(const Asked& asked, pinrail_handle_t handle) {
  if (!samples_ || asked.length <= 2 * kSample) return compare_piece(asked, handle, 0, asked.length);
  pinrail_status_t status = compare_piece(asked, handle, 0, kSample);
  if (status == PINRAIL_SUCCESS) status = compare_piece(asked, handle, asked.length - kSample, kSample);
  for (unsigned i = 0; i < kSamples && status == PINRAIL_SUCCESS; i++) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    status = compare_piece(asked, handle, (random_ >> 11) % (asked.length - kSample), kSample);
  }
  return status;
}

pinrail_status_t ByteCheck::compare_piece(const Asked& asked, pinrail_handle_t handle, size_t offset, size_t length) {
  const size_t in_registration = address(asked.addr) - address(handle.reg->base);
  const char* const processor = static_cast<const char*>(asked.addr);
  for (const size_t end = offset + length; offset < end;) {
    const size_t step = std::min(end - offset, buffer_.size());
    const pinrail_status_t status = pinrail_mpool_device_read(handle, in_registration + offset, buffer_.data(), step);
    if (status != PINRAIL_SUCCESS) return status;
    compared_ += step;
    if (memcmp(buffer_.data(), processor + offset, step) != 0) {
      errors_->add(place(asked) +
                   text(": the device sees other bytes than the processor, at offset %zu or after it", offset));
      return PINRAIL_SUCCESS;
    }
    offset += step;
  }
  return PINRAIL_SUCCESS;
}

std::string ByteCheck::said() const {
  std::string out;
  if (device_bytes_ > 0) out = samples_ ? "device, samples" : "device";
  if (unchecked_ > 0) out += out.empty() ? "unchecked" : ", in part unchecked";
  return out.empty() ? "nothing compared" : out;
}

}  // namespace pinrail::perf
