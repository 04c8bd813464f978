// SPDX-License-Identifier: BSD-3-Clause
// The budget and the order of eviction of one cache_name. API context. Functions whose names end in _locked run under
// the cache lock (`mutex`); the others take it, and their caller holds no lock of the rank `cache` or above. No
// registrar is called here. The calling thread may hold references.
#include "components/mpool/grdma/grdma_cache.h"

#include <algorithm>
#include <new>
#include <utility>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

Status Cache::add_pool(Pool* pool, uint16_t* number_out) {
  Guard guard(mutex);
  auto at = std::find(pools_.begin(), pools_.end(), nullptr);
  if (at == pools_.end()) {
    if (pools_.size() > UINT16_MAX) return PINRAIL_ERR_OUT_OF_RESOURCE;
    try {
      at = pools_.insert(at, nullptr);
    } catch (const std::bad_alloc&) {
      return PINRAIL_ERR_OUT_OF_RESOURCE;
    }
  }
  *at = pool;
  *number_out = static_cast<uint16_t>(at - pools_.begin());
  return success();
}

void Cache::remove_pool(uint16_t number) {
  Guard guard(mutex);
  pools_[number] = nullptr;
}

// A call into one pool reaches others, unless these are being destroyed, or their registrars may only be called inside
// calls into them.
bool Cache::may_evict_locked(const Pool* asker, const pinrail_registration_t* reg) const {
  const Pool* const owner = owner_of_locked(reg);
  return owner == asker || owner->may_be_visited();
}

// R7: whether evicting everything that seems idle would make room.
bool Cache::could_fit_locked(const Pool* asker, uint64_t bytes) {
  const uint64_t wanted = budget_.missing_bytes(bytes), wanted_count = budget_.missing_count();
  uint64_t idle = 0, idle_count = 0;
  if (registrations_.active_bytes() < wanted || registrations_.active() < wanted_count) return false;
  return registrations_.visit_idle([&](const pinrail_registration_t* reg) {
    assert_held();
    if (!may_evict_locked(asker, reg)) return false;
    idle += reg->length;
    ++idle_count;
    return idle >= wanted && idle_count >= wanted_count;
  });
}

Victim Cache::retire_next_locked(Pool* asker) {
  pinrail_registration_t* const reg = registrations_.retire_next([&](const pinrail_registration_t* each) {
    assert_held();
    return may_evict_locked(asker, each);
  });
  if (reg == nullptr) return {};
  Pool* const owner = owner_of_locked(reg);
  Pool::count_one_hook(&owner->evictions_);
  if (owner != asker) owner->begin_visit();
  return {reg, owner};
}

Victim Cache::retire_next(Pool* asker) {
  Guard guard(mutex);
  const Victim victim = retire_next_locked(asker);
  if (victim.reg != nullptr) begin_release(1);
  return victim;
}

void Cache::add_locked(pinrail_registration_t* reg) {
  budget_.add(reg->length);
  registrations_.add(reg);
}

// Whether a drain could make room instead of an eviction.
bool Cache::is_any_dead_locked(const Pool* asker) const {
  return std::any_of(pools_.begin(), pools_.end(), [&](const Pool* pool) {
    return pool != nullptr && (pool == asker || pool->may_be_visited()) && pool->has_dead();
  });
}

// One hold of the lock from the question for room until the registration has its place.
Admission Cache::admit(Pool* asker, pinrail_registration_t* reg, Tries* tries, Victim* victim_out) {
  Guard guard(mutex);
  if (!budget_.could_ever_hold(reg->length) || !registrations_.reserve(reg)) return Admission::never;
  if (budget_.has_room_for(reg->length)) {
    add_locked(reg);
    return Admission::admitted;
  }
  const bool is_release_near = releasing_.load(std::memory_order_relaxed) != 0 || is_any_dead_locked(asker);
  if (is_release_near && !tries->ignores_releases) return Admission::release_near;
  // A call that has begun to evict goes on, although other calls may take the room that it makes. The sum of what is
  // idle is not computed where one eviction makes enough room.
  tries->is_possible = tries->is_possible || budget_.may_exceed() || budget_.any_one_suffices(reg->length) ||
                       could_fit_locked(asker, reg->length);
  if (!tries->is_possible) return Admission::nothing_idle;
  const Victim victim = retire_next_locked(asker);
  if (victim.reg == nullptr) {
    if (!budget_.may_exceed()) return Admission::nothing_idle;
    add_locked(reg);
    return Admission::admitted;
  }
  *victim_out = victim;
  // If the victim left room over, others would use it before the device has deregistered the victim.
  if (victim.owner != asker || !budget_.has_room_instead_of(victim.reg->length, reg->length)) {
    begin_release(1);
    return Admission::evict_first;
  }
  budget_.remove(victim.reg->length);
  budget_.add(reg->length);
  registrations_.replace(victim.reg, reg);
  return Admission::admitted;
}

bool Cache::admit_wider(pinrail_registration_t* reg) {
  Guard guard(mutex);
  const bool is_half_free = budget_.usage().bytes + reg->length <= limits_.bytes / 2;
  if (!is_half_free || !budget_.has_room_for(reg->length) || !registrations_.reserve(reg)) return false;
  add_locked(reg);
  return true;
}

void Cache::dismiss(pinrail_registration_t* const* regs, size_t count) {
  Guard guard(mutex);
  for (size_t i = 0; i < count; ++i) {
    budget_.remove(regs[i]->length);
    registrations_.remove(regs[i]);
  }
  releasing_.fetch_sub(count, std::memory_order_relaxed);
  if (waiters_ != 0) released.notify_all();
}

// Sleeps up to 200 us, with the lock given back, if a thread is giving something back. Bounded: what came onto a gc
// list since the caller looked waits for a drain, perhaps by the caller.
bool Cache::wait_for_release() {
  Guard guard(mutex);
  if (releasing_.load(std::memory_order_relaxed) == 0) return false;
  ++waiters_;
  released.wait_for(mutex, std::chrono::microseconds(200));
  --waiters_;
  return true;
}

// What is parked was referenced when a search looked at it.
bool Cache::is_any_held(const pinrail_registration_t* own) const {
  Guard guard(mutex);
  if (registrations_.active() != registrations_.size()) return true;
  for (size_t place = 0; place < registrations_.active(); ++place) {
    const uint64_t word = state::load(registrations_.at(place));
    const bool is_pending = (word & (state::kIndexed | state::kDead)) == 0;
    if ((is_pending || state::references(word) != 0) && registrations_.at(place) != own) return true;
  }
  return false;
}

Usage Cache::usage() const {
  Guard guard(mutex);
  return budget_.usage();
}

// Allocates without the lock, and again if the registrations have become too many meanwhile.
uint64_t Cache::pinned_bytes() const {
  std::vector<Span> spans;
  for (;;) {
    const size_t expected = usage().count;
    spans.clear();
    spans.reserve(expected + expected / 8 + 64);  // without the lock
    Guard guard(mutex);
    if (registrations_.size() > spans.capacity()) continue;
    for (size_t place = 0; place < registrations_.size(); ++place) spans.push_back(span_of(registrations_.at(place)));
    break;
  }
  return union_length(&spans);
}

size_t Cache::take_dead(Pool* pool, pinrail_registration_t** regs_out, size_t most) {
  if (!pool->has_dead()) return 0;
  Guard guard(mutex);
  const size_t count = pool->gc_list_.take_locked(regs_out, most);
  if (count != 0) begin_release(count);
  return count;
}

size_t Cache::visit_dead(const Pool* asker, Pool** pools_out, size_t room) {
  Guard guard(mutex);
  size_t count = 0;
  for (Pool* pool : pools_) {
    if (count == room) break;
    if (pool == nullptr || (pool != asker && !pool->may_be_visited()) || !pool->has_dead()) continue;
    pool->begin_visit();
    pools_out[count++] = pool;
  }
  return count;
}

void Cache::count_referenced(const Pool* pool, mpool::Referenced* referenced) const {
  Guard guard(mutex);
  for (size_t place = 0; place < registrations_.size(); ++place) {
    const pinrail_registration_t* const reg = registrations_.at(place);
    const uint64_t references = references_of(reg);
    if (references != 0 && owner_of_locked(reg) == pool) referenced->add(reg, static_cast<int64_t>(references));
  }
}

template <typename Is>
size_t Cache::next_where_locked(size_t* place, pinrail_registration_t** regs_out, size_t room, Is&& is) const {
  size_t count = 0;
  *place = std::min(*place, registrations_.size());
  while (*place != 0 && count < room) {
    pinrail_registration_t* const reg = registrations_.at(--*place);
    if (is(reg)) regs_out[count++] = reg;
  }
  return count;
}

size_t Cache::next_of(const Pool* pool, size_t* place, pinrail_registration_t** regs_out, size_t room) const {
  Guard guard(mutex);
  return next_where_locked(place, regs_out, room, [&](const pinrail_registration_t* reg) {
    assert_held();
    return owner_of_locked(reg) == pool;
  });
}

size_t Cache::retire_of(Pool* pool, size_t* place, pinrail_registration_t** regs_out, size_t room) {
  Guard guard(mutex);
  const size_t count = next_where_locked(place, regs_out, room, [&](pinrail_registration_t* reg) {
    assert_held();
    if (owner_of_locked(reg) != pool || !retire(reg, state::load(reg))) return false;
    Pool::count_one_hook(&pool->evictions_);
    return true;
  });
  begin_release(count);
  return count;
}

// budget/N1, the registrations' invariants, and that all of the pool's are of its kind.
const char* Cache::check(const Pool* pool) const {
  Guard guard(mutex);
  if (!budget_.is_within_limits()) return "over a limit";
  if (budget_.usage().count != registrations_.size()) return "the budget counts others than the registrations";
  for (size_t place = 0; place < registrations_.size(); ++place) {
    const pinrail_registration_t* const reg = registrations_.at(place);
    const Pool* const owner = owner_of_locked(reg);
    if (owner == nullptr || (owner == pool && !owner->is_own(reg))) return "a registration is another pool's";
  }
  return registrations_.check();
}

}  // namespace pinrail::grdma
