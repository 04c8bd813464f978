// SPDX-License-Identifier: BSD-3-Clause
// session.h - Pinrail from init to finalize, with the pool under test and a pool that keeps nothing.
//
// Owns     the library's initialisation, both pools, and the device of a replay.
// Threads  open() and close() exclude all else; the pools may be used by any thread.
#ifndef PINRAIL_TOOLS_PERF_SESSION_H
#define PINRAIL_TOOLS_PERF_SESSION_H

#include <pinrail/pinrail.h>

#include <string>

#include "contrib/tools/perf/basics.h"
#include "contrib/tools/perf/device.h"
#include "contrib/tools/perf/options.h"

namespace pinrail::perf {

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
