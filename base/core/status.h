// SPDX-License-Identifier: BSD-3-Clause
// status.h - the status of an operation as a value that the caller must check.
//
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_STATUS_H
#define PINRAIL_BASE_CORE_STATUS_H

#include <pinrail/types.h>

namespace pinrail {

// pinrail_status_t with [[nodiscard]].
class [[nodiscard]] Status {
 public:
  constexpr Status(pinrail_status_t code) : code_(code) {}
  constexpr pinrail_status_t code() const { return code_; }
  constexpr bool ok() const { return code_ == PINRAIL_SUCCESS; }
  constexpr bool is(pinrail_status_t code) const { return code_ == code; }
  constexpr bool is_lack() const { return is(PINRAIL_ERR_OUT_OF_RESOURCE) || is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE); }
  void ignore() const {}

 private:
  pinrail_status_t code_;
};

constexpr Status success() { return PINRAIL_SUCCESS; }

// Whether there is such a status (C5): a component or an embedder may return any number.
constexpr bool is_status(pinrail_status_t code) { return code <= PINRAIL_SUCCESS && code >= PINRAIL_ERR_VERSION; }

// "OUT_OF_RESOURCE" for PINRAIL_ERR_OUT_OF_RESOURCE, and so on; and a short explanation for a message.
const char* status_name(pinrail_status_t status);
const char* status_text(pinrail_status_t status);

}  // namespace pinrail

#endif
