// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/rgpusm: forwards to Pool.
#include <new>

#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

constexpr char kHelp[] =
#include "components/mpool/rgpusm/rgpusm_help.txt"
    ;

constexpr const char* kOldSizeLimit[] = {"mpool_rgpusm_rcache_size_limit", nullptr};

constexpr pinrail_param_t kParams[] = {
    exact::leave_pinned_param("Whether a peer's memory stays mapped when it is released. no: every transfer opens and "
                              "closes it, some 100 us."),
    exact::size_limit_param("Most bytes of peers' memory mapped by the pools of one cache, in use or not. 0: no limit. "
                            "With leave_pinned the least recently used goes; without, a request above it fails.",
                            kOldSizeLimit),
    exact::kCountLimit,
    exact::kEmptyCache,
    exact::kPrintStats,
    exact::kGcInterval,
    exact::kMaxRegSize};

constexpr const char* kSynonymPrefixes[] = {"rcache_rgpusm_", nullptr};

Pool* own(void* module) { return static_cast<Pool*>(exact::pool_of(module)); }

pinrail_status_t open(const pinrail_host_t* host, void** context_out) {
  auto* component = new (std::nothrow) Component(host);
  if (component == nullptr) return PINRAIL_ERR_OUT_OF_RESOURCE;
  *context_out = component;
  return PINRAIL_SUCCESS;
}

void close(void* context) { delete static_cast<Component*>(context); }

pinrail_status_t create(void* component, const pinrail_mpool_config_t* config, void** module_out) {
  return guarded([&] {
    exact::Pool* pool = nullptr;
    const Status status = Pool::create(static_cast<Component*>(component), *config, &pool);
    if (status.ok()) *module_out = pool;
    return status;
  });
}

// There is no memory of one's own to register here.
pinrail_status_t register_mem(void*, pinrail_thread_t*, uintptr_t, size_t, uint64_t, pinrail_handle_t*) {
  return PINRAIL_ERR_NOT_SUPPORTED;
}

// By where it is mapped. Looks through all: for messages and tests, not for transfers.
pinrail_status_t find(void* module, pinrail_thread_t* thread, uintptr_t addr, size_t length, uint64_t,
                      pinrail_handle_t* handle_out) {
  return guarded([&] {
    pinrail_registration_t* reg = nullptr;
    const Status status = own(module)->find_local(thread, addr, length, &reg);
    if (status.ok()) *handle_out = exact::handle_of(reg);
    return status;
  });
}

void invalidate_range(void* module, uintptr_t base, size_t length) { own(module)->invalidate_range_hook(base, length); }

constexpr pinrail_mpool_ops_t kOps = {sizeof(pinrail_mpool_ops_t),
                                      create,
                                      exact::no_shortcut,
                                      exact::destroy,
                                      exact::referenced,
                                      register_mem,
                                      find,
                                      Pool::deregister_entry,
                                      exact::dropped_dead,
                                      invalidate_range,
                                      exact::evict,
                                      exact::progress,
                                      exact::stats,
                                      exact::max_reg_size,
                                      exact::counters,
                                      exact::check,
                                      PINRAIL_KIND_REMOTE,
                                      nullptr,
                                      Pool::register_entry,
                                      exact::ft_event};

}  // namespace
}  // namespace pinrail::rgpusm

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {
    sizeof(pinrail_component_t),
    PINRAIL_MPOOL_ABI,
    20,
    "mpool",
    "rgpusm",
    "1.0.0",
    "GPU memory across processes, peer's side: opens other processes' GPU memory and keeps it open.",
    pinrail::rgpusm::kHelp,
    pinrail::rgpusm::kParams,
    sizeof(pinrail::rgpusm::kParams) / sizeof(pinrail::rgpusm::kParams[0]),
    pinrail::rgpusm::kSynonymPrefixes,
    pinrail::rgpusm::open,
    pinrail::rgpusm::close,
    &pinrail::rgpusm::kOps};
