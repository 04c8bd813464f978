// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/rgpusm; the functions forward to Pool. API context, except
// invalidate_range_hook(). The caller holds no lock and may hold references.
#include "base/core/own_component.h"
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {
namespace {

constexpr char kHelp[] =
#include "components/mpool/rgpusm/rgpusm_help.txt"
    ;

constexpr const char* kOldSizeLimit[] = {"mpool_rgpusm_rcache_size_limit", nullptr};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param("yes",
                              "Whether a peer's memory stays mapped when it is released. no: every transfer opens and "
                              "closes it, some 100 us."),
    mpool::size_limit_param("Most bytes of peers' memory mapped by the pools of one cache, in use or not. 0: no limit. "
                            "With leave_pinned one that was not used lately goes; without, a request above it fails.",
                            kOldSizeLimit),
    gpu_pool::kCountLimit,
    mpool::kEmptyCache,
    mpool::kPrintStats,
    gpu_pool::kGcInterval,
    gpu_pool::kMaxRegSize};

constexpr const char* kSynonymPrefixes[] = {"rcache_rgpusm_", nullptr};

using Forward = mpool::Forward<Component, Pool, gpu_pool::Pool>;

// This pool registers no memory of this process.
pinrail_status_t register_mem(void*, pinrail_thread_t*, uintptr_t, size_t, uint64_t, pinrail_handle_t*) {
  return PINRAIL_ERR_NOT_SUPPORTED;
}

void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
  Forward::pool_of(module)->invalidate_range_hook(base, length);
}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::table();
  ops.register_mem = register_mem;
  ops.invalidate_range_hook = invalidate_range_hook;
  ops.kinds = PINRAIL_KIND_REMOTE;
  ops.register_remote = Pool::register_entry;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent = with_params(
    describe(PINRAIL_MPOOL_ABI, 20, "mpool", "rgpusm",
             "GPU memory across processes, peer's side: opens other processes' GPU memory and keeps it open.",
             Forward::open, Forward::close, &kOps),
    kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::rgpusm

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::rgpusm::kComponent;
