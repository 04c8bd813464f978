// SPDX-License-Identifier: BSD-3-Clause
// refuse.h - messages about calls that the API refuses for their arguments, once for each kind until the next init.
//
// Threads  all functions may run together. They take no lock of a pool.
// Context  API context; refuse() must not run in a hook or in a signal handler.
#ifndef PINRAIL_FRAMEWORK_API_REFUSE_H
#define PINRAIL_FRAMEWORK_API_REFUSE_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <initializer_list>

#include "base/core/span.h"
#include "framework/api/api.h"

namespace pinrail::api {

constexpr const char* kBeforeInit = "Pinrail is not initialised: pinrail_init() comes first";
constexpr const char* kHandleIsGone = "the handle names no registration that is still held";

// Prints a topic of api_help.txt. May throw bad_alloc.
void help(const char* topic, std::initializer_list<pinrail_help_arg_t> args);

// Reports that the call was refused, and returns BAD_PARAM. why is a clause.
__attribute__((noinline, cold)) pinrail_status_t refuse(const char* call, const char* why);

// Reports that a call that pins so many bytes met a limit when `done` bytes were pinned. May throw bad_alloc.
void report_limit(uint64_t bytes, uint64_t done, const char* limit);

// Reports that the program has closed the copy of a dmabuf's descriptor that a job has. May throw bad_alloc.
void report_closed_dmabuf();

// Check a range, or access and flags, as calls on pools take them. Return a clause that names the fault; NULL: no
// fault.
inline const char* fault_of_range(const void* addr, size_t length) {
  if (addr == nullptr) return "addr is NULL";
  if (length == 0) return "length is 0";
  return fits(reinterpret_cast<uintptr_t>(addr), length) ? nullptr : "addr + length is beyond the address space";
}
inline const char* fault_of_access(uint64_t access_and_flags) {
  if ((access_and_flags & (UINT32_MAX & ~kAccessMask)) != 0)
    return "access has bits that pinrail/types.h does not name";
  return (access_and_flags & ~kAccessAndFlagsMask) != 0 ? "flags has bits that pinrail/types.h does not name" : nullptr;
}
const char* fault_of_options(const pinrail_register_options_t& options);

// The same of a whole request.
inline const char* fault_of_request(const pinrail_mpool_t* pool, const void* addr, size_t length,
                                    uint64_t access_and_flags, const pinrail_handle_t* handle_out) {
  if (pool == nullptr) return "pool is NULL";
  if (handle_out == nullptr) return "handle_out is NULL";
  const char* const fault = fault_of_range(addr, length);
  return fault != nullptr ? fault : fault_of_access(access_and_flags);
}

// Returns the status, and reports it if it is BAD_PARAM.
inline pinrail_status_t report_if_bad(pinrail_status_t status, const char* call, const char* why) {
  return status == PINRAIL_ERR_BAD_PARAM ? refuse(call, why) : status;
}

}  // namespace pinrail::api

#endif
