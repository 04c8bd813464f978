// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_way.h"

namespace pinrail::pingpong {

bool PlainWay::pin(void* address, size_t bytes, Pin* out) {
  out->mr = ibv_reg_mr(pd_, address, bytes, IBV_ACCESS_LOCAL_WRITE);
  if (out->mr == nullptr) return false;
  out->lkey = out->mr->lkey;
  ++counts_.registrations;
  return true;
}

bool PlainWay::unpin(const Pin& pin) { return ibv_dereg_mr(pin.mr) == 0; }

pinrail_status_t PoolWay::open(ibv_pd* pd) {
  pinrail_registrar_choice_t choice{};
  choice.name = "verbs";
  choice.native = pd;
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.leave_pinned = keeps() ? 1 : 0;
  // A cache name of its own: neither pool evicts from the other one.
  return pinrail_mpool_create("grdma", &choice, name(), &options, &pool_);
}

pinrail_status_t PoolWay::close() { return pool_ == nullptr ? PINRAIL_SUCCESS : pinrail_mpool_destroy(pool_, 0); }

bool PoolWay::pin(void* address, size_t bytes, Pin* out) {
  if (pinrail_mpool_register(pool_, address, bytes, PINRAIL_ACCESS_LOCAL_WRITE, 0, &out->handle) != PINRAIL_SUCCESS)
    return false;
  out->lkey = out->handle.reg->lkey;
  return true;
}

bool PoolWay::unpin(const Pin& pin) { return pinrail_mpool_deregister(pin.handle) == PINRAIL_SUCCESS; }

void PoolWay::report_unmap(void* address, size_t bytes) {
  if (reports_ == Reports::yes) pinrail_monitor_report(address, bytes);
}

Counts PoolWay::counts() const {
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  if (pinrail_mpool_read_stats(pool_, &stats) != PINRAIL_SUCCESS) return {};
  return {stats.misses + stats.retries, stats.hits, stats.evictions};
}

}  // namespace pinrail::pingpong
