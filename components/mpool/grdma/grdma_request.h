// SPDX-License-Identifier: BSD-3-Clause
// grdma_request.h - what a caller asked a pool for.
//
// Threads  a request is its call's.
#ifndef PINRAIL_COMPONENTS_MPOOL_GRDMA_REQUEST_H
#define PINRAIL_COMPONENTS_MPOOL_GRDMA_REQUEST_H

#include <pinrail/component_mpool.h>

#include "base/core/span.h"

namespace pinrail::grdma {

// The options of a request, for the start of its rounded range.
struct Extra {
  int fd;  // -1: no dmabuf
  uint64_t fd_offset;
  uint64_t iova;  // 0: the address itself
  const void* argument;
  uint64_t user_value;
};

struct Request {
  Span span;                  // rounded out to the registrar's granularity
  uint64_t access_and_flags;  // as in the C table
  uint64_t buffer_id = 0;     // of GPU memory
  const Extra* extra = nullptr;

  uint32_t access() const { return static_cast<uint32_t>(access_and_flags); }
  uint32_t rights() const { return access() & PINRAIL_RIGHTS_MASK; }
  uint32_t traits() const { return access() & PINRAIL_TRAITS_MASK; }
  uint32_t flags() const { return static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT); }
  bool has(uint32_t flag) const { return (flags() & flag) != 0; }
};

}  // namespace pinrail::grdma

#endif
