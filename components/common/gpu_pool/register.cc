// SPDX-License-Identifier: BSD-3-Clause
// Register (a hit, or a miss -> registrar -> index) and deregister.
//
// API context. A function whose name ends in _locked runs under the cache lock; before all others the caller holds no
// lock. The calling thread may hold references, and takes one more by each successful call.
#include <utility>

#include "base/core/guarded.h"
#include "components/common/gpu_pool/match.h"
#include "framework/mpool/device_request.h"
#include "framework/mpool/messages.h"

namespace pinrail::gpu_pool {
namespace {

bool same_memory(const Key& a, const Key& b) {
  return a.peer == b.peer && a.base == b.base && a.length == b.length && a.id == b.id;
}

// The request as the registrar takes it.
pinrail_register_request_t request_for(const Request& request, const pinrail_registration_t* reg) {
  auto asked = mpool::device_request(reg, request.block != nullptr ? PINRAIL_KIND_REMOTE : PINRAIL_KIND_GPU);
  asked.handle = request.block;
  asked.handle_length = request.block != nullptr ? sizeof(*request.block) : 0;
  return asked;
}

}  // namespace

// Returns the registration that answers the key, or NULL. mismatch_out receives one of the same range but of other
// memory, which is stale.
pinrail_registration_t* Pool::match_locked(const Key& key, pinrail_registration_t** mismatch_out) const {
  return table_.find(hash_of(key), [&](pinrail_registration_t* reg) {
    const Identity& identity = identity_of(reg);
    if (!is_same_range(identity, key) || !is_indexed(reg)) return false;
    if (is_same_memory(identity, key) && is_current(reg)) return true;
    *mismatch_out = reg;
    return false;
  });
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
    hits_.add(thread);
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
  hits_.add(thread);
  remember(reg);
  *reg_out = reg;
  return success();
}

// Finds the registration that is mapped at that range of this process. Visits all.
Status Pool::find_local(const pinrail_thread_t* thread, uintptr_t base, size_t length,
                        pinrail_registration_t** reg_out) {
  const Span span = Span::of(base, length);
  Guard guard(cache_->mutex);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      const uint64_t word = state::load(reg);
      if ((word & state::kIndexed) == 0) continue;  // a pending one has no base yet
      if (!span_of(reg).contains(span) || !is_current(reg) || !take(reg, word)) continue;
      hits_.add(thread);
      *reg_out = reg;
      return success();
    }
  }
  return PINRAIL_ERR_NOT_FOUND;
}

// found: reg_out is referenced. announced: the caller must register, and `own` announces it to other threads. gone: the
// key names dead memory. Waits while another thread registers the same memory.
Pool::LookupResult Pool::find_or_announce(pinrail_thread_t* thread, const Request& request, Pending* own,
                                          Victims* victims, pinrail_registration_t** reg_out) {
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
      if (mismatch != nullptr && retire_locked(mismatch)) victims->add(mismatch);
      own->key = key;
      own->next = pending_;
      pending_ = own;
      return LookupResult::announced;
    }
    cache_->changed.wait(cache_->mutex);  // R5: another thread registers it; look again afterwards
  }
}

// Ends the announcement of find_or_announce() and wakes the threads that wait for it.
void Pool::withdraw(Pending* own) {
  Guard guard(cache_->mutex);
  Pending** at = &pending_;
  while (*at != own) at = &(*at)->next;
  *at = own->next;
  cache_->changed.notify_all();
}

// Returns a referenced registration, by a hit or a miss. NOT_FOUND: the memory is gone.
Status Pool::acquire(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  if ((request.access_and_flags & PINRAIL_TRAITS_MASK) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if ((request.flags() & PINRAIL_FLAG_CACHE_BYPASS) != 0) return open_and_publish(thread, request, false, reg_out);
  Pending own;
  Victims victims;
  switch (find_or_announce(thread, request, &own, &victims, reg_out)) {
    case LookupResult::found: hits_.add(thread); return success();
    case LookupResult::gone: return PINRAIL_ERR_NOT_FOUND;
    case LookupResult::announced: break;
  }
  close(thread, &victims, PINRAIL_REASON_INVALIDATED);
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
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  }
  return status;
}

// Creates and registers a new registration, which is still pending.
Status Pool::open_new(pinrail_thread_t* thread, const Request& request, pinrail_registration_t** reg_out) {
  misses_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  pinrail_registration_t* reg = nullptr;
  Status status =
      host_->registrations->alloc(host_, tail_with_identity(limits_of_registrar_.tail_size), sizeof(Area), &reg);
  if (!status.ok()) return status;
  const Key& key = request.key;
  set_range(reg, Span::of(key.base, key.length), config_.pool, 0);
  reg->rights = PINRAIL_RIGHTS_MASK;
  reg->flags = request.flags();
  identity_of(reg) = {key.start, key.base, key.length, key.id, key.segment, key.slot_word, nullptr, key.pid};
  area_of(reg).peer = key.peer;
  status = admit(thread, reg);
  if (!status.ok()) {
    host_->registrations->free(host_, reg);
    return status;
  }
  status = open_or_undo(thread, request, reg);
  if (!status.ok()) {
    {
      Guard guard(cache_->mutex);
      unlink_locked(reg);
    }
    host_->registrations->free(host_, reg);
    return status;
  }
  *reg_out = reg;
  return status;
}

// Calls before_open(), the registrar and after_open(); on an error undoes what was done.
Status Pool::open_or_undo(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  Status status = before_open(request, reg);
  if (!status.ok()) return status;
  status = open_on_device(thread, request, reg);
  if (status.ok()) {
    status = after_open(request, reg);
    if (!status.ok()) {
      Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, PINRAIL_REASON_RELEASED)).ignore();
    }
  }
  if (!status.ok()) after_close(reg);
  return status;
}

// Adds the registration to the budget and to its peer's list; evicts idle ones if a limit requires it (R8), but none if
// all that is idle would not be enough (R7). Where nothing is idle it looks once more, because another thread may have
// closed one since.
Status Pool::admit(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  bool is_possible = false;
  for (bool once_more = true;;) {
    {
      Guard guard(cache_->mutex);
      if (!cache_->budget.could_ever_hold(reg->length)) break;
      if (cache_->budget.has_room_for(reg->length)) {
        cache_->budget.add(reg->length);
        link_locked(reg);
        return success();
      }
      is_possible = is_possible || could_fit_locked(reg->length);
    }
    if (!is_possible) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
    if (!make_room(thread) && !std::exchange(once_more, false)) return PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
  }
  report_limit(reg);
  return PINRAIL_ERR_OUT_OF_RESOURCE;
}

// Calls the registrar; evicts and repeats while it is out of resources or a stale mapping is in the way. Where nothing
// is idle it asks once more: what another thread was closing when the driver refused may be closed by now. The status
// then depends on what was open during that last call.
Status Pool::open_on_device(pinrail_thread_t* thread, const Request& request, pinrail_registration_t* reg) {
  const pinrail_register_request_t asked = request_for(request, reg);
  int stage = 0;
  mpool::Usage before;
  for (bool once_more = true;; before = usage()) {
    const Status status = host_->pools->registrar_register(config_.registrar, thread, &asked, reg);
    if (!status.ok() && is_gone(request)) return PINRAIL_ERR_NOT_FOUND;
    if (status.is(PINRAIL_ERR_OUT_OF_RESOURCE)) {
      const bool was_alone = mpool::was_alone(before, usage());
      if (!make_room(thread) && !std::exchange(once_more, false)) {
        return was_alone ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
      }
    } else if (status.is(PINRAIL_ERR_WOULD_BLOCK)) {
      if (clear_stale_mapping(thread, request, &stage) == StaleMapping::in_use) return status;
    } else {
      return status;
    }
    retries_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  }
}

// Drops a reference.
pinrail_status_t Pool::deregister_entry(void* module, pinrail_thread_t* thread, pinrail_handle_t handle) {
  Pool* const pool = static_cast<Pool*>(module);
  switch (drop(handle)) {
    case Drop::stale: return PINRAIL_ERR_BAD_PARAM;
    case Drop::done: break;
    case Drop::idle: pool->note_release(handle); break;
    case Drop::last: pool->close_released(thread, handle.reg); break;
  }
  return PINRAIL_SUCCESS;
}

// The last reference was dropped: moves the registration to the end of the LRU list. It may be gone already.
void Pool::note_release(pinrail_handle_t handle) {
  Guard guard(cache_->mutex);
  const uint64_t word = state::load(handle.reg);
  if ((word & state::kIndexed) == 0 || state::generation(word) != handle.generation) return;
  cache_->lru_list.remove(handle.reg);
  cache_->lru_list.push_newest(handle.reg);
}

// Closes a registration that the calling thread owns by its drop.
void Pool::close_released(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  {
    Guard guard(cache_->mutex);
    unindex_locked(reg);
    ++cache_->closing;
  }
  close_owned(thread, reg, PINRAIL_REASON_RELEASED);
}

void Pool::report_limit(const pinrail_registration_t* reg) {
  guarded([&] {
    const std::string parameter = settings_.prefix + "size_limit";
    mpool::report_never_fits(host_, reg->length,
                             {parameter.c_str(), cache_->limits().bytes, settings_.limits.explicit_bytes});
    return success();
  });
}

}  // namespace pinrail::gpu_pool
