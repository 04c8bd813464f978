// SPDX-License-Identifier: BSD-3-Clause
// Any context.
#include "base/core/status.h"

namespace pinrail {

const char* status_name(pinrail_status_t status) {
  switch (status) {
    case PINRAIL_SUCCESS: return "SUCCESS";
    case PINRAIL_ERR_ERROR: return "ERROR";
    case PINRAIL_ERR_OUT_OF_RESOURCE: return "OUT_OF_RESOURCE";
    case PINRAIL_ERR_TEMP_OUT_OF_RESOURCE: return "TEMP_OUT_OF_RESOURCE";
    case PINRAIL_ERR_WOULD_BLOCK: return "WOULD_BLOCK";
    case PINRAIL_ERR_BUSY: return "BUSY";
    case PINRAIL_ERR_BAD_PARAM: return "BAD_PARAM";
    case PINRAIL_ERR_NOT_FOUND: return "NOT_FOUND";
    case PINRAIL_ERR_NOT_SUPPORTED: return "NOT_SUPPORTED";
    case PINRAIL_ERR_NOT_AVAILABLE: return "NOT_AVAILABLE";
    case PINRAIL_ERR_PERM: return "PERM";
    case PINRAIL_ERR_VERSION: return "VERSION";
  }
  return "unknown status";
}

const char* status_text(pinrail_status_t status) {
  switch (status) {
    case PINRAIL_SUCCESS: return "it is done";
    case PINRAIL_ERR_ERROR: return "something failed that has no better name; a message says what";
    case PINRAIL_ERR_OUT_OF_RESOURCE: return "memory, pins or device entries are used up, or it can never fit";
    case PINRAIL_ERR_TEMP_OUT_OF_RESOURCE: return "what is referenced now leaves no room; later there may be";
    case PINRAIL_ERR_WOULD_BLOCK: return "a stale registration that is still referenced is in the way";
    case PINRAIL_ERR_BUSY: return "registrations are referenced, or this thread is inside a call already";
    case PINRAIL_ERR_BAD_PARAM: return "an argument, a parameter's value or a handle is wrong";
    case PINRAIL_ERR_NOT_FOUND: return "there is nothing of that name, range or index";
    case PINRAIL_ERR_NOT_SUPPORTED: return "this component or device cannot do that";
    case PINRAIL_ERR_NOT_AVAILABLE: return "this machine or process has no such device, driver or component";
    case PINRAIL_ERR_PERM: return "this user, or this parameter, does not permit it";
    case PINRAIL_ERR_VERSION: return "it was built against another version of the interface";
  }
  return "a status that this library does not know";
}

}  // namespace pinrail
