// SPDX-License-Identifier: BSD-3-Clause
// What a registration leaves before the registrar forgets it, and what an insert has displaced. API context. The caller
// holds no lock, and may hold references.
#include "components/mpool/grdma/grdma_gpu.h"

namespace pinrail::grdma {

// The pool of GPU memory, or this one.
Pool* Pool::pool_of(const pinrail_registration_t* reg) {
  return gpu_ != nullptr && area_of(reg).owner == gpu_->ranges()->number ? gpu_->ranges() : this;
}

// INVALIDATED: the memory may be another's by now (R12).
pinrail_reason_t Pool::leave_index(pinrail_registration_t* reg, pinrail_reason_t reason) {
  Status(rcache_.ops.remove(rcache_.module, reg)).ignore();  // NOT_FOUND: a find saw that it is dead and removed it
  if (reason == PINRAIL_REASON_EVICTED) reasons_.ended_hook(span_of(reg), {});
  outside_.unlink(reg);
  return is_invalidated(reg) ? PINRAIL_REASON_INVALIDATED : reason;
}

void Pool::give_back_displaced(pinrail_thread_t* thread, const Displaced& displaced) {
  char* const* const chunks = shortcut::of(host_)->chunks;
  for (uint32_t next = displaced.first; next != 0;) {
    pinrail_registration_t* const reg = arena::numbered(chunks, next);
    next = __atomic_load_n(&reg->used, __ATOMIC_RELAXED);
    give_back_one(thread, reg, PINRAIL_REASON_RELEASED);
  }
}

}  // namespace pinrail::grdma
