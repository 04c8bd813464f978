// SPDX-License-Identifier: BSD-3-Clause
// forward.h - the parts that all mpool components' descriptors share: open and close of the component, and functions of
// the pool's table that only forward to the pool and turn exceptions into a status.
//
// Component is constructed from the host table. Pool has the member functions and create(component, config, Module**).
// Module is the type behind the table's `module`: Pool, or a base class of it.
//
// Threads  as pinrail_mpool_ops_t of component.h says for each function. The caller holds no lock.
// Hook     pool_of(), invalidate_range_hook().
#ifndef PINRAIL_FRAMEWORK_MPOOL_FORWARD_H
#define PINRAIL_FRAMEWORK_MPOOL_FORWARD_H

#include <pinrail/component_mpool.h>

#include <new>
#include <type_traits>

#include "base/core/span.h"
#include "base/core/status.h"
#include "base/registration/shortcut.h"

namespace pinrail::mpool {

template <typename Component, typename Pool, typename Module = Pool>
struct Forward {
  static Pool* pool_of(void* module) { return static_cast<Pool*>(static_cast<Module*>(module)); }

  static pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
    if (shortcut::of(host) == nullptr) return PINRAIL_ERR_VERSION;
    auto* component = new (std::nothrow) Component(host);
    if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
    *context_out = component;
    return PINRAIL_SUCCESS;
  }
  static void close(void* context) { delete static_cast<Component*>(context); }

  static pinrail_status_t create(void* component, const pinrail_mpool_config_t* config, void** module_out) {
    return guarded([&] {
      Module* pool = nullptr;
      const Status status = Pool::create(static_cast<Component*>(component), *config, &pool);
      if (status.ok()) *module_out = pool;
      return status;
    });
  }
  // A function of the table that calls this one of the pool, and turns an exception into a status.
  template <auto kFunction, typename... Arguments>
  static pinrail_status_t call(void* module, Arguments... arguments) {
    return guarded([&] {
      if constexpr (std::is_member_function_pointer_v<decltype(kFunction)>) {
        return (pool_of(module)->*kFunction)(arguments...);
      } else {
        return kFunction(arguments...);
      }
    });
  }
  // The same for one that has a range in place of the table's two arguments.
  template <auto kFunction, typename... Arguments>
  static pinrail_status_t call_on_span(void* module, pinrail_thread_t* thread, uintptr_t base, size_t length,
                                       Arguments... arguments) {
    return call<kFunction>(module, thread, Span::of(base, length), arguments...);
  }
  static size_t referenced(void* module) { return pool_of(module)->referenced(); }
  static size_t max_reg_size(void* module) { return pool_of(module)->max_reg_size(); }
  static void counters(void* module, pinrail_mpool_stats_t* stats_out) { pool_of(module)->counters(stats_out); }
  static pinrail_status_t check(void* module) {
    return pool_of(module)->check() == nullptr ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
  }
  static void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
    pool_of(module)->invalidate_range_hook(Span::of(base, length));
  }

  // Returns what all pools have in their table; the component adds the rest.
  static constexpr pinrail_mpool_ops_t table() {
    auto ops = sized<pinrail_mpool_ops_t>();
    ops.create = create;
    ops.destroy = call<&Pool::destroy>;
    ops.referenced = referenced;
    ops.register_mem = call_on_span<&Pool::register_mem>;
    ops.find = call_on_span<&Pool::find>;
    ops.deregister = call<&Pool::deregister>;
    ops.invalidate_range_hook = invalidate_range_hook;
    ops.evict = call<&Pool::evict>;
    ops.progress = call<&Pool::progress>;
    ops.stats = call<&Pool::stats>;
    ops.max_reg_size = max_reg_size;
    ops.counters = counters;
    ops.check = check;
    ops.ft_event = call<&Pool::ft_event>;
    return ops;
  }

  // Returns what pools of host memory have besides.
  static constexpr pinrail_mpool_ops_t memory_table() {
    pinrail_mpool_ops_t ops = table();
    ops.kinds = PINRAIL_KIND_HOST;
    ops.query = call_on_span<&Pool::query>;
    return ops;
  }
};

}  // namespace pinrail::mpool

#endif
