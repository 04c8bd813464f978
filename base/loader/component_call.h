// SPDX-License-Identifier: BSD-3-Clause
// component_call.h - calls functions of components that begin or end something, so that no exception and no unknown
// status gets past them (C4, C5).
//
// Threads  all functions may run together. Start-up or API context; the caller holds no lock.
#ifndef PINRAIL_BASE_LOADER_COMPONENT_CALL_H
#define PINRAIL_BASE_LOADER_COMPONENT_CALL_H

#include <cxxabi.h>

#include <new>

#include "base/core/compiler.h"
#include "base/core/guarded.h"
#include "base/core/status.h"

namespace pinrail::loader {

// Records the line for LastLogLine, as if the component had logged it. May throw bad_alloc.
void record_last_log_line(const char* line);

// Reports that the component's function threw an exception. Without memory the message is dropped.
void report_thrown(const char* framework, const char* name, const char* function);

// Returns what the function returns. What it throws becomes OUT_OF_RESOURCE or ERROR, and a status that does not exist
// becomes ERROR; LastLogLine then has the reason. The exception ends here, because its code may be unmapped soon. A
// forced unwinding of the thread is passed on.
template <typename Function>
PINRAIL_CATCHES_FORCED_UNWIND Status answer_of_component(Function&& function) {
  try {
    const pinrail_status_t status = function();
    if (is_status(status)) return status;
    record_last_log_line("it returned a status that does not exist");
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (const std::bad_alloc&) {
    return PINRAIL_ERR_OUT_OF_RESOURCE;
  } catch (...) {
    record_last_log_line("it threw an exception");
  }
  return PINRAIL_ERR_ERROR;
}

// Calls a function that ends something. What it throws is reported and ends here. Allocates nothing: it also runs in
// destructors, and where memory is exhausted.
template <typename Function>
void end_by_component(const char* framework, const char* name, const char* function_name, Function&& function) {
  const Status ended = guarded([&] { function(); });
  if (!ended.ok()) report_thrown(framework, name, function_name);
}

}  // namespace pinrail::loader

#endif
