// SPDX-License-Identifier: BSD-3-Clause
// Pools come and go.
#include <algorithm>

#include "base/core/thread.h"
#include "framework/front/front.h"

namespace pinrail::front {
namespace {

Status create(const char* mpool, const pinrail_registrar_choice_t& registrar, const char* cache_name,
              const pinrail_mpool_options_t& options, pinrail_mpool_t** pool_out) {
  House* const in = house();
  if (in == nullptr || pool_out == nullptr || options.size != sizeof(options)) return PINRAIL_ERR_BAD_PARAM;
  {
    // Room first: once the module exists, nothing may fail.
    Guard guard(in->mutex);
    in->pools.reserve(std::max(in->pools.capacity(), 2 * in->pools.size() + 64));
  }
  std::unique_ptr<pinrail_mpool> pool;
  const Status status = mpool::create(*in->loader, mpool, registrar, cache_name, options, &pool);
  if (!status.ok()) return status;
  pinrail_mpool_t* const made = pool.get();
  Guard guard(in->mutex);
  in->pools.push_back(std::move(pool));
  *pool_out = made;
  return success();
}

// The module first: as long as it says BUSY, nothing has changed.
Status destroy(pinrail_mpool_t* pool, uint32_t flags) {
  pinrail_thread_t* thread = thread::current();
  if (thread == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  return pool->ops->destroy(pool->module, thread, flags);
}

auto place_of(std::vector<std::unique_ptr<pinrail_mpool>>& pools, const pinrail_mpool_t* pool) {
  return std::find_if(pools.begin(), pools.end(), [&](const auto& each) { return each.get() == pool; });
}

Status destroy_one(pinrail_mpool_t* pool, uint32_t flags) {
  House* const in = house();
  if (in == nullptr || pool == nullptr || (flags & ~uint32_t{PINRAIL_DESTROY_FORCE}) != 0) return PINRAIL_ERR_BAD_PARAM;
  {
    Guard guard(in->mutex);
    if (place_of(in->pools, pool) == in->pools.end()) return PINRAIL_ERR_BAD_PARAM;
  }
  const Status status = destroy(pool, flags);
  if (!status.ok()) return status;
  Guard guard(in->mutex);
  in->pools.erase(place_of(in->pools, pool));
  return status;
}

bool is_referenced(pinrail_mpool_t* pool) { return pool->ops->referenced(pool->module) != 0; }

}  // namespace

Status close_pools(House* in) {
  std::vector<pinrail_mpool_t*> pools;
  {
    Guard guard(in->mutex);
    for (const auto& pool : in->pools) pools.push_back(pool.get());
  }
  // First ask all, then destroy all: BUSY changes nothing.
  for (pinrail_mpool_t* pool : pools) {
    if (is_referenced(pool)) return destroy_one(pool, 0);  // says who is in the way
  }
  for (pinrail_mpool_t* pool : pools) {
    const Status status = destroy_one(pool, 0);
    if (!status.ok()) return status;
  }
  return success();
}

}  // namespace pinrail::front

using pinrail::guarded;

pinrail_status_t pinrail_mpool_create(const char* mpool, const pinrail_registrar_choice_t* registrar,
                                      const char* cache_name, const pinrail_mpool_options_t* options,
                                      pinrail_mpool_t** pool_out) {
  const pinrail_registrar_choice_t any{};
  const pinrail_mpool_options_t none = PINRAIL_MPOOL_OPTIONS_INIT;
  return guarded([&] {
    return pinrail::front::create(mpool, registrar != nullptr ? *registrar : any,
                                  cache_name != nullptr ? cache_name : "default", options != nullptr ? *options : none,
                                  pool_out);
  });
}

pinrail_status_t pinrail_mpool_destroy(pinrail_mpool_t* pool, uint32_t flags) {
  return guarded([&] { return pinrail::front::destroy_one(pool, flags); });
}

const char* pinrail_mpool_name(const pinrail_mpool_t* pool) { return pool == nullptr ? "" : pool->name.c_str(); }

const char* pinrail_mpool_registrar_name(const pinrail_mpool_t* pool) {
  return pool == nullptr ? "" : pool->registrar->name.c_str();
}
