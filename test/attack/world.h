// SPDX-License-Identifier: BSD-3-Clause
// world.h - what the rules R1-R13 and E1-E2 say about pools of host memory, as plain lists that are searched from one
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
#ifndef PINRAIL_TEST_ATTACK_WORLD_H
#define PINRAIL_TEST_ATTACK_WORLD_H

#include <pinrail/pinrail.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/fake/fake_registrar.h"

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
  explicit Call(size_t of) : pool(of) {}
  size_t pool;
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

// Threads of which one at a time does something, and threads that do random things at once.

// Runs what it is handed, on a thread of its own.
class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker() {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Returns when the thread has done it.
  void run(const std::function<void()>& task) {
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    changed_.notify_all();
    changed_.wait(lock, [this] { return task_ == nullptr; });
  }

 private:
  void work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return task_ != nullptr || ends_; });
      if (task_ == nullptr) return;
      lock.unlock();
      (*task_)();
      lock.lock();
      task_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* task_ = nullptr;
  bool ends_ = false;
  std::thread thread_;  // last: it begins when all else is there
};

class Workers {
 public:
  explicit Workers(size_t size) : workers_(size), busy_(size, false) {
    for (auto& worker : workers_) worker = std::make_unique<Worker>();
  }

  size_t size() const { return workers_.size(); }
  bool is_busy(size_t index) const { return busy_[index]; }
  // The worker that was handed a task last; size(): none.
  size_t innermost() const { return stack_.empty() ? size() : stack_.back(); }

  void run(size_t index, const std::function<void()>& task) {
    busy_[index] = true;
    stack_.push_back(index);
    workers_[index]->run(task);
    stack_.pop_back();
    busy_[index] = false;
  }
  // The thread ends, and another one takes its place.
  void replace(size_t index) {
    workers_[index].reset();
    workers_[index] = std::make_unique<Worker>();
  }

 private:
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<bool> busy_;
  std::vector<size_t> stack_;
};

// Threads that do random things at once to pools that share a cache name.
//
// What is checked does not depend on the order of the threads: a registration that is returned covers what was asked
// for; what is held is not given back (R9); no limit is exceeded (R8); what an event touched is not returned to the
// thread that reported it (E1); in the end nothing is referenced, and the devices know nothing.

// Prints what was wrong; true if nothing was. In a process of its own.
bool run_threads(uint64_t seed, size_t threads, uint64_t steps);

// Pools of one process, their devices, and threads that take turns: what a random step is made of.
//
// Threads  one step at a time; a step may hand its turn to another thread, also from inside a callback of a device.

class World;

// A fake registrar whose calls the model hears of, and whose callbacks do whatever callbacks may do.
class Device {
 public:
  Device(World* world, size_t pool, const fake::FakeOptions& options);
  const pinrail_registrar_t& table() const { return table_; }
  fake::FakeRegistrar& fake() { return fake_; }
  // The next so many requests get this status.
  void fail(int times, pinrail_status_t status) { failures_ = times, failure_ = status; }

 private:
  static pinrail_status_t register_entry(void* device, const pinrail_register_request_t* request,
                                         pinrail_registration_t* reg);
  static pinrail_status_t deregister_entry(void* device, pinrail_registration_t* reg, pinrail_reason_t reason);
  static pinrail_status_t tail_init_entry(void* device, void* tail);
  static void tail_fini_entry(void* device, void* tail);

  World* const world_;
  const size_t pool_;
  fake::FakeRegistrar fake_;
  pinrail_registrar_t table_;
  int failures_ = 0;
  pinrail_status_t failure_ = PINRAIL_SUCCESS;
};

class World {
 public:
  // Pools, limits and devices are drawn by the seed.
  World(uint64_t seed, const std::vector<std::string>& tolerated);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  // One random step, and what must hold after it.
  void step(uint64_t seed);
  // Everything is dropped and destroyed.
  void end();

  Model& model() { return model_; }
  // What was done lately, one line each.
  const std::deque<std::string>& trace() const { return trace_; }

  // Of devices: a callback may do something.
  void callback(bool forgets);

 private:
  friend class Device;
  struct Held {
    pinrail_handle_t handle;
    Entry* entry;
    size_t pool;
  };
  struct Request {
    Range range;
    uint32_t access, flags;
  };

  uint64_t below(uint64_t limit) { return random_() % limit; }
  bool one_in(uint64_t odds) { return below(odds) == 0; }
  void say(const std::string& what);
  void draw_caches();
  PoolShape draw_shape(size_t pool);
  void make_pool(size_t pool);
  Request draw_request();
  size_t draw_pool();

  // Runs on a thread that is free, in the scope of the pool.
  template <typename Body>
  void on_some_thread(size_t pool, bool may_move, Body body);
  // The same for one call of the pool, which the model is told of: body(the call).
  template <typename Body>
  void in_call(Call call, bool may_move, const std::string& what, Body body);
  void act();
  void do_register();
  void do_deregister();
  void do_find();
  void do_event();
  void do_evict();
  void do_progress();
  void do_wrong_call();
  void do_spent_handle();
  void do_trouble();
  void do_destroy();
  void do_checkpoint();
  void do_turnover();
  bool is_closing(size_t pool) const;
  bool may_meet_pending(size_t pool, const Range& range) const;
  void check();
  void check_pool(size_t pool);

  std::mt19937_64 random_;
  Model model_;
  Workers workers_;
  std::vector<pinrail_mpool_t*> pools_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<bool> miscounted_;  // pools whose misses are not known exactly
  std::vector<Held> held_;
  struct Spent {
    pinrail_handle_t handle;
    std::string of;
  };
  std::vector<Spent> spent_;
  std::vector<Request> recent_;
  std::deque<std::string> trace_;
  int budget_ = 0;      // actions that callbacks of this step may still do
  int forgetting_ = 0;  // deregister callbacks under way
  bool all_concurrent_ = true;
};

}  // namespace pinrail::attack

#endif
