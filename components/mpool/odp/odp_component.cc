// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/odp: forwards to Pool.
#include "components/mpool/odp/odp.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::odp {
namespace {

constexpr char kHelp[] =
#include "components/mpool/odp/odp_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    mpool::size_limit_param(
        "Most bytes that the pools of one cache register on demand, whole tiles. 0: no limit. Nothing of it is pinned; "
        "limits of other pools do not count it."),
    mpool::count_limit_param("Most registrations of the pools of one cache. 0: no limit."),
    mpool::max_reg_size_param("Piece in bytes of the chunk iterator."),
    mpool::param("tile_size", "64M",
                 "Bytes of the address space that one registration covers, a power of two. Larger: fewer misses; the "
                 "device's tables and what a key opens to peers grow with it. The device's page size: a registration "
                 "covers what was asked for, and no more.",
                 PINRAIL_TYPE_SIZE, 5, nullptr, 4096, INT64_MAX),
    mpool::kRcacheName,
    mpool::kPrintStats,
};

using Forward = mpool::Forward<Component, Pool, Common>;

// Memory events end no registration (odp/O2).
void invalidate_range_hook(void*, uintptr_t, size_t) {}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.register_mem = Forward::register_mem;
  ops.invalidate_range_hook = invalidate_range_hook;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

}  // namespace
}  // namespace pinrail::odp

extern "C" PINRAIL_API const pinrail_component_t PINRAIL_COMPONENT_SYMBOL;
const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = {
    sizeof(pinrail_component_t),
    PINRAIL_MPOOL_ABI,
    5,
    "mpool",
    "odp",
    "1.0.0",
    "Host memory that is not pinned: the device faults pages in. For working sets larger than what may be pinned.",
    pinrail::odp::kHelp,
    pinrail::odp::kParams,
    sizeof(pinrail::odp::kParams) / sizeof(pinrail::odp::kParams[0]),
    nullptr,
    pinrail::odp::Forward::open,
    pinrail::odp::Forward::close,
    &pinrail::odp::kOps};
