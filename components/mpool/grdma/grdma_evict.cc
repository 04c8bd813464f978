// SPDX-License-Identifier: BSD-3-Clause
// Makes room: the least recently used idle registration of the cache goes.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

bool Pool::evict_one(pinrail_thread_t* thread) {
  Pool* owner;
  pinrail_registration_t* reg = cache_->claim_victim(this, &owner);
  if (reg == nullptr) return false;
  // NOT_FOUND: a find saw it dead and removed it, or an event did.
  Status(owner->rcache_.ops->remove(owner->rcache_.module, reg)).ignore();
  owner->evictions_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a figure
  owner->give_back(thread, reg, PINRAIL_REASON_EVICTED);
  return true;
}

Status Pool::evict(pinrail_thread_t* thread) {
  drain_own(thread);
  return evict_one(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND;
}

}  // namespace pinrail::grdma
