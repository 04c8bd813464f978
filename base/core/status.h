// SPDX-License-Identifier: BSD-3-Clause
// status.h - errors are values.
#ifndef PINRAIL_BASE_CORE_STATUS_H
#define PINRAIL_BASE_CORE_STATUS_H

#include <pinrail/types.h>

namespace pinrail {

// The C status with the duty to look at it.
class [[nodiscard]] Status {
 public:
  constexpr Status(pinrail_status_t code) : code_(code) {}
  constexpr pinrail_status_t code() const { return code_; }
  constexpr bool ok() const { return code_ == PINRAIL_SUCCESS; }
  constexpr bool is(pinrail_status_t code) const { return code_ == code; }
  void ignore() const {}

 private:
  pinrail_status_t code_;
};

constexpr Status success() { return PINRAIL_SUCCESS; }

const char* status_name(pinrail_status_t status);
const char* status_text(pinrail_status_t status);

}  // namespace pinrail

#endif
