// SPDX-License-Identifier: BSD-3-Clause
// model.h - what the rules R1-R13 and E1-E2 say about pools of host memory, as plain lists that are searched from one
// end to the other.
//
// The model does not predict each choice of the engine (which idle registration is evicted, when dead ones are given
// back); it follows what the devices see and what calls return, and notes a fault where no rule allows that.
//
// Owns     its entries. Not the pools.
// Threads  one call at a time; the test hands its turn from thread to thread.
//
// An entry is at its device from device_registered() until device_forgot(). calls() are the calls under way, the
// innermost last: a callback of a device may call pools again.
#ifndef PINRAIL_TEST_ATTACK_MODEL_H
#define PINRAIL_TEST_ATTACK_MODEL_H

#include <pinrail/pinrail.h>

#include <cstdint>
#include <list>
#include <string>
#include <utility>
#include <vector>

namespace pinrail::attack {

struct Range {
  uintptr_t base = 0;
  size_t length = 0;
  uintptr_t end() const { return base + length; }
  bool contains(const Range& other) const { return base <= other.base && other.end() <= end(); }
  bool overlaps(const Range& other) const { return base < other.end() && other.base < end(); }
  bool operator==(const Range& other) const { return base == other.base && length == other.length; }
};

// Of one pool, fixed when it is made.
struct PoolShape {
  size_t cache = 0;
  bool exact = false;
  bool leave_pinned = true;
  pinrail_thread_mode_t mode = PINRAIL_THREAD_CONCURRENT;
  size_t granularity = 4096;
  size_t max_length = 0;
};

// Of all pools of one cache name.
struct CacheShape {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
};

// One registration, from its register_mem on.
struct Entry {
  pinrail_registration_t* reg = nullptr;
  uint64_t generation = 0;
  size_t pool = 0;
  Range range;
  uint32_t rights = 0, traits = 0, flags = 0;
  bool at_device = true;
  bool returned = false;  // by a register call
  bool indexed = false;
  bool was_indexed = false;
  bool raced = false;        // an event touched the range while the device was asked
  bool invalidated = false;  // an event touched the range since the device was asked
  // The same since the call began: an event may act a moment after it was reported, so a pool may count it as well.
  bool maybe_invalidated = false;
  bool per_thread = false;  // references are counted per thread: idle ones are kept
  bool orphan = false;      // its pool was destroyed by force
  int references = 0;

  bool is_dead() const { return at_device && !indexed && returned; }
  bool is_idle() const { return indexed && references == 0; }
};

// One request to a device, and what came of it.
struct Attempt {
  uint32_t rights;
  pinrail_status_t status;
};

// One call of a pool under way.
struct Call {
  size_t pool = 0;
  Range range;          // of register: as the device gets it
  uint32_t access = 0;  // rights and traits
  uint32_t flags = 0;
  bool registers = false;
  bool nested = false;     // made by a callback of a device
  bool inside = false;     // ... on the thread of that callback: what it registers is never in the index (R5)
  bool disturbed = false;  // a callback did something meanwhile
  bool is_lax() const { return nested || disturbed; }
  bool destroys = false;
  bool forces = false;
  bool touched = false;         // an event touched the range during the last attempt
  bool touched_before = false;  // or during the call, before that
  bool had_room = false;        // of register: within the limits when it began
  uint32_t widest = 0;          // of register: the rights that R4 asks for
  bool stands_apart = false;    // never in the index: BYPASS
  std::vector<Attempt> attempts;
  std::vector<Entry*> made;
  size_t evicted = 0;
  size_t forgotten = 0;
};

// Figures that the pool must report.
struct Counts {
  uint64_t hits = 0;
  uint64_t misses = 0;
  bool misses_known = true;  // races and re-entry leave freedom
};

class Model {
 public:
  // Faults that contain one of these texts are passed by: what is known need not hide the rest.
  explicit Model(std::vector<std::string> tolerated = {}) : tolerated_(std::move(tolerated)) {}

  void add_cache(const CacheShape& shape) { caches_.push_back(shape); }
  void set_pool(size_t index, const PoolShape& shape);
  void set_all_rights(bool all_rights) { all_rights_ = all_rights; }  // mpool_grdma_rights

  const PoolShape& shape(size_t pool) const { return pools_[pool]; }
  const CacheShape& limits(size_t pool) const { return caches_[pools_[pool].cache]; }
  const Counts& counts(size_t pool) const { return counts_[pool]; }

  // The first fault; empty: none.
  const std::string& fault() const { return fault_; }
  void note(const std::string& what);

  // The calls under way.
  Call* begin(const Call& call);
  void end() { calls_.pop_back(); }
  std::list<Call>& calls() { return calls_; }

  // What the device sees.
  void attempt_begins(size_t pool, const pinrail_register_request_t& request);
  void attempt_ends(size_t pool, pinrail_registration_t* reg, const pinrail_register_request_t& request,
                    pinrail_status_t status);
  void device_forgot(size_t pool, pinrail_registration_t* reg, pinrail_reason_t reason);

  // What calls did. pool: SIZE_MAX: all of them.
  void event(size_t pool, const Range& lost);
  // The entry that a register call returned, checked against the rules. NULL: a fault.
  Entry* registered(const Call& call, pinrail_handle_t handle, bool expects_hit);
  void refused(const Call& call, pinrail_status_t status, bool expects_hit);
  Entry* found(size_t pool, const Range& range, uint32_t access, pinrail_handle_t handle);
  void dropped(const Call& call, Entry* entry);
  void evicted(const Call& call, pinrail_status_t status);
  void progressed(const Call& call);
  void destroyed(const Call& call, pinrail_status_t status);

  // What is true between calls.
  bool has_hit(size_t pool, const Range& range, uint32_t access) const;
  bool has_references(size_t pool) const;
  uint64_t indexed(size_t pool) const;
  uint64_t bytes_at_devices(size_t cache) const;
  uint64_t count_at_devices(size_t cache) const;
  bool fits_when_empty_of_idle(const Call& call) const;
  bool has_room(const Call& call) const;
  bool never_fits(const Call& call) const;
  Range rounded(size_t pool, const Range& range) const;
  std::list<Entry>& entries() { return entries_; }
  // Entries to which no handle exists any more.
  void forget_the_gone();

 private:
  bool answers(const Entry& entry, size_t pool, const Range& range, uint32_t access) const;
  bool reaches(size_t pool, size_t other) const;
  bool anything_idle(size_t pool) const;
  bool anything_held(size_t cache) const;
  bool is_dominated(const Entry& entry) const;
  void insert(const Call& call, Entry* entry);
  Entry* entry_of(const pinrail_registration_t* reg);
  void check_refusal_by_device(const Call& call, pinrail_status_t status);
  void check_rights(const Call& call, const Entry& entry);

  std::vector<CacheShape> caches_;
  std::vector<PoolShape> pools_;
  std::vector<Counts> counts_;
  std::list<Entry> entries_;
  std::list<Call> calls_;
  std::string fault_;
  const std::vector<std::string> tolerated_;
  bool all_rights_ = true;
  bool has_refused_ = false;  // a device has refused a request for all rights
};

std::string text_of(const Range& range);
std::string text_of(const Entry& entry);

}  // namespace pinrail::attack

#endif
