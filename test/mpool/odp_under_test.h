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

class OdpPool : public AnyPool {
 public:
  explicit OdpPool(const pinrail_registrar_t& table, PoolOptions options = {}) {
    options.leave_pinned = PINRAIL_UNSET;
    make("odp", lend(table), options);
  }
  explicit OdpPool(const fake::FakeRegistrar& device, const PoolOptions& options = {})
      : OdpPool(*device.table(), options) {}
  ~OdpPool() { close(PINRAIL_DESTROY_FORCE); }

  pinrail_status_t reg(uintptr_t at, size_t length, pinrail_handle_t* handle_out, uint32_t access = kRead,
                       uint32_t flags = 0) const {
    return pinrail_mpool_register(pool_, reinterpret_cast<void*>(at), length, access, flags, handle_out);
  }
  pinrail_handle_t must(uintptr_t at, size_t length, uint32_t access = kRead, uint32_t flags = 0) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(reg(at, length, &handle, access, flags), PINRAIL_SUCCESS);
    return handle;
  }
  void use(uintptr_t at, size_t length, uint32_t access = kRead) const {
    EXPECT_EQ(pinrail_mpool_deregister(must(at, length, access)), PINRAIL_SUCCESS);
  }
  bool has(uintptr_t at, size_t length, uint32_t access = kRead) const {
    pinrail_handle_t handle;
    if (pinrail_mpool_find(pool_, reinterpret_cast<void*>(at), length, access, &handle) != PINRAIL_SUCCESS)
      return false;
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    return true;
  }
};

class Odp : public OnePool<OdpPool> {
 protected:
  void start(const fake::FakeOptions& fake = paging(), const PoolOptions& options = {}, const Settings& settings = {}) {
    make({{"monitor", "none"}, {"mpool_odp_tile_size", "1M"}}, settings, fake, options);
  }
};

}  // namespace pinrail::test

#endif
