// SPDX-License-Identifier: BSD-3-Clause
#include "test/attack/world.h"

#include <cinttypes>
#include <cstdio>

namespace pinrail::attack {
namespace {

uint32_t rights_of(uint32_t access) { return access & PINRAIL_RIGHTS_MASK; }
uint32_t traits_of(uint32_t access) { return access & PINRAIL_TRAITS_MASK; }
bool is_resource(pinrail_status_t status) {
  return status == PINRAIL_ERR_OUT_OF_RESOURCE || status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE;
}
bool bypasses(const Call& call) { return (call.flags & PINRAIL_FLAG_CACHE_BYPASS) != 0; }
bool is_persistent(uint32_t flags) { return (flags & PINRAIL_FLAG_PERSISTENT) != 0; }

}  // namespace

std::string text_of(const Range& range) {
  char text[64];
  std::snprintf(text, sizeof(text), "[%" PRIxPTR ", +%zx)", range.base, range.length);
  return text;
}

std::string text_of(const Entry& entry) {
  char text[160];
  std::snprintf(text, sizeof(text), "pool %zu rights %x traits %x flags %x references %d%s%s%s%s", entry.pool,
                entry.rights, entry.traits, entry.flags, entry.references, entry.indexed ? " indexed" : "",
                entry.invalidated ? " invalidated" : "", entry.at_device ? "" : " gone", entry.orphan ? " orphan" : "");
  return text_of(entry.range) + " " + text;
}

void Model::note(const std::string& what) {
  for (const std::string& text : tolerated_) {
    if (what.find(text) != std::string::npos) return;
  }
  if (fault_.empty()) fault_ = what;
}

void Model::set_pool(size_t index, const PoolShape& shape) {
  if (index >= pools_.size()) {
    pools_.resize(index + 1);
    counts_.resize(index + 1);
  }
  pools_[index] = shape;
  counts_[index] = {};
}

Range Model::rounded(size_t pool, const Range& range) const {
  const uintptr_t mask = pools_[pool].granularity - 1;
  const uintptr_t base = range.base & ~mask;
  return {base, ((range.end() + mask) & ~mask) - base};
}

Call* Model::begin(const Call& call) {
  for (Call& outer : calls_) outer.disturbed = true;
  calls_.push_back(call);
  Call& begun = calls_.back();
  begun.nested = calls_.size() > 1;
  if (!begun.registers) return &begun;
  begun.had_room = has_room(begun);
  begun.stands_apart = bypasses(begun);
  const bool is_wide = all_rights_ && !pools_[call.pool].exact;
  begun.widest = is_wide ? uint32_t{PINRAIL_RIGHTS_MASK} : rights_of(call.access);
  return &begun;
}

// ---- what is true between calls
// --------------------------------------------------------------------------------------

bool Model::answers(const Entry& entry, size_t pool, const Range& range, uint32_t access) const {
  if (!entry.indexed || entry.pool != pool || entry.traits != traits_of(access)) return false;
  if (pools_[pool].exact) return entry.range == range && entry.rights == rights_of(access);
  return entry.range.contains(range) && (entry.rights & rights_of(access)) == rights_of(access);
}

bool Model::has_hit(size_t pool, const Range& range, uint32_t access) const {
  for (const Entry& entry : entries_) {
    if (answers(entry, pool, range, access)) return true;
  }
  return false;
}

bool Model::has_references(size_t pool) const {
  for (const Entry& entry : entries_) {
    if (entry.pool == pool && !entry.orphan && entry.at_device && entry.references > 0) return true;
  }
  return false;
}

uint64_t Model::indexed(size_t pool) const {
  uint64_t count = 0;
  for (const Entry& entry : entries_) count += entry.pool == pool && entry.indexed ? 1 : 0;
  return count;
}

uint64_t Model::bytes_at_devices(size_t cache) const {
  uint64_t bytes = 0;
  for (const Entry& entry : entries_) {
    if (entry.at_device && pools_[entry.pool].cache == cache) bytes += entry.range.length;
  }
  return bytes;
}

uint64_t Model::count_at_devices(size_t cache) const {
  uint64_t count = 0;
  for (const Entry& entry : entries_) count += entry.at_device && pools_[entry.pool].cache == cache ? 1 : 0;
  return count;
}

// C2: whether a call into the pool may give back what is the other one's.
bool Model::reaches(size_t pool, size_t other) const {
  return pool == other || (pools_[pool].cache == pools_[other].cache && pools_[other].mode != PINRAIL_THREAD_CALLER);
}

bool Model::anything_idle(size_t pool) const {
  for (const Entry& entry : entries_) {
    if (reaches(pool, entry.pool) && entry.is_idle()) return true;
  }
  return false;
}

bool Model::anything_held(size_t cache) const {
  for (const Entry& entry : entries_) {
    if (entry.at_device && pools_[entry.pool].cache == cache && entry.references > 0) return true;
  }
  return false;
}

bool Model::has_room(const Call& call) const {
  const CacheShape& most = limits(call.pool);
  const size_t cache = pools_[call.pool].cache;
  return call.range.length <= most.bytes && bytes_at_devices(cache) <= most.bytes - call.range.length &&
         count_at_devices(cache) < most.count;
}

bool Model::never_fits(const Call& call) const {
  return call.range.length > limits(call.pool).bytes || limits(call.pool).count == 0;
}

// Whether it is within the limits once all that a call into the pool may give back is gone.
bool Model::fits_when_empty_of_idle(const Call& call) const {
  const CacheShape& most = limits(call.pool);
  uint64_t bytes = call.range.length, count = 1;
  for (const Entry& entry : entries_) {
    if (!entry.at_device || pools_[entry.pool].cache != pools_[call.pool].cache) continue;
    if (entry.references == 0 && reaches(call.pool, entry.pool)) continue;
    bytes += entry.range.length;
    ++count;
  }
  return bytes <= most.bytes && count <= most.count;
}

// R3: whether an insert of the entry would be refused.
bool Model::is_dominated(const Entry& entry) const {
  const bool exempt = pools_[entry.pool].exact || is_persistent(entry.flags);
  for (const Entry& other : entries_) {
    if (!other.indexed || other.pool != entry.pool || other.traits != entry.traits) continue;
    // What can be evicted does not stand in for what is persistent.
    const bool equal = other.range == entry.range && other.rights == entry.rights &&
                       is_persistent(other.flags) == is_persistent(entry.flags);
    const bool contains = other.range.contains(entry.range) && (other.rights & entry.rights) == entry.rights;
    if (exempt ? equal : contains) return true;
  }
  return false;
}

Entry* Model::entry_of(const pinrail_registration_t* reg) {
  for (Entry& entry : entries_) {
    if (entry.at_device && entry.reg == reg) return &entry;
  }
  return nullptr;
}

void Model::forget_the_gone() {
  entries_.remove_if([](const Entry& entry) { return !entry.at_device && entry.references == 0; });
}

// ---- what the device sees
// --------------------------------------------------------------------------------------------

void Model::attempt_begins(size_t pool, const pinrail_register_request_t& request) {
  Call& call = calls_.back();
  call.touched_before = call.touched_before || call.touched;
  call.touched = false;
  const Range told{reinterpret_cast<uintptr_t>(request.addr), request.length};
  if (!call.registers || call.pool != pool) return note("a registrar is called by a call that registers nothing");
  if (!(told == call.range)) note("R3: the device registers " + text_of(told) + " for " + text_of(call.range));
  if ((request.rights & rights_of(call.access)) != rights_of(call.access) || request.traits != traits_of(call.access))
    note("the device registers with other access than requested");
}

void Model::attempt_ends(size_t pool, pinrail_registration_t* reg, const pinrail_register_request_t& request,
                         pinrail_status_t status) {
  Call& call = calls_.back();
  call.attempts.push_back({request.rights, status});
  if (status != PINRAIL_SUCCESS && request.rights == PINRAIL_RIGHTS_MASK) has_refused_ = true;
  if (status != PINRAIL_SUCCESS) return;
  Entry entry;
  entry.reg = reg;
  entry.pool = pool;
  entry.range = call.range;
  entry.rights = request.rights;
  entry.traits = request.traits;
  entry.flags = call.flags;
  entry.invalidated = call.touched;
  entry.raced = call.touched;
  entry.maybe_invalidated = call.touched || call.touched_before;
  entries_.push_back(entry);
  call.made.push_back(&entries_.back());
  if (bytes_at_devices(pools_[pool].cache) > limits(pool).bytes) note("R8: more bytes than the limit");
  if (count_at_devices(pools_[pool].cache) > limits(pool).count) note("R8: more registrations than the limit");
}

void Model::device_forgot(size_t pool, pinrail_registration_t* reg, pinrail_reason_t reason) {
  Entry* const entry = entry_of(reg);
  if (entry == nullptr || entry->pool != pool) return note("the device deregisters what it has not registered");
  Call* const call = calls_.empty() ? nullptr : &calls_.back();
  if (call == nullptr) return note("a device is called outside of every call");
  const std::string what = text_of(*entry) + " given back for reason " + std::to_string(reason);
  ++call->forgotten;
  const bool by_destroy = call->destroys && call->pool == pool;
  if (entry->references > 0 && !(by_destroy && call->forces)) note("R9: it is referenced: " + what);
  const bool is_invalidated = reason == PINRAIL_REASON_INVALIDATED;
  if (entry->invalidated != is_invalidated && !(is_invalidated && entry->maybe_invalidated))
    note((entry->was_indexed ? "R12: another reason: " : "R12: another reason for what was never indexed: ") + what);
  if (pools_[pool].mode == PINRAIL_THREAD_CALLER && call->pool != pool) note("C2: called from another pool: " + what);
  if (reason == PINRAIL_REASON_FINALIZED && !by_destroy) note("R12: no call destroys the pool: " + what);
  if (reason == PINRAIL_REASON_EVICTED) {
    ++call->evicted;
    if (!entry->indexed) note("R12: it was not in the index: " + what);
    const bool may_evict = !call->attempts.empty() && is_resource(call->attempts.back().status);
    if (call->registers && !call->is_lax() && !may_evict && has_room(*call)) note("R7: there was room: " + what);
  }
  entry->at_device = false;
  entry->indexed = false;
  entry->orphan = entry->references > 0;
}

// ---- what calls did
// --------------------------------------------------------------------------------------------------

// E1: whole pages of it.
void Model::event(size_t pool, const Range& lost) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t base = lost.base / kPage * kPage;
  const Range range{base, (lost.end() - base + kPage - 1) / kPage * kPage};
  for (Entry& entry : entries_) {
    if (!entry.at_device || (pool != SIZE_MAX && entry.pool != pool) || !entry.range.overlaps(range)) continue;
    entry.invalidated = true;
    entry.indexed = false;
  }
  for (Call& call : calls_) {
    if (call.registers && (pool == SIZE_MAX || call.pool == pool) && call.range.overlaps(range)) call.touched = true;
  }
}

// R3 and E1: an indexed entry that answers.
Entry* Model::found(size_t pool, const Range& range, uint32_t access, pinrail_handle_t handle) {
  Entry* const entry = entry_of(handle.reg);
  if (entry == nullptr) {
    note("a registration is returned that no device knows");
    return nullptr;
  }
  // A call under way may have it in the index already, and wait for a callback before it returns it.
  const bool may_be_new = !entry->returned && !entry->invalidated && !calls_.empty() && calls_.back().nested &&
                          entry->pool == pool && entry->range.contains(range);
  if (!answers(*entry, pool, range, access) && !may_be_new)
    note("R3, E1: a hit on " + text_of(*entry) + " for " + text_of(range));
  if (entry->returned && entry->generation != handle.generation) note("one registration has two generations");
  ++entry->references;
  ++counts_[pool].hits;
  return entry;
}

void Model::check_rights(const Call& call, const Entry& entry) {
  const uint32_t asked = rights_of(call.access);
  if (entry.reg->rights != entry.rights || entry.reg->traits != entry.traits || entry.reg->flags != call.flags)
    note("the registration shows other access than the device has: " + text_of(entry));
  if (call.stands_apart && entry.rights != asked) note("R4: other rights than were asked for: " + text_of(entry));
  if (call.is_lax() || call.stands_apart) {
    if ((entry.rights & asked) != asked) note("R2: rights are missing: " + text_of(entry));
    return;
  }
  const uint32_t widest = call.widest;
  const uint32_t first = call.attempts.front().rights;
  // What the device refused before is not asked for again; nor are atomics, if that was all that it was asked for.
  const uint32_t without_atomics = widest & (asked | ~uint32_t{PINRAIL_ACCESS_REMOTE_ATOMIC});
  const auto is_less = [&](uint32_t rights) { return has_refused_ && (rights == asked || rights == without_atomics); };
  if (first != widest && !is_less(first))
    note("R4: the first request had rights " + std::to_string(first) + ", not " + std::to_string(widest) + ": " +
         text_of(entry));
  const bool is_refused = entry.rights == asked && call.attempts.size() > 1;
  if (entry.rights != widest && !is_refused && !is_less(entry.rights)) note("R4: other rights: " + text_of(entry));
}

// R3: what the new one dominates leaves the index.
void Model::insert(const Call& call, Entry* entry) {
  entry->per_thread =
      pools_[call.pool].leave_pinned && !is_persistent(call.flags) && !call.stands_apart && !call.inside;
  if (call.stands_apart || call.inside || is_dominated(*entry)) return;
  if (entry->raced) return note("R13, E2: an event touched it while it was registered: " + text_of(*entry));
  entry->indexed = !entry->invalidated;  // by an event while what it displaced was given back, before the call returned
  entry->was_indexed = true;
  if (pools_[call.pool].exact) return;
  for (Entry& other : entries_) {
    const bool dominated = &other != entry && other.indexed && other.pool == entry->pool &&
                           other.traits == entry->traits && entry->range.contains(other.range) &&
                           (entry->rights & other.rights) == other.rights && !is_persistent(other.flags);
    if (dominated) other.indexed = false;
  }
}

Entry* Model::registered(const Call& call, pinrail_handle_t handle, bool expects_hit) {
  const bool is_new = !call.made.empty() && call.made.back()->reg == handle.reg && call.made.back()->at_device;
  if (!is_new) {
    const bool persistent = is_persistent(call.flags);
    if (!call.disturbed && !expects_hit && !persistent && !call.inside)
      note("a hit where the model has nothing: " + text_of(call.range));
    if (bypasses(call)) note("BYPASS is served from the cache: " + text_of(call.range));
    Entry* const entry = found(call.pool, call.range, call.access, handle);
    if (entry != nullptr && persistent && !is_persistent(entry->flags))
      note("a request with PERSISTENT is served by what may be evicted: " + text_of(*entry));
    return entry;
  }
  if (expects_hit && !call.disturbed) note("R3: the device registers what the cache has: " + text_of(call.range));
  Entry* const entry = call.made.back();
  if (never_fits(call)) note("R8: larger than the limit: " + text_of(call.range));
  check_rights(call, *entry);
  entry->generation = handle.generation;
  entry->returned = true;
  ++entry->references;  // a callback may have found it in the index before
  insert(call, entry);
  ++counts_[call.pool].misses;
  for (const Entry* made : call.made) {
    if (made != entry && made->at_device) note("R13: an earlier try is still at the device: " + text_of(*made));
  }
  return entry;
}

// R7: what the device said last, it said for good.
void Model::check_refusal_by_device(const Call& call, pinrail_status_t status) {
  const Attempt& last = call.attempts.back();
  if (last.rights != rights_of(call.access)) note("R4: what was asked was not tried: " + text_of(call.range));
  if (last.status == PINRAIL_SUCCESS) {
    if (!call.disturbed) note("R2: the device agreed, and the call did not: " + text_of(call.range));
    return;
  }
  if (last.status == PINRAIL_ERR_OUT_OF_RESOURCE) {
    if (!is_resource(status)) note("R7: the device ran out of resources, and the call says something else");
    if (anything_idle(call.pool)) note("R7: the device ran out of resources, and something is idle still");
    const bool held = anything_held(pools_[call.pool].cache);
    if (held != (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) note("R7: TEMP_OUT_OF_RESOURCE tells what is held");
    return;
  }
  if (last.status != status) note("R7: the call returns another error than the device");
  bool lacked = false;
  for (const Attempt& attempt : call.attempts) lacked = lacked || is_resource(attempt.status);
  if (call.evicted != 0 && call.had_room && !lacked)
    note("R7: something was evicted for an error that is no lack of resources");
}

void Model::refused(const Call& call, pinrail_status_t status, bool expects_hit) {
  const size_t max_length = pools_[call.pool].max_length;
  for (const Entry* made : call.made) {
    if (made->at_device) note("R2: a call that failed left something at the device: " + text_of(*made));
  }
  if (expects_hit) {
    if (!call.disturbed) note("R3: refused although the cache has it: " + text_of(call.range));
    return;
  }
  if (max_length != 0 && call.range.length > max_length) {
    if (status != PINRAIL_ERR_NOT_SUPPORTED) note("a range above the device's maximum is not NOT_SUPPORTED");
    return;
  }
  ++counts_[call.pool].misses;
  if (call.is_lax()) return;
  if (!call.attempts.empty()) return check_refusal_by_device(call, status);
  if (call.evicted != 0) note("R7: a request that cannot be met evicted something: " + text_of(call.range));
  if (never_fits(call)) {
    if (status != PINRAIL_ERR_OUT_OF_RESOURCE) note("R8: what never fits is not OUT_OF_RESOURCE");
    return;
  }
  if (fits_when_empty_of_idle(call)) note("R8: refused although it fits: " + text_of(call.range));
  const bool held = anything_held(pools_[call.pool].cache);
  if (!is_resource(status)) note("R8: refused for another reason than the limits: " + std::to_string(status));
  if (held != (status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)) note("R7, R8: TEMP_OUT_OF_RESOURCE tells what is held");
}

void Model::dropped(const Call& call, Entry* entry) {
  // The count went down before the call, so that the device may forget the entry meanwhile.
  if (entry->references != 0 || call.is_lax() || !entry->at_device) return;
  if (!entry->indexed)
    note("R1: the last reference of a dead one is dropped, and the device knows it: " + text_of(*entry));
  if (entry->indexed && !entry->per_thread)
    note("R1: the last reference is dropped, and it is kept: " + text_of(*entry));
}

void Model::evicted(const Call& call, pinrail_status_t status) {
  if (call.is_lax()) return;
  if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_NOT_FOUND) note("evict says " + std::to_string(status));
  if (status == PINRAIL_SUCCESS && call.evicted != 1) note("evict gave back another number than one");
  if (status == PINRAIL_ERR_NOT_FOUND && (call.evicted != 0 || anything_idle(call.pool)))
    note("R9: evict finds nothing, and something is idle");
}

void Model::progressed(const Call& call) {
  if (call.is_lax()) return;
  for (const Entry& entry : entries_) {
    const bool left = entry.pool == call.pool && entry.is_dead() && entry.references == 0;
    if (left) note("progress left something dead at the device: " + text_of(entry));
  }
}

void Model::destroyed(const Call& call, pinrail_status_t status) {
  if (status != PINRAIL_SUCCESS) {
    if (call.forces || status != PINRAIL_ERR_BUSY || !has_references(call.pool)) note("R10: destroy is refused");
    if (call.forgotten != 0) note("R10: BUSY, and something was given back");
    return;
  }
  for (Entry& entry : entries_) {
    if (entry.pool != call.pool) continue;
    if (entry.at_device) note("R10: destroyed, and the device knows " + text_of(entry));
    if (entry.references > 0 && !call.forces && !entry.orphan)
      note("R10: destroyed while referenced: " + text_of(entry));
    entry.indexed = false;
  }
}

}  // namespace pinrail::attack
