// SPDX-License-Identifier: BSD-3-Clause
// The chunk iterator: divides a large buffer into pieces, so that transfers pipeline and little memory is pinned. API
// context; takes no lock and no reference. pinrail/pinrail.h documents the public functions.
#include <algorithm>

#include "base/core/span.h"
#include "framework/front/front.h"
#include "framework/front/front_fork.h"
#include "framework/front/refuse.h"

pinrail_status_t pinrail_chunks_begin(pinrail_mpool_t* pool, void* addr, size_t length, pinrail_chunks_t* chunks_out) {
  const auto base = reinterpret_cast<uintptr_t>(addr);
  const char* const fault = pool == nullptr || chunks_out == nullptr ? "pool or chunks_out is NULL"
                                                                     : pinrail::front::fault_of_range(addr, length);
  if (fault != nullptr) return pinrail::front::refuse("pinrail_chunks_begin", fault);
  pinrail::front::handle_fork();
  *chunks_out = {base, base + length, pool->ops->max_reg_size(pool->module)};
  return PINRAIL_SUCCESS;
}

pinrail_status_t pinrail_chunks_next(pinrail_chunks_t* chunks, void** addr_out, size_t* length_out) {
  if (chunks == nullptr || addr_out == nullptr || length_out == nullptr) {
    return pinrail::front::refuse("pinrail_chunks_next", "chunks, addr_out or length_out is NULL");
  }
  if (chunks->next >= chunks->end) return PINRAIL_ERR_NOT_FOUND;
  // Cut at multiples of the step, so that overlapping buffers share pieces.
  const size_t to_cut = chunks->step - chunks->next % chunks->step;
  const size_t length = std::min(to_cut, static_cast<size_t>(chunks->end - chunks->next));
  *addr_out = reinterpret_cast<void*>(chunks->next);  // NOLINT(performance-no-int-to-ptr): as the caller gave it
  *length_out = length;
  chunks->next += length;
  return PINRAIL_SUCCESS;
}
