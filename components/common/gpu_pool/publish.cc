// SPDX-License-Identifier: BSD-3-Clause
// Puts a new registration into the index, or leaves it to its caller alone.
//
// API context. A function whose name ends in _locked runs under the cache lock; before all others the caller holds no
// lock. A published registration has the caller's reference.
#include <new>

#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {

// Indexes a new registration. An indexed one of the same range is of memory that is gone: it dies. The new one is dead
// instead if it is not cached, if there is no memory for the index, or if its memory was reported freed meanwhile
// (gpu_pool/X7); a peer's is refused then: NOT_FOUND. TEMP_OUT_OF_RESOURCE: an event may have ended the mapping. The
// caller has a reference in any case.
Status Pool::publish(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t* reg) {
  Victims victims;
  Status status = success();
  bool is_in = false;
  {
    Guard guard(cache_->mutex);
    const bool lasts = is_current(reg);
    if (!lasts && request.block != nullptr) status = PINRAIL_ERR_NOT_FOUND;
    if (lasts && area_of(reg).events_before != events_) status = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    is_in = cached && lasts && status.ok() && index_locked(request, reg, &victims);
    if (!is_in) state::publish(reg, state::kDead);
  }
  close(thread, &victims, PINRAIL_REASON_INVALIDATED);
  if (is_in) remember(reg);
  return status;
}

// False: there is no memory for the index.
bool Pool::index_locked(const Request& request, pinrail_registration_t* reg, Victims* victims) {
  try {
    table_.reserve_one();
  } catch (const std::bad_alloc&) {
    return false;
  }
  pinrail_registration_t* mismatch = nullptr;
  match_locked(request.key, &mismatch);
  if (mismatch != nullptr) kill_locked(mismatch, victims);
  table_.insert(hash_of(request.key), reg);
  area_of(reg).is_indexed = true;
  state::publish(reg, state::kIndexed | quick_ | (is_kept(reg->flags) ? state::kNotify : state::kTransient));
  return true;
}

// Enters a registration, which the calling thread holds, into the table of hints.
void Pool::remember(const pinrail_registration_t* reg) {
  const auto has_hash = [this](const pinrail_registration_t* other, uint64_t) {
    return __atomic_load_n(&other->pool, __ATOMIC_RELAXED) == config_.pool;
  };
  hints_.remember(chunks_, reg, hint_hash_of(identity_of(reg)), has_hash);
}

}  // namespace pinrail::gpu_pool
