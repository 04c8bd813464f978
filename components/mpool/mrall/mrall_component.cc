// SPDX-License-Identifier: BSD-3-Clause
// Descriptor, parameters and table of mpool/mrall: forwards to Pool.
#include "base/core/own_component.h"
#include "components/mpool/mrall/mrall.h"
#include "framework/mpool/forward.h"
#include "framework/mpool/params.h"

namespace pinrail::mrall {
namespace {

constexpr char kHelp[] =
#include "components/mpool/mrall/mrall_help.txt"
    ;

constexpr pinrail_param_t kParams[] = {
    mpool::size_limit_param(
        "Most bytes that the pools of one cache register. 0: no limit. What does not fit is left out: requests for it "
        "fail. Without a limit, a process that maps more memory than the machine has is killed."),
    mpool::count_limit_param(
        "Most registrations of the pools of one cache. 0: no limit. What does not fit is left out."),
    mpool::max_reg_size_param(
        "Piece in bytes of the chunk iterator. A request that lies in two registrations gets one of its own that ends "
        "at multiples of this size."),
    mpool::param(
        "largest_piece", "64M",
        "A mapping is registered in pieces of at most so many bytes. Larger: an event in a piece makes more to "
        "register again. Smaller: more requests lie in two pieces.",
        PINRAIL_TYPE_SIZE, 6, nullptr, 4096, INT64_MAX),
    mpool::param("rescan", "1000",
                 "Milliseconds between two looks at all mappings, for changes that no monitor reports: mprotect, and "
                 "system calls without the C library. A request for such memory does not wait for that. 0: never.",
                 PINRAIL_TYPE_UNSIGNED, 6, nullptr, 0, 3600000),
    mpool::kRcacheName,
    mpool::kPrintStats,
};

using Forward = mpool::Forward<Component, Pool>;

void invalidate_range_hook(void* module, uintptr_t base, size_t length) {
  Forward::pool_of(module)->invalidate_range_hook(Span::of(base, length));
}

pinrail_status_t left_out(void* module, pinrail_left_out_t* entries_out, size_t room, size_t* count_out) {
  return guarded([&] { *count_out = Forward::pool_of(module)->left_out(entries_out, room); });
}

constexpr pinrail_mpool_ops_t make_table() {
  pinrail_mpool_ops_t ops = Forward::memory_table();
  ops.register_mem = Forward::register_mem;
  ops.invalidate_range_hook = invalidate_range_hook;
  ops.left_out = left_out;
  return ops;
}
constexpr pinrail_mpool_ops_t kOps = make_table();

constexpr pinrail_component_t kComponent =
    with_params(describe(PINRAIL_MPOOL_ABI, 10, "mpool", "mrall",
                         "Host memory, all of it: whatever the process maps is registered, before it is asked for.",
                         Forward::open, Forward::close, &kOps),
                kHelp, kParams);

}  // namespace
}  // namespace pinrail::mrall

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL = pinrail::mrall::kComponent;
