// SPDX-License-Identifier: BSD-3-Clause
// Any context.
#include "base/core/status.h"

namespace pinrail {

namespace {

struct Known {
  pinrail_status_t status;
  const char *name, *text;
};

constexpr Known kStatuses[] = {
    {PINRAIL_SUCCESS, "SUCCESS", "it is done"},
    {PINRAIL_ERR_ERROR, "ERROR", "something failed that has no better name; a message says what"},
    {PINRAIL_ERR_OUT_OF_RESOURCE, "OUT_OF_RESOURCE", "memory, pins or device entries are used up, or it can never fit"},
    {PINRAIL_ERR_TEMP_OUT_OF_RESOURCE, "TEMP_OUT_OF_RESOURCE",
     "what is referenced now leaves no room; later there may be"},
    {PINRAIL_ERR_WOULD_BLOCK, "WOULD_BLOCK", "a stale registration that is still referenced is in the way"},
    {PINRAIL_ERR_BUSY, "BUSY", "registrations are referenced, or this thread is inside a call already"},
    {PINRAIL_ERR_BAD_PARAM, "BAD_PARAM", "an argument, a parameter's value or a handle is wrong"},
    {PINRAIL_ERR_NOT_FOUND, "NOT_FOUND", "there is nothing of that name, range or index"},
    {PINRAIL_ERR_NOT_SUPPORTED, "NOT_SUPPORTED", "this component or device cannot do that"},
    {PINRAIL_ERR_NOT_AVAILABLE, "NOT_AVAILABLE", "this machine or process has no such device, driver or component"},
    {PINRAIL_ERR_PERM, "PERM", "this user, or this parameter, does not permit it"},
    {PINRAIL_ERR_VERSION, "VERSION", "it was built against another version of the interface"},
};

Known known(pinrail_status_t status) {
  for (const Known& each : kStatuses) {
    if (each.status == status) return each;
  }
  return {status, "unknown status", "a status that this library does not know"};
}

}  // namespace

const char* status_name(pinrail_status_t status) { return known(status).name; }

const char* status_text(pinrail_status_t status) { return known(status).text; }

}  // namespace pinrail
