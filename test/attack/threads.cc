// SPDX-License-Identifier: BSD-3-Clause
#include "test/attack/world.h"

#include <pinrail/pinrail.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "framework/mpool/mpool.h"  // the layout of a pool, to reach its check()
#include "test/fake/fake_registrar.h"

namespace pinrail::attack {
namespace {

constexpr size_t kPage = 4096;
constexpr uintptr_t kShared = 0x10000000;  // all threads
constexpr size_t kSharedPages = 32;
constexpr uintptr_t kOwn = 0x40000000;  // one thread each
constexpr uintptr_t kOwnStride = 0x1000000;
constexpr size_t kPools = 3;

void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

struct Held {
  pinrail_handle_t handle;
  size_t pool;
};

class Battle {
 public:
  Battle(uint64_t seed, size_t threads);
  bool fight(uint64_t steps);

 private:
  void work(uint64_t seed, uint64_t steps, size_t number);
  void step(std::mt19937_64* random, std::vector<Held>* held, size_t number);
  void take(std::mt19937_64* random, std::vector<Held>* held);
  void drop_one(std::mt19937_64* random, std::vector<Held>* held);
  void use_own(std::mt19937_64* random, size_t number);
  void drop(const Held& held);
  void hand_over(std::mt19937_64* random, std::vector<Held>* held);
  void end();
  bool is_emptied(size_t pool);
  void note(const std::string& what);
  void hold(pinrail_registration_t* reg, int by);
  bool is_held(pinrail_registration_t* reg);

  const uint64_t seed_;
  const size_t threads_;
  uint64_t limit_ = UINT64_MAX;
  std::array<std::unique_ptr<fake::FakeRegistrar>, kPools> devices_;
  std::array<pinrail_mpool_t*, kPools> pools_{};
  std::mutex mutex_;  // guards what follows; never held across a call
  std::unordered_map<pinrail_registration_t*, int> holders_;
  std::vector<Held> passed_;  // from thread to thread
  std::string fault_;
};

Battle::Battle(uint64_t seed, size_t threads) : seed_(seed), threads_(threads) {
  std::mt19937_64 random(seed);
  const std::string gc_limit = random() % 2 == 0 ? "64K" : "64M";
  const pinrail_setting_t settings[] = {{"monitor", "external"},
                                        {"mpool_grdma_gc_thread", random() % 2 == 0 ? "never" : "auto"},
                                        {"mpool_grdma_gc_limit", gc_limit.c_str()}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 3;
  if (pinrail_init(&options) != PINRAIL_SUCCESS) {
    note("pinrail_init() failed");
    return;
  }
  if (random() % 2 == 0) limit_ = (64 + random() % 64) * kPage;
  for (size_t pool = 0; pool < kPools; ++pool) {
    fake::FakeOptions device;
    device.thread_mode = random() % 3 == 0 ? PINRAIL_THREAD_SERIALIZED : PINRAIL_THREAD_CONCURRENT;
    device.tail_size = 64;
    devices_[pool] = std::make_unique<fake::FakeRegistrar>(device);
    devices_[pool]->on_deregister([this](pinrail_registration_t* reg, pinrail_reason_t) {
      if (is_held(reg)) note("R9: a held registration is given back");
    });
    const uint64_t odds = 2 + random() % 30;
    devices_[pool]->on_register([this, odds](const pinrail_register_request_t& request, pinrail_registration_t*) {
      thread_local std::mt19937_64 own(reinterpret_cast<uintptr_t>(&own) ^ seed_);
      if (own() % odds == 0) pinrail_monitor_report(request.addr, 1);
      if (own() % 64 == 0) std::this_thread::yield();
    });
    pinrail_registrar_choice_t choice{};
    choice.table = devices_[pool]->table();
    pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
    wanted.leave_pinned = random() % 4 == 0 ? 0 : 1;
    wanted.flags = random() % 4 == 0 ? PINRAIL_POOL_EXACT : 0;
    wanted.size_limit = limit_ == UINT64_MAX ? 0 : static_cast<int64_t>(limit_);
    if (pinrail_mpool_create("grdma", &choice, "battle", &wanted, &pools_[pool]) != PINRAIL_SUCCESS)
      note("a pool could not be made");
  }
}

void Battle::note(const std::string& what) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (fault_.empty()) fault_ = what;
}

void Battle::hold(pinrail_registration_t* reg, int by) {
  const std::lock_guard<std::mutex> guard(mutex_);
  holders_[reg] += by;
}

bool Battle::is_held(pinrail_registration_t* reg) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = holders_.find(reg);
  return found != holders_.end() && found->second > 0;
}

void Battle::drop(const Held& held) {
  hold(held.handle.reg, -1);
  if (pinrail_mpool_deregister(held.handle) != PINRAIL_SUCCESS) note("a handle that is held cannot be dropped");
}

void Battle::take(std::mt19937_64* random, std::vector<Held>* held) {
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kShared + (*random)() % kSharedPages * kPage;
  const size_t length = (1 + (*random)() % 6) * kPage;
  const uint32_t access = static_cast<uint32_t>((*random)() % 4);
  const uint64_t chance = (*random)() % 24;
  const uint32_t flags = chance == 0 ? PINRAIL_FLAG_CACHE_BYPASS : chance == 1 ? PINRAIL_FLAG_PERSISTENT : 0;
  pinrail_handle_t handle{};
  const bool finds = (*random)() % 8 == 0;
  const pinrail_status_t status =
      finds ? pinrail_mpool_find(pools_[pool], pointer(base), length, access, &handle)
            : pinrail_mpool_register(pools_[pool], pointer(base), length, access, flags, &handle);
  if (status == PINRAIL_SUCCESS) {
    hold(handle.reg, 1);
    const auto start = reinterpret_cast<uintptr_t>(handle.reg->base);
    const bool covers = start <= base && base + length <= start + handle.reg->length;
    if (!covers || (handle.reg->rights & access) != access || handle.reg->pool != pools_[pool])
      note("R2: a registration that does not cover what was asked for");
    held->push_back({handle, pool});
    return;
  }
  const bool usual = finds ? status == PINRAIL_ERR_NOT_FOUND
                           : status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || status == PINRAIL_ERR_OUT_OF_RESOURCE;
  if (!usual) note(std::string("a call is refused with ") + pinrail_status_name(status));
}

void Battle::drop_one(std::mt19937_64* random, std::vector<Held>* held) {
  if (held->empty()) return;
  const size_t at = (*random)() % held->size();
  drop((*held)[at]);
  held->erase(held->begin() + static_cast<std::ptrdiff_t>(at));
}

// References go to other threads.
void Battle::hand_over(std::mt19937_64* random, std::vector<Held>* held) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!held->empty() && (*random)() % 2 == 0) {
    passed_.push_back(held->back());
    held->pop_back();
  } else if (!passed_.empty()) {
    held->push_back(passed_.front());
    passed_.erase(passed_.begin());
  }
}

// E1, of memory that no other thread uses.
void Battle::use_own(std::mt19937_64* random, size_t number) {
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kOwn + number * kOwnStride;
  pinrail_handle_t before{}, after{};
  if (pinrail_mpool_register(pools_[pool], pointer(base), 4 * kPage, 1, 0, &before) != PINRAIL_SUCCESS) return;
  hold(before.reg, 1);
  pinrail_monitor_report(pointer(base + (*random)() % (4 * kPage)), 1);
  if (pinrail_mpool_find(pools_[pool], pointer(base), 4 * kPage, 1, &after) == PINRAIL_SUCCESS) {
    hold(after.reg, 1);
    note("E1: found after the event");
    drop({after, pool});
  }
  drop({before, pool});
}

void Battle::step(std::mt19937_64* random, std::vector<Held>* held, size_t number) {
  const uint64_t what = (*random)() % 100;
  const size_t pool = (*random)() % kPools;
  const uintptr_t base = kShared + (*random)() % kSharedPages * kPage;
  if (what < 45 && held->size() < 6) return take(random, held);
  if (what < 80) return drop_one(random, held);
  if (what < 86) return hand_over(random, held);
  if (what < 90) return use_own(random, number);
  if (what < 94) return pinrail_monitor_report(pointer(base), 1 + (*random)() % (2 * kPage));
  if (what < 96) {
    const pinrail_status_t status = pinrail_mpool_evict(pools_[pool]);
    if (status != PINRAIL_SUCCESS && status != PINRAIL_ERR_NOT_FOUND) note("evict fails");
    return;
  }
  if (what < 98) {
    if (pinrail_mpool_progress(pools_[pool]) != PINRAIL_SUCCESS) note("progress fails");
    return;
  }
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pinrail_mpool_read_stats(pools_[pool], &stats) != PINRAIL_SUCCESS || stats.registered_bytes > limit_)
    note("R8: more bytes than the limit");
  if (pools_[pool]->ops->check(pools_[pool]->module) != PINRAIL_SUCCESS) note("an invariant is broken");
}

// In several lives: threads end, and what they held is dropped by others.
void Battle::work(uint64_t seed, uint64_t steps, size_t number) {
  constexpr uint64_t kLives = 4;
  for (uint64_t life = 0; life < kLives; ++life) {
    std::thread([&] {
      std::mt19937_64 random(seed * kLives + life);
      std::vector<Held> held;
      for (uint64_t i = 0; i < steps / kLives; ++i) step(&random, &held, number);
      const std::lock_guard<std::mutex> guard(mutex_);
      passed_.insert(passed_.end(), held.begin(), held.end());
    }).join();
  }
}

// What is dead goes back by calls, or by the gc thread, which may have some in its hands.
bool Battle::is_emptied(size_t pool) {
  constexpr int kLooks = 10000;
  for (int looks = 0; looks < kLooks && devices_[pool]->live_count() != 0; ++looks) {
    pinrail_mpool_progress(pools_[pool]);
    while (pinrail_mpool_evict(pools_[pool]) == PINRAIL_SUCCESS) {
    }
    if (looks > 10) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return devices_[pool]->live_count() == 0;
}

void Battle::end() {
  for (const Held& held : passed_) drop(held);
  for (size_t pool = 0; pool < kPools; ++pool) {
    if (!is_emptied(pool)) note("E4: what is neither indexed nor referenced stays registered");
    pinrail_mpool_stats_t stats{};
    stats.size = sizeof(stats);
    const bool read = pinrail_mpool_read_stats(pools_[pool], &stats) == PINRAIL_SUCCESS;
    if (!read || stats.indexed != 0) note("R9: an unreferenced registration stays in the index");
    if (pinrail_mpool_destroy(pools_[pool], 0) != PINRAIL_SUCCESS) note("R10: an unused pool is BUSY");
    if (devices_[pool]->live_count() != 0) note("R10: the device knows something of a destroyed pool");
    for (const std::string& violation : devices_[pool]->violations()) note("the registrar's contract: " + violation);
    if (devices_[pool]->peak_live_bytes() > limit_) note("R8: the device knew more than the limit");
  }
  if (pinrail_finalize() != PINRAIL_SUCCESS) note("finalize failed");
}

bool Battle::fight(uint64_t steps) {
  if (fault_.empty()) {
    std::vector<std::thread> threads;
    for (size_t number = 0; number < threads_; ++number)
      threads.emplace_back([this, steps, number] { work(seed_ * threads_ + number, steps, number); });
    for (std::thread& thread : threads) thread.join();
    end();
  }
  if (fault_.empty()) return true;
  std::printf("seed %" PRIu64 ": %s\n", seed_, fault_.c_str());
  return false;
}

}  // namespace

bool run_threads(uint64_t seed, size_t threads, uint64_t steps) { return Battle(seed, threads).fight(steps); }

}  // namespace pinrail::attack
