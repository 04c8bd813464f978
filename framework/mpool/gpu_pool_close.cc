// SPDX-License-Identifier: BSD-3-Clause
// The way out: what died, what its driver or owner says is gone, and what is in the way of a new mapping. What is
// referenced is never closed (R9). API context. A function whose name ends in _locked runs under the cache lock; before
// all others the caller holds no lock, because they call the registrar. The calling thread may hold references of other
// registrations.
#include <algorithm>

#include "base/sync/lock.h"
#include "framework/mpool/gpu_pool.h"

namespace pinrail::gpu_pool {
namespace {

Span remote_span(const pinrail_registration_t* reg) { return Span::of(identity_of(reg).base, reg->length); }

constexpr size_t kSmall = 4;  // bytes: a length that finds any registration at that base

bool is_stale(const pinrail_registration_t* reg) { return !is_current(reg); }

}  // namespace

// With an interval: deaths in other processes do not wake the gc thread. Not for registrars of mode CALLER.
Status Pool::join() {
  const Status joined = join_cache(settings_.limits);
  if (!joined.ok() || settings_.gc_interval_ms == 0 || is_caller_only) return joined;
  return join_gc_thread(progress_entry, static_cast<uint32_t>(settings_.gc_interval_ms));
}

Pool::~Pool() {
  for (Peer *peer = peers_.load(), *next; peer != nullptr; peer = next) {
    next = peer->next;
    delete peer;
  }
  hints_.free_tables();
}

// progress() as the gc thread calls it. Nonzero: call it again soon.
int Pool::progress_entry(void* pool, pinrail_thread_t* thread) {
  const Status done = guarded([&] { return static_cast<Pool*>(pool)->progress(thread); });
  return done.ok() ? 0 : 1;
}

// Adds a peer to the list, which readers walk without a lock. Takes the cache lock.
void Pool::add_peer(Peer* peer) {
  peer->pool = this;
  Guard guard(cache_->mutex);
  peer->next = peers_.load();
  peers_.store(peer, std::memory_order_release);  // release: pairs with first_peer()
}

Status Pool::progress(pinrail_thread_t* thread) {
  before_progress(thread);
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) sweep(thread, peer);
  return success();
}

// Adds the registration to its peer's list.
void Pool::link(pinrail_registration_t* reg) {
  Guard guard(cache_->mutex);
  Area& area = area_of(reg);
  area.next = area.peer->regs;
  if (area.next != nullptr) area_of(area.next).previous = reg;
  area.peer->regs = reg;
  area.events_before = events_;
}

// Ends its slot, and removes it from its peer's list.
void Pool::after_close(pinrail_registration_t* reg) {
  end_slot(reg);
  Guard guard(cache_->mutex);
  const Area& area = area_of(reg);
  if (area.next != nullptr) area_of(area.next).previous = area.previous;
  (area.previous != nullptr ? area_of(area.previous).next : area.peer->regs) = area.next;
}

// Takes the registration out of the table. Does nothing if it is not in.
void Pool::unindex_locked(pinrail_registration_t* reg) {
  if (!area_of(reg).is_indexed) return;
  area_of(reg).is_indexed = false;
  const auto [first, last] = table_.equal_range(hash_of(identity_of(reg)));
  table_.erase(std::find_if(first, last, [reg](const auto& each) { return each.second == reg; }));
}

// The reason becomes INVALIDATED if the memory is gone (R12).
pinrail_reason_t Pool::leave_index(pinrail_registration_t* reg, pinrail_reason_t reason) {
  {
    Guard guard(cache_->mutex);
    unindex_locked(reg);
  }
  return is_stale(reg) ? PINRAIL_REASON_INVALIDATED : reason;
}

// Closes the peer's registrations that take(reg) makes the calling thread's; returns how many. take() runs under the
// cache lock.
template <typename Take>
size_t Pool::close_where(pinrail_thread_t* thread, const Peer* peer, pinrail_reason_t reason, Take&& take) {
  for (size_t closed = 0;;) {
    pinrail_registration_t* batch[kBatch];
    size_t count = 0;
    {
      Guard guard(cache_->mutex);
      for (pinrail_registration_t* reg = peer->regs; reg != nullptr && count < kBatch; reg = area_of(reg).next) {
        if (take(reg)) batch[count++] = reg;
      }
      cache_->begin_release(count);
    }
    if (count != 0) give_back(thread, batch, count, reason);
    closed += count;
    if (count < kBatch) return closed;
  }
}

// Closes the exporter's idle registrations that overlap the range; returns how many. held_out becomes true if an
// overlapping one is referenced.
size_t Pool::close_idle_overlapping(pinrail_thread_t* thread, const Peer& peer, const Span& span, bool* held_out) {
  size_t closed = 0;
  for (const Peer* each = peers_.load(); each != nullptr; each = each->next) {
    closed += close_where(thread, each, PINRAIL_REASON_EVICTED, [&](pinrail_registration_t* reg) {
      if (!each->is_same_process(peer) || !remote_span(reg).overlaps(span)) return false;
      if (!retire(reg, state::load(reg))) {
        if (references_of(reg) != 0) *held_out = true;
        return false;
      }
      mpool::count_one_hook(&evictions);
      return true;
    });
  }
  return closed;
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
    if (close_idle_overlapping(thread, *key.peer, Span::of(key.base, length), &held) != 0) return StaleMapping::cleared;
    if (held) return StaleMapping::in_use;
  }
  const auto is_of_exporter = [&](const pinrail_registration_t* reg) {
    const Peer& exporter = *area_of(reg).peer;
    return exporter.pool == this && exporter.is_same_process(*key.peer);
  };
  if (evict_one(thread, is_of_exporter) || wait_for_release(thread)) return StaleMapping::cleared;
  constexpr int kAskedOnceMore = 3;
  return std::exchange(*stage, kAskedOnceMore) == kAskedOnceMore ? StaleMapping::in_use : StaleMapping::cleared;
}

// Kills the peer's indexed registrations for which is(reg) is true, and closes the idle ones; returns how many it
// closed.
template <typename Is>
size_t Pool::kill_where(pinrail_thread_t* thread, const Peer* peer, Is&& is) {
  return close_where(thread, peer, PINRAIL_REASON_INVALIDATED, [&](pinrail_registration_t* reg) {
    assert_held(cache_->mutex, LockRank::cache);
    if (!is_indexed(reg) || !is(reg)) return false;
    const Killed killed = kill(reg);
    if (killed == Killed::no) return false;
    unindex_locked(reg);
    count_relaxed(&invalidations_);
    return killed == Killed::owned;
  });
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
void Pool::kill_local(pinrail_thread_t* thread, const Span& span) {
  {
    Guard guard(cache_->mutex);
    ++events_;
  }
  for (Peer* peer = peers_.load(); peer != nullptr; peer = peer->next) {
    kill_where(thread, peer, [&](const pinrail_registration_t* reg) { return span_of(reg).overlaps(span); });
  }
}

size_t Pool::count_indexed() const {
  Guard guard(cache_->mutex);
  return table_.size();
}

// gpu_pool/X2, as far as the cache lock keeps it still.
const char* Pool::check() {
  const char* broken = Engine::check();
  size_t indexed = 0;
  Guard guard(cache_->mutex);
  for_each_locked([&](const pinrail_registration_t* reg) {
    if (area_of(reg).is_indexed) ++indexed;
    if (is_indexed(reg) && !area_of(reg).is_indexed) broken = "the table lacks what is indexed";
  });
  return indexed == table_.size() ? broken : "the table has others than the indexed ones";
}

}  // namespace pinrail::gpu_pool
