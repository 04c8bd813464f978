// SPDX-License-Identifier: BSD-3-Clause
// Eviction, for room and for stale mappings: closes idle registrations, the least recently used first. A referenced
// one is never closed (R9).
//
// API context, inside calls of a pool. A function whose name ends in _locked runs under the cache lock
// (cache_->mutex); before all others the caller holds no lock, because they call the registrar. The calling thread may
// hold references of other registrations.
#include <chrono>
#include <utility>

#include "base/sync/assert_held.h"
#include "components/common/gpu_pool/match.h"

namespace pinrail::gpu_pool {
namespace {

Span remote_span(const pinrail_registration_t* reg) { return Span::of(identity_of(reg).base, reg->length); }

constexpr size_t kSmall = 4;  // bytes: a length that finds any registration at that base

bool is_stale(const pinrail_registration_t* reg) { return !is_current(reg); }

}  // namespace

// Adds the registration to its peer's list.
void Pool::link_locked(pinrail_registration_t* reg) {
  Area& area = area_of(reg);
  area.next = area.peer->regs;
  if (area.next != nullptr) area_of(area.next).previous = reg;
  area.peer->regs = reg;
  area.events_before = events_;
  ++linked_;
}

// Removes the registration from its peer's list and from the budget, after the registrar has forgotten it.
void Pool::unlink_locked(pinrail_registration_t* reg) {
  Area& area = area_of(reg);
  if (area.next != nullptr) area_of(area.next).previous = area.previous;
  (area.previous != nullptr ? area_of(area.previous).next : area.peer->regs) = area.next;
  --linked_;
  cache_->budget.remove(reg->length);
  cache_->changed.notify_all();
}

// Takes the registration out of the index and the LRU list. Does nothing if it is not in.
void Pool::unindex_locked(pinrail_registration_t* reg) {
  if (!area_of(reg).is_indexed) return;
  area_of(reg).is_indexed = false;
  table_.remove(hash_of(identity_of(reg)), reg);
  cache_->lru_list.remove(reg);
}

// Retires an indexed registration if it is idle: the caller closes it. False: it is referenced or not indexed.
bool Pool::retire_locked(pinrail_registration_t* reg) {
  if (!retire(reg, state::load(reg))) return false;
  unindex_locked(reg);
  ++cache_->closing;
  return true;
}

// Kills an indexed registration, referenced or not; a victim is what is owned then. False: it was not indexed.
bool Pool::kill_locked(pinrail_registration_t* reg, Victims* victims) {
  const Killed killed = kill(reg);
  if (killed == Killed::no) return false;
  unindex_locked(reg);
  if (killed == Killed::owned) {
    ++cache_->closing;
    victims->add(reg);
  }
  return true;
}

// Calls visit(registration) for each idle one in the LRU list whose registrar may be called here, the oldest first,
// until it returns true; returns that one, or NULL. What is referenced leaves the list (gpu_cache/B2).
template <typename Visit>
pinrail_registration_t* Pool::find_idle_locked(Visit&& visit) {
  for (pinrail_registration_t *reg = cache_->lru_list.oldest(), *newer; reg != nullptr; reg = newer) {
    newer = area_of(reg).newer;
    if (references_of(reg) != 0) {
      cache_->lru_list.remove(reg);
    } else if (!is_out_of_reach_locked(reg) && visit(reg)) {
      return reg;
    }
  }
  return nullptr;
}

// Retires the least recently used idle registration of the cache; NULL: none is idle.
pinrail_registration_t* Pool::retire_oldest_locked() {
  return find_idle_locked([](pinrail_registration_t* reg) {
    Pool* const owner = area_of(reg).peer->pool;
    assert_held(owner->cache_->mutex, LockRank::cache);  // all pools of a cache share it
    return owner->retire_locked(reg);
  });
}

// R7: whether the budget would hold so many bytes if all that is idle were evicted. What other threads are closing
// counts as enough.
bool Pool::could_fit_locked(uint64_t bytes) {
  const uint64_t wanted = cache_->budget.missing_bytes(bytes), wanted_count = cache_->budget.missing_count();
  if (cache_->closing != 0 || cache_->budget.any_one_suffices(bytes)) return true;
  uint64_t idle = 0, idle_count = 0;
  return find_idle_locked([&](const pinrail_registration_t* reg) {
           idle += reg->length;
           ++idle_count;
           return idle >= wanted && idle_count >= wanted_count;
         }) != nullptr;
}

// Whether the registrar may only be called inside calls of another pool.
bool Pool::is_out_of_reach_locked(const pinrail_registration_t* reg) const {
  const Pool* const owner = area_of(reg).peer->pool;
  return owner != this && owner->limits_of_registrar_.thread_mode == PINRAIL_THREAD_CALLER;
}

// Closes the least recently used idle registration of the cache. False: none is idle.
bool Pool::evict_oldest(pinrail_thread_t* thread) {
  pinrail_registration_t* victim;
  {
    Guard guard(cache_->mutex);
    victim = retire_oldest_locked();
  }
  if (victim == nullptr) return false;
  Pool* owner = area_of(victim).peer->pool;
  owner->evictions_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  owner->close_owned(thread, victim, PINRAIL_REASON_EVICTED);
  return true;
}

// Waits, at most 1 ms, while another thread closes a registration: afterwards there may be room. False: no thread
// closes one, or the caller is inside a registrar call and would wait for itself.
bool Pool::wait_for_closing(const pinrail_thread_t* thread) {
  if (thread->in_registrar != 0) return false;
  Guard guard(cache_->mutex);
  if (cache_->closing == 0) return false;
  cache_->changed.wait_for(cache_->mutex, std::chrono::microseconds(1000));
  return true;
}

// Tries to make room, once. True: the caller should try its request again. False: nothing is idle.
bool Pool::make_room(pinrail_thread_t* thread) {
  if (!evict_oldest(thread)) return wait_for_closing(thread);
  while (settings_.empty_cache && evict_oldest(thread)) {
  }
  return true;
}

mpool::Usage Pool::usage() const {
  Guard guard(cache_->mutex);
  return cache_->budget.usage();
}

// Closes the exporter's idle registrations that overlap the range; returns how many. held_out becomes true if an
// overlapping one is referenced.
size_t Pool::close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, uintptr_t base, size_t length,
                                    bool* held_out) {
  const Span span = Span::of(base, length);
  Victims victims;
  {
    Guard guard(cache_->mutex);
    for (Peer* each = peers_.load(); each != nullptr; each = each->next) {
      if (!each->is_same_process(peer)) continue;
      for (pinrail_registration_t* reg = each->regs; reg != nullptr; reg = area_of(reg).next) {
        if (!remote_span(reg).overlaps(span)) continue;
        if (retire_locked(reg)) {
          victims.add(reg);
        } else if (references_of(reg) != 0) {
          *held_out = true;
        }
      }
    }
  }
  evictions_.fetch_add(victims.count(), std::memory_order_relaxed);  // relaxed: a statistic
  close(thread, &victims, PINRAIL_REASON_EVICTED);
  return victims.count();
}

// Closes the exporter's least recently used idle registration. False: none is idle.
bool Pool::close_oldest_of(pinrail_thread_t* thread, const Peer& peer) {
  pinrail_registration_t* oldest = nullptr;
  {
    Guard guard(cache_->mutex);
    oldest = find_idle_locked([&](pinrail_registration_t* reg) {
      assert_held(cache_->mutex, LockRank::cache);
      const Peer& exporter = *area_of(reg).peer;
      return exporter.pool == this && exporter.is_same_process(peer) && retire_locked(reg);
    });
  }
  if (oldest == nullptr) return false;
  evictions_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
  close_owned(thread, oldest, PINRAIL_REASON_EVICTED);
  return true;
}

// The driver reports that a stale mapping is in the way. Each call closes something, and the caller then asks the
// driver again: first closes what exporters left that have ended, because another process may have the pid of a dead
// one; then what is idle at that base, of any length; then what overlaps; then the exporter's other idle registrations,
// one per call. Where nothing is left the driver is asked once more: what another thread was closing when the driver
// refused may be closed by now. in_use: nothing could be closed, or what overlaps is referenced.
Pool::StaleMapping Pool::clear_stale_mapping(pinrail_thread_t* thread, const Request& request, int* stage) {
  if (request.block == nullptr) return StaleMapping::in_use;
  const Key& key = request.key;
  if (*stage == 0 && close_ended_peers(thread, key.peer) != 0) return StaleMapping::cleared;
  bool held = false;
  for (; *stage < 2;) {
    const size_t length = *stage == 0 ? kSmall : key.length;
    *stage += 1;
    if (close_idle_overlapping(thread, *key.peer, key.base, length, &held) != 0) return StaleMapping::cleared;
    if (held) return StaleMapping::in_use;
  }
  if (close_oldest_of(thread, *key.peer) || wait_for_closing(thread)) return StaleMapping::cleared;
  constexpr int kAskedOnceMore = 3;
  return std::exchange(*stage, kAskedOnceMore) == kAskedOnceMore ? StaleMapping::in_use : StaleMapping::cleared;
}

// Deregisters by the registrar, or (Device::restarted) only abandons. The reason becomes INVALIDATED if the memory is
// gone.
void Pool::deregister_from_device(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason,
                                  Device device) {
  if (is_stale(reg)) reason = PINRAIL_REASON_INVALIDATED;  // R12
  if (device == Device::restarted) {
    host_->pools->registrar_abandon(config_.registrar, thread, reg, reason);
    return;
  }
  Status(host_->pools->registrar_deregister(config_.registrar, thread, reg, reason))
      .ignore();  // the framework reports an error
}

// Closes a registration that this thread owns, and frees its memory.
void Pool::close_owned(pinrail_thread_t* thread, pinrail_registration_t* reg, pinrail_reason_t reason) {
  const pinrail_host_t* const host = host_;  // after unlink_locked() another thread may destroy the pool
  deregister_from_device(thread, reg, reason, Device::registered);
  after_close(reg);
  {
    Guard guard(cache_->mutex);
    --cache_->closing;
    unlink_locked(reg);
  }
  host->registrations->free(host, reg);
}

void Pool::close(pinrail_thread_t* thread, Victims* victims, pinrail_reason_t reason) {
  while (pinrail_registration_t* reg = victims->take()) close_owned(thread, reg, reason);
}

// Closes the least recently used idle registration of the cache; NOT_FOUND: none is idle.
Status Pool::evict(pinrail_thread_t* thread) { return evict_oldest(thread) ? PINRAIL_SUCCESS : PINRAIL_ERR_NOT_FOUND; }

// Kills the peer's indexed registrations for which is(reg) is true, and closes the idle ones; returns how many it
// closed.
template <typename Is>
size_t Pool::kill_where(pinrail_thread_t* thread, Peer* peer, Is&& is) {
  Victims victims;
  {
    Guard guard(cache_->mutex);
    for (pinrail_registration_t* reg = peer->regs; reg != nullptr; reg = area_of(reg).next) {
      if (!is_indexed(reg) || !is(reg)) continue;
      if (kill_locked(reg, &victims)) invalidations_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a statistic
    }
  }
  close(thread, &victims, PINRAIL_REASON_INVALIDATED);
  return victims.count();
}

// Kills and closes the peer's stale registrations. Returns how many it closed. Does nothing if no slot of the peer has
// died since the last call.
size_t Pool::sweep(pinrail_thread_t* thread, Peer* peer) {
  {
    Guard guard(cache_->mutex);
    if (peer->deaths == nullptr) return 0;
    const uint64_t deaths = peer->deaths->load();  // before the slots are read: a later death is seen next time
    if (deaths == peer->deaths_seen) return 0;
    peer->deaths_seen = deaths;
  }
  return kill_where(thread, peer, is_stale);
}

// Kills and closes all registrations of the peer while it serves that owner. Returns how many it closed.
size_t Pool::close_all_of(pinrail_thread_t* thread, Peer* peer, const Owner& owner) {
  return kill_where(thread, peer, [&](const pinrail_registration_t*) { return peer->owner == owner; });
}

// Kills what overlaps this registration in its owner's addresses and has another id.
void Pool::kill_overlapping(pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const uint64_t id = identity_of(reg).id;
  const Span span = remote_span(reg);
  kill_where(thread, area_of(reg).peer, [&](const pinrail_registration_t* other) {
    return identity_of(other).id != id && remote_span(other).overlaps(span);
  });
}

// Kills all registrations mapped in that range of this process. What is pending is told by events_ (gpu_pool/X7).
void Pool::kill_local(pinrail_thread_t* thread, uintptr_t base, size_t length) {
  const Span span = Span::of(base, length);
  {
    Guard guard(cache_->mutex);
    ++events_;
  }
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    kill_where(thread, peer, [&](const pinrail_registration_t* reg) { return span_of(reg).overlaps(span); });
  }
}

}  // namespace pinrail::gpu_pool
