// SPDX-License-Identifier: BSD-3-Clause
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

}  // namespace pinrail
