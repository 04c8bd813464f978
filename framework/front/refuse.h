// SPDX-License-Identifier: BSD-3-Clause
// refuse.h - what the C face says of calls that it refuses for their arguments: each kind once, until the next init.
//
// Threads  all functions may run together. Not in hook context, nor in a signal handler.
#ifndef PINRAIL_FRAMEWORK_FRONT_REFUSE_H
#define PINRAIL_FRAMEWORK_FRONT_REFUSE_H

#include <pinrail/types.h>

namespace pinrail::front {

constexpr const char* kBeforeInit = "Pinrail is not initialised: pinrail_init() comes first";
constexpr const char* kHandleIsGone = "the handle names no registration that is still held";

// Says that the call was refused, and why; "why" is a clause. BAD_PARAM.
__attribute__((noinline, cold)) pinrail_status_t refuse(const char* call, const char* why);

// A range, access and flags as calls on pools take them: why they are wrong, or NULL.
const char* fault_of_range(const void* addr, size_t length);
const char* fault_of_access(uint64_t access_and_flags);

// The status; BAD_PARAM is said.
inline pinrail_status_t say_if_bad(pinrail_status_t status, const char* call, const char* why) {
  return status == PINRAIL_ERR_BAD_PARAM ? refuse(call, why) : status;
}

}  // namespace pinrail::front

#endif
