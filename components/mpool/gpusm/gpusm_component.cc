// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/gpusm; the functions forward to Pool. API context, except
// invalidate_range_hook(). The caller holds no lock and may hold references.
#include "base/core/own_component.h"
#include "components/mpool/gpusm/gpusm.h"

namespace pinrail::gpusm {
namespace {

constexpr char kHelp[] =
#include "components/mpool/gpusm/gpusm_help.txt"
    ;

constexpr pinrail_enum_value_t kFree[] = {{0, "notify"}, {1, "defer"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param("yes",
                              "Whether a block stays known while its allocation is not registered. no: a block is "
                              "good only while it is registered, and pinrail_mpool_export() is not supported."),
    mpool::size_limit_param("Most bytes of GPU memory whose blocks are known to the pools of one cache. 0: no limit. "
                            "Too low: blocks that peers still use die, and are made anew.",
                            nullptr),
    gpu_pool::kCountLimit,
    mpool::kEmptyCache,
    mpool::kPrintStats,
    gpu_pool::kGcInterval,
    gpu_pool::kMaxRegSize,
    mpool::param("max_exports", "65536",
                 "Most allocations of one pool that are exported at a time; each takes 40 bytes of shared memory.",
                 PINRAIL_TYPE_UNSIGNED, 6, nullptr, 1, 1 << 24),
    mpool::param(
        "free", "notify",
        "What a free of exported memory does. notify: it is freed at once, and peers see that. defer: it waits, "
        "at most free_timeout, until they have closed it, as CUDA asks of its users.",
        PINRAIL_TYPE_ENUM, 3, nullptr, 0, 0, kFree),
    mpool::param("free_timeout", "1000",
                 "Milliseconds that a deferred free waits at most. Peers that have crashed are not waited for.",
                 PINRAIL_TYPE_UNSIGNED, 5, nullptr, 0, 3600000)};

constexpr const char* kSynonymPrefixes[] = {"rcache_gpusm_", nullptr};

using Forward = mpool::Forward<Component, Pool, gpu_pool::Pool>;

void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
  Forward::pool_of(module)->free_hook(base, length);
}

pinrail_status_t export_range(void* module, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                              pinrail_gpu_block_t* block_out, size_t* offset_out) {
  return guarded([&] { return Forward::pool_of(module)->export_range(thread, addr, length, block_out, offset_out); });
}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::table();
  ops.register_mem = Forward::register_mem;
  ops.invalidate_range_hook = invalidate_range_hook;
  ops.kinds = PINRAIL_KIND_GPU;
  ops.export_range = export_range;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 30, "mpool", "gpusm",
                         "GPU memory across processes, owner's side: blocks by which peers open local GPU memory.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::gpusm

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::gpusm::kComponent;
