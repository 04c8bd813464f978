// SPDX-License-Identifier: BSD-3-Clause
// session.h - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing.
//
// Owns     the library's initialisation, both pools, and the device of a replay.
// Threads  open() and close() exclude all else; the pools may be used by any thread.
#ifndef PINRAIL_CONTRIB_TOOLS_PERF_SESSION_H
#define PINRAIL_CONTRIB_TOOLS_PERF_SESSION_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <string>

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

}  // namespace pinrail::perf

#endif
