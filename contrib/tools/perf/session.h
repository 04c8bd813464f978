// SPDX-License-Identifier: BSD-3-Clause
// session.h - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing; and checks that
// what Pinrail registers stays within its limit and equals what the kernel counts, and that the device sees through a
// registration what the processor sees.
//
// Owns     the library's initialisation, both pools, and the device of a replay.
// Threads  open() and close() exclude all else; the pools may be used by any thread.
// A Budget is used by one thread at a time, while no other thread uses the pool.
#ifndef PINRAIL_CONTRIB_TOOLS_PERF_SESSION_H
#define PINRAIL_CONTRIB_TOOLS_PERF_SESSION_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/options.h"

namespace pinrail::perf {

// The device of a replay: a registrar that is lent to the pool under test, counts its calls, and passes them
// on.
//
// Owns     the pool through which calls are passed on to a component. That pool keeps nothing and registers exactly
// what
//          it is asked for, so each call of this table is one call of the component.
// Threads  the table's functions may run together; open() and close() exclude all else.

// Register calls, those that failed included; the pages of those that succeeded; nanoseconds of all.
struct DeviceCalls {
  uint64_t calls = 0, refused = 0, pages = 0;
  uint64_t register_ns = 0, deregister_ns = 0;
};

// Whether more is registered than the limit allows. One by default is of what is idle: what is in use may exceed it.
inline bool is_exceeded(const pinrail_mpool_stats_t& stats, uint64_t registered_bytes) {
  return stats.evicts_idle_only == 0 && registered_bytes > stats.size_limit;
}

// Of a pool whose every register call, with CACHE_BYPASS, is a call of the registrar.
pinrail_mpool_options_t keep_nothing();

class Device {
 public:
  // The name of the device that registers nothing.
  static constexpr const char* kNone = "none";

  Device() = default;
  ~Device() { (void)close(); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // name: a registrar component, kNone, or empty for the usable component of highest priority.
  Result open(const std::string& name);
  Result close();

  const pinrail_registrar_t* table() const { return &table_; }
  DeviceCalls calls() const;

 private:
  static pinrail_status_t register_mem(void* self, const pinrail_register_request_t* request,
                                       pinrail_registration_t* reg);
  static pinrail_status_t deregister_mem(void* self, pinrail_registration_t* reg, pinrail_reason_t reason);
  pinrail_status_t pass_on(const pinrail_register_request_t& request, pinrail_registration_t* reg);

  pinrail_registrar_t table_{};
  pinrail_mpool_t* pool_ = nullptr;  // NULL: kNone
  std::atomic<uint64_t> calls_{0}, refused_{0}, pages_{0}, register_ns_{0}, deregister_ns_{0};
};

// What the head of a report says.
struct PoolFacts {
  std::string pool, registrar, monitors;
  std::string why_not_kept;  // see Session
  uint64_t size_limit = 0;
  uint32_t leave_pinned = 0;
};

class Session {
 public:
  Session() = default;
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Result open(const Options& options);

  // Destroys the pools. Bad if a registration is still referenced.
  Result close();

  pinrail_mpool_t* pool() const { return cached_; }
  pinrail_mpool_t* uncached() const { return uncached_; }

  const char* pool_name() const { return pinrail_mpool_name(cached_); }
  const char* registrar_name() const { return pinrail_mpool_registrar_name(cached_); }
  DeviceCalls device_calls() const { return device_.calls(); }  // of a replay
  pinrail_mpool_stats_t stats() const { return stats_of(cached_); }
  static pinrail_mpool_stats_t stats_of(pinrail_mpool_t* pool);
  PoolFacts facts() const;

  // Why this program's kind of memory (private anonymous, the first in Pinrail's list) is never kept; "" if it may be.
  static std::string why_not_kept();

  // "8M, from the environment": a parameter of the pool under test, by its short name.
  std::string describe(const char* parameter) const;
  // "mpool_grdma_size_limit"
  std::string parameter(const char* short_name) const;

 private:
  static Result initialise(const Options& options);
  Result open_pools(const Options& options);
  Result open_replayed(const Options& options);

  bool initialised_ = false;
  Device device_;
  pinrail_mpool_t* cached_ = nullptr;
  pinrail_mpool_t* uncached_ = nullptr;
};

// Growth in bytes since begin().
struct Growth {
  int64_t registered = 0, pinned = 0;  // by Pinrail's statistics
  int64_t vm_pin = 0, vm_lck = 0;      // by the kernel; 0 if it does not count
};

class Budget {
 public:
  Budget(const Session& session, Errors* errors);

  // Starts the measurement of a row. small_pages: the kernel counts pins by page, so its numbers can be compared.
  void begin(bool small_pages);

  // Counts an error if a limit is exceeded, or if the kernel's numbers differ.
  void check(const std::string& when);

  Growth growth() const { return growth_; }  // at the last check

 private:
  void measure_others();
  bool confirmed();
  std::string differences() const;

  const Session& session_;
  Errors* const errors_;
  const bool counts_pin_, counts_lock_;  // whether the kernel counts what this registrar registers
  bool compare_ = false, knows_others_ = false;
  int64_t other_pin_ = 0, other_lock_ = 0;
  pinrail_mpool_stats_t at_start_ = {};
  Growth growth_;
};

// Names the limit of the pool or the user that applies; "" if there is none.
std::string limit_text(const Session& session);

// Explains why a register call of that length was refused while `held` bytes were registered and referenced.
// legitimate: no idle registration could have been evicted for it.
struct Refusal {
  bool legitimate;
  std::string why;
};
bool is_refusal(pinrail_status_t status);
Refusal explain_refusal(const Session& session, pinrail_status_t status, size_t length, uint64_t held);

// Checks that the device sees through a registration what the processor sees.
//
// Threads  one at a time.
//
// A registration that is older than the last remapping of a page of its range is stale: an error, whatever bytes it
// shows.

// The arguments of a register or find call.
struct Asked {
  const void* addr;
  size_t length;  // bytes
  uint32_t access;
  uint64_t changed_at;  // number of the last remapping of a page of the range; 0: none
  uint64_t changes;     // number of the last remapping in the whole program
};

class ByteCheck {
 public:
  ByteCheck(const std::string& registrar, Errors* errors);
  ByteCheck(const ByteCheck&) = delete;
  ByteCheck& operator=(const ByteCheck&) = delete;

  // Checks coverage, staleness and bytes of the registration; counts errors.
  void check(const Asked& asked, pinrail_handle_t handle);

  // The same without the bytes. False: an error was counted.
  bool check_coverage(const Asked& asked, pinrail_handle_t handle);

  // How bytes were checked: "device", "device, samples" or "unchecked", with the number of bytes of the
  // weaker ones.
  std::string said() const;
  uint64_t compared_bytes() const { return compared_; }
  uint64_t unchecked_bytes() const { return unchecked_; }

 private:
  // Of the first sight of a registration.
  struct Seen {
    uint64_t generation;
    uint64_t changes;
  };

  bool covers(const Asked& asked, const pinrail_registration_t& reg);
  bool is_stale(const Asked& asked, pinrail_handle_t handle);
  void compare(const Asked& asked, pinrail_handle_t handle);
  pinrail_status_t compare_device(const Asked& asked, pinrail_handle_t handle);
  pinrail_status_t compare_piece(const Asked& asked, pinrail_handle_t handle, size_t offset, size_t length);

  const bool samples_;  // compares samples only, because the device is slow
  Errors* const errors_;
  std::vector<char> buffer_;
  std::unordered_map<const pinrail_registration_t*, Seen> seen_;
  uint64_t device_bytes_ = 0, unchecked_ = 0, compared_ = 0;
  uint64_t random_ = 88172645463325252u;
};

}  // namespace pinrail::perf

#endif
