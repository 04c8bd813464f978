// SPDX-License-Identifier: BSD-3-Clause
// Puts a new registration into the index, or leaves it to its caller alone.
//
// API context. A function whose name ends in _locked runs under the cache lock; before all others the caller holds no
// lock. The calling thread holds a reference of the registration.
#include <new>

#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {

// Indexes a new registration, unless it is not cached; it stays referenced. An indexed one of the same range is of
// memory that is gone: it dies. Without memory for the index the new registration is dead instead, and so is one whose
// memory was reported freed meanwhile (gpu_pool/X7). A peer's is refused then: NOT_FOUND. TEMP_OUT_OF_RESOURCE: an
// event may have ended the mapping.
Status Pool::publish(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  const bool cached = (state::load(reg) & state::kDead) == 0;
  Victims victims;
  Status status = success();
  {
    Guard guard(cache_->mutex);
    const bool lasts = is_current(reg);
    if (!lasts && request.block != nullptr) status = PINRAIL_ERR_NOT_FOUND;
    if (lasts && area_of(reg).events_before != events_) status = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    if (cached && lasts && status.ok()) {
      index_locked(thread, request, reg, &victims);
    } else if (cached) {
      leave_unindexed_locked(reg);
    }
  }
  close(thread, victims, PINRAIL_REASON_INVALIDATED);
  return status;
}

// The registration serves its caller alone, and its last drop closes it.
void Pool::leave_unindexed_locked(pinrail_registration_t* reg) {
  const uint64_t counting = state::load(reg) & state::kPerThread;
  state::set(reg, counting | state::kDead);  // the caller keeps its reference
  if (counting != 0) ++held_dead_;
}

void Pool::index_locked(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg,
                        Victims* victims) {
  const uint64_t counting = state::load(reg) & state::kPerThread;
  try {
    table_.reserve_one();
    allocations_.reserve(table_.count() + 1);
    allocations_.set_owner(request.key.peer->owner, &request.key.peer->number);
    cache_->lru_list.reserve(cache_->lru_list.size() + 1);
  } catch (const std::bad_alloc&) {
    leave_unindexed_locked(reg);
    return;
  }
  pinrail_registration_t* mismatch = nullptr;
  match_locked(request.key, &mismatch);
  uint64_t word = 0;
  if (mismatch != nullptr && kill_and_unindex_locked(mismatch, &word)) {
    if ((word & state::kPerThread) != 0) {
      claim_dead_locked(thread, &mismatch, 1, victims);
    } else if (state::references(word) == 0) {
      add_victim_locked(mismatch, victims);
    }
  }
  touch(reg, timestamps::advance(thread));
  if (counting != 0) cache_->lru_list.insert(reg, last_use(reg));
  state::set(reg, counting | state::kIndexed);
  table_.insert(hash_of(request.key), reg);
  show_locked(reg);
}

}  // namespace pinrail::gpu_pool
