// SPDX-License-Identifier: BSD-3-Clause
// caches.h - the caches of one mpool component, by cache_name.
//
// Owns     each cache as long as a pool has joined it.
// Threads  all functions may run together. Not in hook context, and with no lock of the rank `caches` or above held.
#ifndef PINRAIL_FRAMEWORK_MPOOL_CACHES_H
#define PINRAIL_FRAMEWORK_MPOOL_CACHES_H

#include <pinrail/component_mpool.h>

#include <map>
#include <memory>
#include <string>

#include "base/core/own_component.h"
#include "base/core/status.h"
#include "base/registration/shortcut.h"
#include "base/sync/lock.h"
#include "framework/mpool/pool_cache.h"

namespace pinrail::mpool {

class Caches {
 public:
  // Each join is followed by one leave(). BAD_PARAM: the limits differ, which the component's help says. May throw
  // bad_alloc.
  Status join(const pinrail_host_t* host, const char* cache_name, const WantedLimits& wanted, Cache** cache_out)
      EXCLUDES(mutex_) {
    Guard guard(mutex_);
    auto found = by_name_.find(cache_name);
    if (found == by_name_.end()) {
      auto cache = std::make_unique<Cache>(wanted, shortcut::of(host)->chunks);
      found = by_name_.emplace(cache_name, Shared{std::move(cache), 0}).first;
    }
    Shared& shared = found->second;
    if (wanted.differ_from(shared.cache->limits())) {
      show(host, "limits differ", {{"cache", cache_name}});
      return PINRAIL_ERR_BAD_PARAM;
    }
    ++shared.pools;
    *cache_out = shared.cache.get();
    return success();
  }

  void leave(const Cache* cache) EXCLUDES(mutex_) {
    Guard guard(mutex_);
    for (auto at = by_name_.begin(); at != by_name_.end(); ++at) {
      if (at->second.cache.get() != cache) continue;
      if (--at->second.pools == 0) by_name_.erase(at);
      return;
    }
  }

 private:
  struct Shared {
    std::unique_ptr<Cache> cache;
    size_t pools;
  };

  Mutex mutex_{LockRank::caches};
  std::map<std::string, Shared> by_name_ GUARDED_BY(mutex_);
};

// One opened component.
struct Component {
  explicit Component(const pinrail_host_t* where) : host(where) {}
  const pinrail_host_t* const host;
  Caches caches;
};

}  // namespace pinrail::mpool

#endif
