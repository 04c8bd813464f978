// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/grdma: forwards to Both.
#include "base/core/own_component.h"
#include "components/mpool/grdma/grdma_both.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::grdma {
namespace {

constexpr char kHelp[] =
#include "components/mpool/grdma/grdma_help.txt"
    ;

constexpr pinrail_enum_value_t kGcThread[] = {{-1, "auto"}, {0, "never"}, {1, "always"}, {0, nullptr}};

constexpr pinrail_enum_value_t kRights[] = {{0, "asked"}, {1, "all"}, {0, nullptr}};

constexpr pinrail_param_t kParams[] = {
    mpool::leave_pinned_param(
        "auto",
        "Whether memory stays registered when it is released. auto: yes if a memory monitor works here. no: every "
        "transfer pays a registration. yes: refused without a monitor, for stale registrations corrupt data."),
    mpool::size_limit_param(
        "Most bytes kept registered by the pools of one cache, in use or not. 0: no limit. Too low: transfers pay for "
        "registrations again, or fail while everything is in use. The default is derived from the machine "
        "(mpool_default_limits); unlike a value that is set, it evicts what is idle and refuses nothing."),
    mpool::count_limit_param("Most registrations kept by the pools of one cache, in use or not. 0: no limit."),
    mpool::param("gc_limit", "64M",
                 "Bytes of dead registrations that may wait for a later call; above that the next call deregisters "
                 "them first.",
                 PINRAIL_TYPE_SIZE, 6),
    mpool::param(
        "gc_thread", "auto",
        "Whether a thread deregisters dead memory even if no call does: when gc_limit is exceeded, and 100 ms "
        "after the first. auto: for pools that keep memory registered. always: for all. never: only calls do, and a "
        "program that makes none keeps dead memory pinned. A pool whose registrar only its owner may call (CALLER) "
        "never has it: there the bound holds only after pinrail_mpool_progress.",
        PINRAIL_TYPE_ENUM, 6, nullptr, 0, 0, kGcThread),
    mpool::max_reg_size_param(
        "Largest piece in bytes that the chunk iterator cuts a buffer into, so that transfers pipeline and little is "
        "pinned needlessly. Registrations themselves are not cut."),
    mpool::param(
        "rights", "all",
        "Rights that a miss registers with. all: every right, or those of the request where the memory or the "
        "device refuses more; so one registration answers all later requests of its range, and a peer that has "
        "its key may read and write it. asked: those of the request. EXACT pools always do as with asked.",
        PINRAIL_TYPE_ENUM, 5, nullptr, 0, 0, kRights),
    mpool::param("extent", "2M",
                 "Bytes of the aligned window around a request that a miss registers as well, as far as the pages are "
                 "the process's own, in the same mapping and present already; rounded down to a power of two. Windows "
                 "become smaller where memory events make this useless. Not done in EXACT pools, where a size_limit is "
                 "set, with registrar mlock, and in mappings of files. 0: exactly the pages of the request.",
                 PINRAIL_TYPE_SIZE, 5, nullptr, 0, INT64_MAX),
    mpool::kRcacheName,
    mpool::param(
        "gpu_registrar", "",
        "Registrar that knows GPU memory (cuda_ipc): with it, GPU memory is recognised and registered whole, by dmabuf "
        "or peer memory (GPUDirect). Starts the GPU's driver with the first pool. Empty: all memory is taken for "
        "the "
        "host's.",
        PINRAIL_TYPE_STRING, 3),
    mpool::kEmptyCache,
    mpool::kCheck,
    mpool::kPrintStats,
};

constexpr const char* kSynonymPrefixes[] = {"rcache_grdma_", nullptr};

using Forward = mpool::Forward<Component, Both>;

void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
  Forward::pool_of(module)->invalidate_range_hook(Span::of(base, length));
}

pinrail_status_t register_with(void* module, pinrail_thread_t* thread, uintptr_t addr, size_t length,
                               uint64_t access_and_flags, const pinrail_register_options_t* options,
                               pinrail_handle_t* handle_out) {
  return guarded([&] {
    return Forward::pool_of(module)->register_with(thread, Span::of(addr, length), access_and_flags, *options,
                                                   handle_out);
  });
}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.register_mem = Forward::register_mem;
  ops.register_with = register_with;
  ops.invalidate_range_hook = invalidate_range_hook;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 50, "mpool", "grdma", "RDMA: caches registrations of host memory.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams, kSynonymPrefixes);

}  // namespace
}  // namespace pinrail::grdma

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::grdma::kComponent;
