// SPDX-License-Identifier: BSD-3-Clause
// byte_check.cc - checks that the device sees through a registration what the processor sees.
#include "contrib/tools/perf/byte_check.h"

#include <algorithm>
#include <cstring>

#include "contrib/tools/perf/basics.h"

namespace pinrail::perf {

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
