// SPDX-License-Identifier: BSD-3-Clause
// guarded.h - nothing thrown crosses a C border.
#ifndef PINRAIL_BASE_CORE_GUARDED_H
#define PINRAIL_BASE_CORE_GUARDED_H

#include <new>

#include "base/core/status.h"

namespace pinrail {

// What body() says; OUT_OF_RESOURCE for memory that was not to be had, ERROR for anything else that it throws.
template <typename Body>
pinrail_status_t guarded(Body&& body) {
  try {
    return Status(body()).code();
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  } catch (...) {
    return PINRAIL_ERR_ERROR;
  }
}

}  // namespace pinrail

#endif
