// SPDX-License-Identifier: BSD-3-Clause
// mpool.h - creation of a pool by an mpool component, and the pool as the API holds it.
//
// Threads  create() and destroy() of a pool exclude other calls on it. API context; the caller holds no lock.
#ifndef PINRAIL_FRAMEWORK_MPOOL_MPOOL_H
#define PINRAIL_FRAMEWORK_MPOOL_MPOOL_H

#include <pinrail/component_mpool.h>

#include <memory>

#include "base/core/status.h"
#include "base/loader/loader.h"
#include "framework/mpool/hit_check.h"
#include "framework/mpool/pool_works.h"
#include "framework/mpool/recorder.h"

namespace pinrail::mpool {
class Allocator;
}

// The fields that a hit reads come first, in one cache line.
struct alignas(64) pinrail_mpool {
  pinrail::PoolCounts counts;
  uintptr_t page_mask = 0;  // the registrar's granularity - 1
  // In a forked child, for a parent's pool: its original table and module. `ops` then calls no device.
  const pinrail_mpool_ops_t* former_ops = nullptr;
  void* former_module = nullptr;
  const pinrail_mpool_ops_t* ops = nullptr;  // completed_ops; in a forked child, as api_fork.cc has it
  void* module = nullptr;
  std::unique_ptr<pinrail_bound_registrar> registrar;
  std::string name;
  bool is_exact = false;  // PINRAIL_POOL_EXACT
  pinrail::mpool::PinTable pins;
  std::atomic<pinrail::mpool::Allocator*> allocator{nullptr};  // made by the first allocation: api_pool.cc
  pinrail::mpool::PoolWorks works;
  std::atomic<pinrail_mpool*> next{nullptr};  // in the process's list: framework/api/api_pool.cc

  pinrail::mpool::Recorder recorder;
  void* looker = nullptr;                           // shows what is held, when another process asks; NULL: none
  const std::atomic<int64_t>* verbosity = nullptr;  // of mpool_<name>_verbose; NULL: there is none
  std::atomic<uint64_t> said_events{0};             // events below this number were said, as far as verbosity asks

  std::unique_ptr<pinrail::mpool::HitCheck> check;  // NULL: hits are not compared with what the device sees

  pinrail_mpool_ops_t completed_ops = {};  // the component's, with functions that do nothing for the optional ones
};

namespace pinrail::mpool {

// Declares the parameters of all pools, and derives the default limits of pools of host memory; before components
// declare theirs.
Status declare(param::Registry* params);

// Creates a pool of the named component, or of the one of highest priority that accepts the registrar. The options were
// checked. NOT_FOUND: no such component. Otherwise the registrar's or the component's own error. params: the registry
// that has the parameters of pools.
Status create(const loader::Loader& loader, const param::Registry& params, const char* name,
              const pinrail_registrar_choice_t& registrar, const char* cache_name,
              const pinrail_mpool_options_t& options, std::unique_ptr<pinrail_mpool>* pool_out);

// How many bytes the pools of host memory may register where no limit is set.
//
// Threads  all functions may run together. Start-up context; they read files.
// Errors   None. What cannot be found out does not bound.

// What bounds the memory that this process may pin; bytes, UINT64_MAX: no bound.
struct Bounds {
  uint64_t memory = UINT64_MAX;   // of the machine
  uint64_t cgroup = UINT64_MAX;   // the smallest limit of the process's control group and of those above it
  uint64_t memlock = UINT64_MAX;  // memlock_limit()
  unsigned processes = 1;         // of this job on this machine, which share memory and control group
};

struct DefaultLimit {
  uint64_t bytes = UINT64_MAX;
  std::string derivation;  // one sentence without a full stop
};

// RLIMIT_MEMLOCK; UINT64_MAX: none, or it does not bound this process, which has CAP_IPC_LOCK.
uint64_t memlock_limit();
// Reads the bounds of this process.
Bounds read_bounds();

// Three quarters of the smaller of memory and control group, divided by the processes, and at most the limit of locked
// memory; at least one page.
DefaultLimit default_limit(const Bounds& bounds);

// The smallest limit in the files memory.max (version 2) or memory.limit_in_bytes (version 1) of the group and of those
// above it. cgroup_file: as /proc/self/cgroup; root: where control groups are mounted.
uint64_t cgroup_limit(const std::string& cgroup_file, const std::string& root);

// The number of local processes that the launcher tells in the environment; 1 if it tells none.
unsigned local_processes();

}  // namespace pinrail::mpool

#endif
