// SPDX-License-Identifier: BSD-3-Clause
// world.h - pools of one process, their devices, and threads that take turns: what a random step is made of.
//
// Threads  one step at a time; a step may hand its turn to another thread, also from inside a callback of a device.
#ifndef PINRAIL_TEST_ATTACK_WORLD_H
#define PINRAIL_TEST_ATTACK_WORLD_H

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "test/attack/model.h"
#include "test/attack/workers.h"
#include "test/fake/fake_registrar.h"

namespace pinrail::attack {

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
  Request draw_request(size_t pool);
  size_t draw_pool();

  // Runs on a thread that is free, in the scope of the pool.
  template <typename Body>
  void on_some_thread(size_t pool, bool may_move, Body body);
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
