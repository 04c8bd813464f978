// SPDX-License-Identifier: BSD-3-Clause
// guarded.h - keeps exceptions from crossing a C interface.
//
// A forced unwinding (pthread_exit, cancellation) is passed on: the runtime ends a process that catches one and does
// not throw it again.
//
// Context  start-up or API.
#ifndef PINRAIL_BASE_CORE_GUARDED_H
#define PINRAIL_BASE_CORE_GUARDED_H

#include <cxxabi.h>

#include <new>
#include <type_traits>

#include "base/core/compiler.h"
#include "base/core/status.h"

namespace pinrail {

// Returns the status of body(), SUCCESS if it returns nothing, OUT_OF_RESOURCE if it throws bad_alloc, ERROR if it
// throws another exception.
template <typename Body>
PINRAIL_CATCHES_FORCED_UNWIND pinrail_status_t guarded(Body&& body) {
  try {
    if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
      body();
      return PINRAIL_SUCCESS;
    } else {
      return Status(body()).code();
    }
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  } catch (...) {
    return PINRAIL_ERR_ERROR;
  }
}

}  // namespace pinrail

#endif
