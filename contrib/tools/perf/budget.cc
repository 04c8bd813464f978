// SPDX-License-Identifier: BSD-3-Clause
#include "contrib/tools/perf/budget.h"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstring>
#include <string_view>
#include <thread>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

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
  if (now.registered_bytes > now.size_limit)
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
