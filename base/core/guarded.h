// SPDX-License-Identifier: BSD-3-Clause
// guarded.h - nothing thrown crosses a C border. Forced unwinding (pthread_exit, cancellation) is no exception: it is
// passed on, for who catches it without throwing it again ends the process.
#ifndef PINRAIL_BASE_CORE_GUARDED_H
#define PINRAIL_BASE_CORE_GUARDED_H

#include <cxxabi.h>

#include <new>

#include "base/core/sanitizer.h"
#include "base/core/status.h"

namespace pinrail {

// What body() says; OUT_OF_RESOURCE for memory that was not to be had, ERROR for anything else that it throws.
template <typename Body>
PINRAIL_CATCHES_FORCED_UNWIND pinrail_status_t guarded(Body&& body) {
  try {
    return Status(body()).code();
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
