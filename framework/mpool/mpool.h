// SPDX-License-Identifier: BSD-3-Clause
// mpool.h - creation of a pool by an mpool component, and the pool as the API holds it.
//
// Threads  create() and destroy() of a pool exclude other calls on it. API context; the caller holds no lock.
#ifndef PINRAIL_FRAMEWORK_MPOOL_MPOOL_H
#define PINRAIL_FRAMEWORK_MPOOL_MPOOL_H

#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/core/status.h"
#include "base/hit/pool_counts.h"
#include "base/loader/loader.h"
#include "framework/mpool/hit_check.h"
#include "framework/mpool/pool_works.h"
#include "framework/mpool/recorder.h"
#include "framework/registrar/registrar.h"

namespace pinrail::mpool {
class Allocator;
}

// The fields that a hit reads come first, in one cache line.
struct alignas(64) pinrail_mpool {
  pinrail::PoolCounts counts;
  uintptr_t page_mask = 0;  // the registrar's granularity - 1
  // In a forked child, for a parent's pool: its original table and module. `ops` then does nothing.
  const pinrail_mpool_ops_t* former_ops = nullptr;
  void* former_module = nullptr;
  const pinrail_mpool_ops_t* ops = nullptr;  // completed_ops; in a forked child, the table that does nothing
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

}  // namespace pinrail::mpool

#endif
