// SPDX-License-Identifier: BSD-3-Clause
// Register (a hit, or a miss -> registrar -> index) and deregister.
//
// API context. The caller of a function whose name ends in _locked holds the cache lock; that of any other one holds no
// lock. The calling thread may hold references, and takes one more by each successful call.
#include "framework/mpool/gpu_pool.h"
#include "framework/registrar/request.h"

namespace pinrail::gpu_pool {

static bool same_memory(const Key& a, const Key& b) {
  return a.peer == b.peer && a.base == b.base && a.length == b.length && a.id == b.id;
}

// Returns the registration that answers the key, or NULL. mismatch_out receives one of the same range but of other
// memory, which is stale.
pinrail_registration_t* Pool::match_locked(const Key& key, pinrail_registration_t** mismatch_out) const {
  const auto [first, last] = table_.equal_range(hash_of(key));
  for (auto at = first; at != last; ++at) {
    pinrail_registration_t* const reg = at->second;
    const Identity& identity = identity_of(reg);
    if (!is_same_range(identity, key) || !is_indexed(reg)) continue;
    if (is_same_memory(identity, key) && is_current(reg)) return reg;
    *mismatch_out = reg;
  }
  return nullptr;
}

// Follows the hints. A registration of another pool may be in the memory to which one leads; the pool of an indexed one
// does not change as long as its word has this generation.
bool Pool::find_hint(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out) {
  return hints_.find(chunks_, hint_hash_of(key), [&](pinrail_registration_t* reg, uint64_t word) {
    if (__atomic_load_n(&reg->pool, __ATOMIC_RELAXED) != config_.pool || !take(reg, word)) return false;
    if (!is_same_memory(identity_of(reg), key) || !is_current(reg)) {
      Status(deregister(thread, handle_of(reg))).ignore();  // ours, so that it succeeds
      return false;
    }
    count_hit(thread, reg);
    *reg_out = reg;
    return true;
  });
}

Status Pool::find(pinrail_thread_t* thread, const Key& key, pinrail_registration_t** reg_out) {
  if (find_hint(thread, key, reg_out)) return success();
  pinrail_registration_t* reg = nullptr;
  {
    Guard guard(cache_->mutex);
    pinrail_registration_t* mismatch = nullptr;
    reg = match_locked(key, &mismatch);
    if (reg == nullptr || !take(reg, state::load(reg))) return PINRAIL_ERR_NOT_FOUND;
  }
  count_hit(thread, reg);
  remember(reg);
  *reg_out = reg;
  return success();
}

// Finds the registration that is mapped at that range of this process. Visits all.
Status Pool::find_local(const pinrail_thread_t* thread, const Span& span, pinrail_registration_t** reg_out) {
  pinrail_registration_t* found = nullptr;
  Guard guard(cache_->mutex);
  for_each_locked([&](pinrail_registration_t* reg) {
    const uint64_t word = state::load(reg);
    if (found != nullptr || (word & state::kIndexed) == 0) return;  // a pending one has no base yet
    if (span_of(reg).contains(span) && is_current(reg) && take(reg, word)) found = reg;
  });
  if (found == nullptr) return PINRAIL_ERR_NOT_FOUND;
  host_->pools->count_hit(config_.pool, thread);
  *reg_out = found;
  return success();
}

// found: reg_out is referenced. announced: the caller must register, and `own` announces it to other threads. gone: the
// key names dead memory. Waits while another thread registers the same memory. stale_out: of memory that is gone, and
// idle: the caller gives it back.
Pool::LookupResult Pool::find_or_announce(pinrail_thread_t* thread, const Request& request, Pending* own,
                                          pinrail_registration_t** stale_out, pinrail_registration_t** reg_out) {
  Guard guard(cache_->mutex);
  for (;;) {
    pinrail_registration_t* mismatch = nullptr;
    pinrail_registration_t* reg = match_locked(request.key, &mismatch);
    if (reg != nullptr && take(reg, state::load(reg))) {
      *reg_out = reg;
      return LookupResult::found;
    }
    const Key& key = request.key;
    const bool is_dead = key.slot != nullptr && !slots::is_alive(key.slot, key.slot_word);
    if (is_dead || key.peer->has_ended()) return LookupResult::gone;
    Pending* other = pending_;
    while (other != nullptr && !same_memory(other->key, key)) other = other->next;
    if (other == nullptr || thread->in_registrar != 0) {
      if (mismatch != nullptr && retire(mismatch, state::load(mismatch))) *stale_out = mismatch;
      own->key = key;
      own->next = pending_;
      pending_ = own;
      return LookupResult::announced;
    }
    pending_ended_.wait(cache_->mutex);  // R5: another thread registers it; look again afterwards
  }
}

// Ends the announcement of find_or_announce() and wakes the threads that wait for it.
void Pool::withdraw(Pending* own) {
  Guard guard(cache_->mutex);
  Pending** at = &pending_;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  pending_ended_.notify_all();
}

Status Pool::acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if ((request.access_and_flags & PINRAIL_TRAITS_MASK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((request.flags() & PINRAIL_FLAG_CACHE_BYPASS) != 0) return open_and_publish(thread, request, false, reg_out);
  Pending own;
  pinrail_registration_t* stale = nullptr;
  switch (find_or_announce(thread, request, &own, &stale, reg_out)) {
    case LookupResult::found: count_hit(thread, *reg_out); return success();
    case LookupResult::gone: return PINRAIL_ERR_NOT_FOUND;
    case LookupResult::announced: break;
  }
  if (stale != nullptr) give_back_one(thread, stale, PINRAIL_REASON_INVALIDATED);
  // Closes what died of this peer first, because it may be in the way.
  if (request.key.peer->deaths != nullptr) sweep(thread, request.key.peer);
  const Status status = open_and_publish(thread, request, true, reg_out);
  withdraw(&own);
  return status;
}

// Opens and publishes; again, at most 3 times, if an event may have ended the mapping meanwhile (R13). NOT_FOUND: the
// memory was freed meanwhile.
Status Pool::open_and_publish(pinrail_thread_t* thread, const Request& request, bool cached,
                              pinrail_registration_t** reg_out) {
  constexpr int kTries = 4;
  Status status = success();
  for (int tries = 0; tries < kTries; ++tries) {
    pinrail_registration_t* reg = nullptr;
    status = open_new(thread, request, &reg);
    if (!status.ok()) return status;
    status = publish(thread, request, cached, reg);
    if (status.ok()) {
      *reg_out = reg;
      return status;
    }
    Status(deregister(thread, handle_of(reg))).ignore();  // ours, so that it succeeds
    if (!status.is(PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) return status;
    count_relaxed(&retries_);
  }
  return status;
}

// Creates and registers a new registration, which is still pending.
Status Pool::open_new(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  count_relaxed(&misses_);
  pinrail_registration_t* reg = nullptr;
  const Status status =
      host_->registrations->alloc(host_, tail_with_identity(limits_of_registrar_.tail_size), sizeof(Area), &reg);
  if (!status.ok()) return status;
  const Key& key = request.key;
  set_range(reg, Span::of(key.base, key.length), config_.pool, 0);
  reg->rights = PINRAIL_RIGHTS_MASK;
  reg->flags = request.flags();
  identity_of(reg) = key;
  identity_of(reg).slot = nullptr;
  area_of(reg).peer = key.peer;
  mark_own(reg);
  const Status opened = admit_and_open(thread, reg, [&] { return open_or_undo(thread, request, reg); });
  if (opened.ok()) *reg_out = reg;
  return opened;
}

// Links it to its peer, and calls before_open(), the registrar and after_open(); on an error undoes what was done, but
// for its place in the budget.
Status Pool::open_or_undo(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  link(reg);
  Status status = before_open(request, reg);
  if (status.ok()) status = open_on_device(thread, request, reg);
  if (status.ok()) {
    status = after_open(request, reg);
    if (!status.ok()) {
      Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_RELEASED)).ignore();
    }
  }
  if (!status.ok()) after_close(reg);
  return status;
}

// Calls the registrar; closes what may be in the way and repeats while a stale mapping is.
Status Pool::open_on_device(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  auto asked = device_request(reg, request.block != nullptr ? PINRAIL_KIND_REMOTE : PINRAIL_KIND_GPU);
  asked.handle = request.block;
  asked.handle_length = request.block != nullptr ? sizeof(*request.block) : 0;
  for (int stage = 0;; count_relaxed(&retries_)) {
    const Status status = call_registrar(thread, asked, reg, mpool::Room::made, [&] { return is_gone(request); });
    if (!status.is(PINRAIL_ERR_WOULD_BLOCK)) return status;
    if (clear_stale_mapping(thread, request, &stage) == StaleMapping::in_use) return status;
  }
}

// Indexes a new registration. An indexed one of the same range is of memory that is gone: it dies. The new one is dead
// instead if it is not cached, if there is no memory for the index, or if its memory was reported freed meanwhile
// (gpu_pool/X7); a peer's is refused then: NOT_FOUND. TEMP_OUT_OF_RESOURCE: an event may have ended the mapping. The
// caller has a reference in any case.
Status Pool::publish(pinrail_thread_t* thread, const Request& request, bool cached, pinrail_registration_t* reg) {
  pinrail_registration_t* stale = nullptr;
  Status status = success();
  bool is_in = false;
  {
    Guard guard(cache_->mutex);
    const bool lasts = is_current(reg);
    if (!lasts && request.block != nullptr) status = PINRAIL_ERR_NOT_FOUND;
    if (lasts && area_of(reg).events_before != events_) status = PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    is_in = cached && lasts && status.ok() && index_locked(request, reg, &stale);
    if (!is_in) state::publish(reg, state::kDead);
  }
  if (stale != nullptr) give_back_one(thread, stale, PINRAIL_REASON_INVALIDATED);
  if (is_in) remember(reg);
  return status;
}

// False: there is no memory for the index.
bool Pool::index_locked(const Request& request, pinrail_registration_t* reg, pinrail_registration_t** stale_out) {
  pinrail_registration_t* mismatch = nullptr;
  match_locked(request.key, &mismatch);
  const Status inserted = guarded([&] {
    assert_held(cache_->mutex, LockRank::cache);
    table_.emplace(hash_of(request.key), reg);
  });
  if (!inserted.ok()) return false;
  if (mismatch != nullptr) {
    if (kill(mismatch) == Killed::owned) *stale_out = mismatch;
    unindex_locked(mismatch);
  }
  const bool is_kept = settings_.leave_pinned && (reg->flags & PINRAIL_FLAG_PERSISTENT) == 0;
  area_of(reg).is_indexed = true;
  state::publish(reg, state::kIndexed | quick_ | (is_kept ? 0 : state::kTransient));
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
