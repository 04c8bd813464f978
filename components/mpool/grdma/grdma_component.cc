// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/grdma: forwards to Pool.
#include <new>

#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {
namespace {

constexpr char kHelp[] =
#include "components/mpool/grdma/grdma_help.txt"
    ;

constexpr pinrail_enum_value_t kGcThread[] = {{-1, "auto"}, {0, "never"}, {1, "always"}, {0, nullptr}};
constexpr pinrail_enum_value_t kLeavePinned[] = {{-1, "auto"}, {0, "no"}, {1, "yes"}, {0, nullptr}};

constexpr pinrail_param_t size_param(const char* name, const char* fallback, int level, const char* help) {
  return {sizeof(pinrail_param_t),
          name,
          fallback,
          help,
          PINRAIL_TYPE_SIZE,
          PINRAIL_SCOPE_READONLY,
          level,
          nullptr,
          0,
          0,
          nullptr};
}
constexpr pinrail_param_t bool_param(const char* name, int level, const char* help) {
  return {sizeof(pinrail_param_t),
          name,
          "no",
          help,
          PINRAIL_TYPE_BOOL,
          PINRAIL_SCOPE_READONLY,
          level,
          nullptr,
          0,
          0,
          nullptr};
}

constexpr pinrail_param_t kParams[] = {
    {sizeof(pinrail_param_t), "leave_pinned", "auto",
     "Whether memory stays registered when it is released. auto: yes if a memory monitor works here. no: every "
     "transfer pays a registration. yes: refused without a monitor, for stale registrations corrupt data.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 3, kLeavePinned, 0, 0, nullptr},
    size_param("size_limit", "unlimited", 4,
               "Most bytes kept registered by the pools of one cache, in use or not. 0: no limit. Too low: transfers "
               "pay for registrations again, or fail while everything is in use."),
    {sizeof(pinrail_param_t), "count_limit", "unlimited",
     "Most registrations kept by the pools of one cache, in use or not. 0: no limit.", PINRAIL_TYPE_SIZE,
     PINRAIL_SCOPE_READONLY, 4, nullptr, 0, 0, nullptr},
    size_param("gc_limit", "64M", 6,
               "Bytes of dead registrations that may wait for a call that has time; above that the next call gives "
               "them back first."),
    {sizeof(pinrail_param_t), "gc_thread", "auto",
     "Whether a thread gives back dead registrations although nobody calls: when gc_limit is exceeded, and 100 ms "
     "after the first. auto: for pools that keep memory registered. always: for all. never: only calls do, and a "
     "program that makes none keeps dead memory pinned. A registrar that may be called by its owner alone (CALLER) "
     "never has "
     "it: there the bound holds only across pinrail_mpool_progress.",
     PINRAIL_TYPE_ENUM, PINRAIL_SCOPE_READONLY, 6, kGcThread, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "max_reg_size", "2M",
     "Largest piece in bytes that the chunk iterator cuts a buffer into, so that transfers pipeline and little is "
     "pinned needlessly. Registrations themselves are not cut.",
     PINRAIL_TYPE_SIZE, PINRAIL_SCOPE_READONLY, 5, nullptr, 1, INT64_MAX, nullptr},
    {sizeof(pinrail_param_t), "rcache_name", "vma", "Component that indexes the registrations.", PINRAIL_TYPE_STRING,
     PINRAIL_SCOPE_READONLY, 7, nullptr, 0, 0, nullptr},
    {sizeof(pinrail_param_t), "gpu_registrar", "",
     "Registrar that knows GPU memory (cuda_ipc): with it, GPU memory is recognised and registered whole, by dmabuf or "
     "peer memory (GPUDirect). Starts the GPU's driver with the first pool. Empty: all memory is taken for the host's.",
     PINRAIL_TYPE_STRING, PINRAIL_SCOPE_READONLY, 4, nullptr, 0, 0, nullptr},
    bool_param("empty_cache", 6, "When room is needed, give back everything idle at once instead of the oldest one."),
    bool_param("print_stats", 5, "Print the pool's figures when it is destroyed."),
};

constexpr const char* kSynonymPrefixes[] = {"rcache_grdma_", nullptr};

Pool* pool_of(void* module) { return static_cast<Pool*>(module); }

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* component = new (std::nothrow) Component(host);
  if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = component;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Component*>(context); }

pinrail_status_t create(void* component, const pinrail_mpool_config_t* config, void** module_out) {
  return guarded([&] {
    Pool* pool = nullptr;
    const Status status = Pool::create(static_cast<Component*>(component), *config, &pool);
    if (status.ok()) *module_out = pool;
    return status;
  });
}

pinrail_status_t destroy(void* module, pinrail_thread_t* thread, uint32_t flags) {
  return guarded([&] { return pool_of(module)->destroy(thread, flags); });
}

size_t referenced(void* module) { return pool_of(module)->referenced(); }

pinrail_status_t find(void* module, pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t how,
                      pinrail_handle_t* handle_out) {
  return guarded([&] { return pool_of(module)->find(thread, addr, length, how, handle_out); });
}

void shortcut(void* module, pinrail_shortcut_t* shortcut_out) { *shortcut_out = pool_of(module)->shortcut(); }

void dropped_dead(void* module, pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t state) {
  pool_of(module)->dropped_dead(thread, handle, state);
}

void invalidate_range(void* module, uintptr_t base, size_t length) {
  pool_of(module)->invalidate_all_kinds_hook(Span::of(base, length));
}

pinrail_status_t evict(void* module, pinrail_thread_t* thread) {
  return guarded([&] { return pool_of(module)->evict(thread); });
}

pinrail_status_t progress(void* module, pinrail_thread_t* thread) {
  return guarded([&] { return pool_of(module)->progress(thread); });
}

pinrail_status_t ft_event(void* module, pinrail_thread_t* thread, pinrail_ft_state_t state) {
  return guarded([&] { return pool_of(module)->ft_event(thread, state); });
}

pinrail_status_t stats(void* module, pinrail_mpool_stats_t* stats_out) {
  return guarded([&] {
    pool_of(module)->stats(stats_out);
    return success();
  });
}

void counters(void* module, pinrail_mpool_stats_t* stats_out) { pool_of(module)->counters(stats_out); }

size_t max_reg_size(void* module) { return pool_of(module)->max_reg_size(); }

pinrail_status_t check(void* module) {
  const char* why = pool_of(module)->check();
  return why == nullptr ? PINRAIL_SUCCESS : PINRAIL_ERR_ERROR;
}

constexpr pinrail_mpool_ops_t kOps = {sizeof(pinrail_mpool_ops_t),
                                      create,
                                      shortcut,
                                      destroy,
                                      referenced,
                                      Pool::register_entry,
                                      find,
                                      Pool::deregister_entry,
                                      dropped_dead,
                                      invalidate_range,
                                      evict,
                                      progress,
                                      stats,
                                      max_reg_size,
                                      counters,
                                      check,
                                      0,
                                      nullptr,
                                      nullptr,
                                      ft_event};

}  // namespace
}  // namespace pinrail::grdma

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {
    sizeof(pinrail_component_t),
    PINRAIL_MPOOL_ABI,
    50,
    "mpool",
    "grdma",
    "1.0.0",
    "RDMA: caches registrations of host memory.",
    pinrail::grdma::kHelp,
    pinrail::grdma::kParams,
    sizeof(pinrail::grdma::kParams) / sizeof(pinrail::grdma::kParams[0]),
    pinrail::grdma::kSynonymPrefixes,
    pinrail::grdma::open,
    pinrail::grdma::close,
    &pinrail::grdma::kOps};
