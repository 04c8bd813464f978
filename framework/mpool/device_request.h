// SPDX-License-Identifier: BSD-3-Clause
// device_request.h - what a pool asks of its registrar.
//
// Threads  all functions may run together. Not in hook context.
#ifndef PINRAIL_FRAMEWORK_MPOOL_DEVICE_REQUEST_H
#define PINRAIL_FRAMEWORK_MPOOL_DEVICE_REQUEST_H

#include <pinrail/registrar.h>

namespace pinrail::mpool {

// To register the range of the registration. Descriptor and handle are the caller's to add.
inline pinrail_register_request_t device_request(const pinrail_registration_t* reg, uint32_t kind) {
  pinrail_register_request_t request{};
  request.size = sizeof(request);
  request.kind = kind;
  request.rights = reg->rights;
  request.traits = reg->traits;
  request.fd = -1;
  request.addr = reg->base;
  request.length = reg->length;
  return request;
}

}  // namespace pinrail::mpool

#endif
