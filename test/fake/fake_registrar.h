// SPDX-License-Identifier: BSD-3-Clause
// fake_registrar.h - a registrar without a device: it counts, remembers and checks, and fails where the script says.
//
// Owns     what it remembers of each registration. Never pins, reads or writes the memory that it registers.
// Threads  All functions may run together. Options are fixed at construction. Callbacks run without any lock of the
//          fake held, on the thread of the call: they may sleep, allocate, unmap, or call the pool again.
//
// A register call that succeeds is live until its deregister call; each live one has an lkey of its own. A call that
// fails by script or for lack of capacity leaves no trace but its count. What a caller does wrong (a second
// deregistration, another registration's range or key, a request that breaks the contract of registrar.h, calls at a
// time in a mode that forbids it) is a violation: noted, never fatal.
#ifndef PINRAIL_TEST_FAKE_FAKE_REGISTRAR_H
#define PINRAIL_TEST_FAKE_FAKE_REGISTRAR_H

#include <pinrail/registrar.h>

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace pinrail::fake {

struct FakeOptions {
  pinrail_thread_mode_t thread_mode = PINRAIL_THREAD_CONCURRENT;
  uint32_t kinds = PINRAIL_KIND_HOST;
  size_t granularity = 4096;
  size_t max_length = 0;
  size_t tail_size = 0;
  uint32_t refused_rights = 0;  // a request with one of these rights gets NOT_SUPPORTED
  uint32_t refused_traits = 0;  // likewise
  uint64_t on_demand = 0;       // PINRAIL_ON_DEMAND_*
  size_t on_demand_max_length = 0;
  bool tail_hooks = false;        // the table has tail_init and tail_fini
  bool zero_cost = false;         // both calls return success at once: nothing counted, remembered or checked
  bool needs_pool_scope = false;  // CALLER mode: a call outside of every PoolScope is a violation
};

// The usual ones but for this.
template <typename T, typename Value>
FakeOptions options_with(T FakeOptions::*option, Value value) {
  FakeOptions options;
  options.*option = static_cast<T>(value);
  return options;
}

// What the fake knows of a live registration.
struct FakeRecord {
  const pinrail_registration_t* reg;
  uintptr_t base;
  size_t length;
  uint32_t rights;
  uint32_t traits;
  uint32_t lkey;
  size_t bytes;  // of the capacity
};

class FakeRegistrar {
 public:
  using RegisterCallback = std::function<void(const pinrail_register_request_t&, pinrail_registration_t*)>;
  using DeregisterCallback = std::function<void(pinrail_registration_t*, pinrail_reason_t)>;
  static constexpr int kReasons = 4;

  explicit FakeRegistrar(const FakeOptions& options = {});
  FakeRegistrar(const FakeRegistrar&) = delete;
  FakeRegistrar& operator=(const FakeRegistrar&) = delete;

  // Lend this to a pool. Lives as long as the fake.
  const pinrail_registrar_t* table() const { return &table_; }

  // The script. nth counts from now on: 1 is the next call. A scripted failure beats capacity.
  void fail_register(uint64_t nth, pinrail_status_t status);
  void fail_every_register(pinrail_status_t status) { set(&script_.every_register, status); }  // SUCCESS ends it
  void fail_deregister(uint64_t nth, pinrail_status_t status);
  void set_capacity(size_t bytes, size_t count);  // OUT_OF_RESOURCE beyond them
  void clear_script() { set(&script_, Script()); }

  // Called at the start of each call, before its outcome is decided. NULL: none.
  void on_register(RegisterCallback callback) { set(&script_.on_register, std::move(callback)); }
  void on_deregister(DeregisterCallback callback) { set(&script_.on_deregister, std::move(callback)); }

  uint64_t register_calls() const { return locked(register_calls_); }      // failed ones too
  uint64_t deregister_calls() const { return locked(deregister_calls_); }  // wrong ones too
  uint64_t deregistered(pinrail_reason_t reason) const { return locked(reasons_[reason]); }
  uint64_t tails_made() const { return locked(tails_made_); }
  uint64_t tails_finished() const { return locked(tails_finished_); }
  int most_at_once() const { return locked(most_at_once_); }  // threads that were in a device call at a time, at most

  size_t live_count() const;
  size_t live_bytes() const { return locked(live_bytes_); }
  size_t peak_live_bytes() const { return locked(peak_live_bytes_); }
  std::vector<FakeRecord> live() const;  // by base
  bool is_live(const pinrail_registration_t* reg) const;

  // Empty after a right run: EXPECT_EQ(fake.violations(), std::vector<std::string>{}).
  std::vector<std::string> violations() const { return locked(violations_); }

  // A hint that the pool has given.
  struct Advice {
    uintptr_t base;
    size_t length;
    pinrail_advice_t advice;
  };
  std::vector<Advice> advices() const { return locked(advices_); }

 private:
  using Failing = std::map<uint64_t, pinrail_status_t>;  // by number of the call
  struct Script {
    Failing registers, deregisters;
    pinrail_status_t every_register = PINRAIL_SUCCESS;
    RegisterCallback on_register;
    DeregisterCallback on_deregister;
  };
  class Calls;

  template <typename T>
  T locked(const T& member) const {
    const std::lock_guard<std::mutex> guard(mutex_);
    return member;
  }
  // What was there before ends without the lock.
  template <typename T>
  void set(T* member, T value) {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::swap(*member, value);
  }

  pinrail_status_t register_mem(const pinrail_register_request_t* request, pinrail_registration_t* reg);
  pinrail_status_t deregister_mem(pinrail_registration_t* reg, pinrail_reason_t reason);
  void advise(const pinrail_registration_t* reg, size_t offset, size_t length, pinrail_advice_t advice);
  void tail_init(void* tail);
  void tail_fini(void* tail);
  pinrail_status_t admit_locked(const pinrail_register_request_t& request, pinrail_registration_t* reg);
  void forget_locked(const pinrail_registration_t* reg, pinrail_reason_t reason);
  void check_request_locked(const pinrail_register_request_t& request, const pinrail_registration_t* reg);
  void check_thread_mode_locked();
  void note_locked(std::string what);

  const FakeOptions options_;
  pinrail_registrar_t table_{};

  mutable std::mutex mutex_;               // guards everything below; never held while a callback runs
  std::map<std::thread::id, int> inside_;  // threads in a call, and how deep
  int most_at_once_ = 0;
  Script script_;
  std::map<const pinrail_registration_t*, FakeRecord> live_;
  std::set<const void*> tails_;  // made and not finished
  size_t live_bytes_ = 0, peak_live_bytes_ = 0;
  size_t byte_capacity_ = SIZE_MAX, count_capacity_ = SIZE_MAX;
  uint64_t register_calls_ = 0, deregister_calls_ = 0, tails_made_ = 0, tails_finished_ = 0;
  uint64_t reasons_[kReasons] = {};
  uint32_t next_lkey_ = 1;
  std::vector<Advice> advices_;
  std::vector<std::string> violations_;
};

// While one lives, its thread is inside a call into the pool that a CALLER registrar was lent to. They nest.
class PoolScope {
 public:
  PoolScope() { ++depth; }
  ~PoolScope() { --depth; }
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

  static thread_local int depth;
};

}  // namespace pinrail::fake

#endif
