// SPDX-License-Identifier: BSD-3-Clause
// mpool.h - which mpool component makes a pool, and the pool as the C face holds it.
//
// Threads  create() and destroy(): not against other calls on that pool.
#ifndef PINRAIL_FRAMEWORK_MPOOL_MPOOL_H
#define PINRAIL_FRAMEWORK_MPOOL_MPOOL_H

#include <pinrail/component.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/core/status.h"
#include "base/loader/loader.h"
#include "framework/registrar/registrar.h"

// What a hit reads here comes first, on one line.
struct alignas(64) pinrail_mpool {
  const pinrail_mpool_ops_t* ops = nullptr;
  void* module = nullptr;
  pinrail_shortcut_t shortcut = {};
  std::unique_ptr<pinrail_bound_registrar> registrar;
  std::string name;
  std::atomic<pinrail_mpool*> next{nullptr};  // all pools of the process: framework/front/front_pool.cc

  // In a forked child, of a pool of the parent: what it was. Its own table does nothing, its shortcut is empty.
  const pinrail_mpool_ops_t* former_ops = nullptr;
  void* former_module = nullptr;
};

namespace pinrail::mpool {

// A pool of the named component, or of the best one that takes the registrar.
// NOT_FOUND: no such component; BAD_PARAM: options; else what registrar or component said.
Status create(const loader::Loader& loader, const char* name, const pinrail_registrar_choice_t& registrar,
              const char* cache_name, const pinrail_mpool_options_t& options, std::unique_ptr<pinrail_mpool>* pool_out);

}  // namespace pinrail::mpool

#endif
