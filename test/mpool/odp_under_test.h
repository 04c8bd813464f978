// SPDX-License-Identifier: BSD-3-Clause
// odp_under_test.h - a pool of mpool/odp on a registrar of our own.
#ifndef PINRAIL_TEST_MPOOL_ODP_UNDER_TEST_H
#define PINRAIL_TEST_MPOOL_ODP_UNDER_TEST_H

#include "test/support/library.h"

namespace pinrail::test {

constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ;
constexpr uint32_t kWrite = PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_LOCAL_WRITE;
constexpr size_t kTile = size_t{1} << 20;
constexpr uintptr_t kBase = uintptr_t{1} << 40;  // nothing is mapped there, which does not matter

inline fake::FakeOptions paging(uint64_t how = PINRAIL_ON_DEMAND_EXPLICIT) {
  fake::FakeOptions options;
  options.on_demand = how;
  return options;
}

class OdpPool : public Pool {
 public:
  explicit OdpPool(const pinrail_registrar_t& table, const PoolOptions& options = {})
      : Pool(lend(table), {PINRAIL_UNSET, options.size_limit, options.count_limit, options.flags, options.cache_name},
             "odp", kRead) {}
  explicit OdpPool(const fake::FakeRegistrar& device, const PoolOptions& options = {})
      : OdpPool(*device.table(), options) {}
};

class Odp : public OnePool<OdpPool> {
 protected:
  void start(const fake::FakeOptions& fake = paging(), const PoolOptions& options = {}, const Settings& settings = {}) {
    make(with({{"monitor", "none"}, {"mpool_odp_tile_size", "1M"}}, settings), fake, options);
  }
};

}  // namespace pinrail::test

#endif
