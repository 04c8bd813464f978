// SPDX-License-Identifier: BSD-3-Clause
// library.h - an initialised library and a pool over a fake registrar, for tests of what embedders see.
#ifndef PINRAIL_TEST_SUPPORT_LIBRARY_H
#define PINRAIL_TEST_SUPPORT_LIBRARY_H

#include <gtest/gtest.h>
#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "framework/mpool/mpool.h"  // the layout of a pool, to reach its check()
#include "test/fake/fake_registrar.h"

namespace pinrail::test {

using Settings = std::vector<std::pair<std::string, std::string>>;

// pinrail_init() with these settings; "monitor=external", no gc thread and no extents unless they say otherwise.
class Library {
 public:
  explicit Library(const Settings& settings = {}) {
    std::vector<pinrail_setting_t> given;
    for (const auto& setting : settings) given.push_back({setting.first.c_str(), setting.second.c_str()});
    // Tests look at what is dead, which the thread would give back while they do, and at the ranges that they ask for.
    const pinrail_setting_t defaults[] = {{"monitor", "external"},
                                          {"mpool_grdma_gc_thread", "never"},
                                          {"mpool_grdma_extent", "0"},
                                          {"mpool_default_limits", "no"}};
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.defaults = defaults;
    options.default_count = std::size(defaults);
    options.settings = given.data();
    options.setting_count = given.size();
    status = pinrail_init(&options);
  }
  ~Library() {
    if (status == PINRAIL_SUCCESS) {
      EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  pinrail_status_t status;
};

inline pinrail_registrar_choice_t lend(const pinrail_registrar_t& table) {
  pinrail_registrar_choice_t choice{};
  choice.table = &table;
  return choice;
}
inline pinrail_registrar_choice_t lend(const fake::FakeRegistrar& registrar) { return lend(*registrar.table()); }

struct PoolOptions {
  int64_t leave_pinned = 1;
  int64_t size_limit = PINRAIL_UNSET;
  int64_t count_limit = PINRAIL_UNSET;
  uint32_t flags = 0;
  const char* cache_name = nullptr;
};

// A pool of whatever mpool, and what tests ask of each.
class AnyPool {
 public:
  AnyPool(const AnyPool&) = delete;
  AnyPool& operator=(const AnyPool&) = delete;

  pinrail_status_t close(uint32_t flags = 0) {
    if (pool_ == nullptr) return PINRAIL_SUCCESS;
    const pinrail_status_t closed = pinrail_mpool_destroy(pool_, flags);
    if (closed == PINRAIL_SUCCESS) pool_ = nullptr;
    return closed;
  }
  pinrail_mpool_t* get() const { return pool_; }
  pinrail_mpool_stats_t stats() const {
    pinrail_mpool_stats_t figures{};
    figures.size = sizeof(figures);
    EXPECT_EQ(pinrail_mpool_read_stats(pool_, &figures), PINRAIL_SUCCESS);
    return figures;
  }
  // The invariants of the pool and of its index.
  bool invariants_hold() const { return pool_->ops->check(pool_->module) == PINRAIL_SUCCESS; }

  pinrail_status_t status = PINRAIL_ERR_ERROR;  // of its making

 protected:
  AnyPool() = default;
  ~AnyPool() = default;
  void make(const char* mpool, const pinrail_registrar_choice_t& registrar, const PoolOptions& wanted) {
    pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
    options.leave_pinned = wanted.leave_pinned;
    options.size_limit = wanted.size_limit;
    options.count_limit = wanted.count_limit;
    options.flags = wanted.flags;
    status = pinrail_mpool_create(mpool, &registrar, wanted.cache_name, &options, &pool_);
  }
  pinrail_mpool_t* pool_ = nullptr;
};

// Tests of one pool on one device. P is a kind of AnyPool that is made from a FakeRegistrar and PoolOptions.
template <typename P>
class OnePool : public testing::Test {
 protected:
  // defaults: settings that the other ones override.
  void make(const Settings& defaults, const Settings& settings, const fake::FakeOptions& fake,
            const PoolOptions& options) {
    Settings all = defaults;
    all.insert(all.end(), settings.begin(), settings.end());
    library_ = std::make_unique<Library>(all);
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    device_ = std::make_unique<fake::FakeRegistrar>(fake);
    pool_ = std::make_unique<P>(*device_, options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_TRUE(pool_->invariants_hold());
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->live_count(), 0u) << "destroy leaves nothing at the device";
    EXPECT_EQ(device_->violations(), std::vector<std::string>{});
  }

  std::unique_ptr<Library> library_;
  std::unique_ptr<fake::FakeRegistrar> device_;
  std::unique_ptr<P> pool_;
};

// One of host memory, that is destroyed at the end with whatever is still referenced.
class Pool : public AnyPool {
 public:
  explicit Pool(const pinrail_registrar_t& table, const PoolOptions& wanted = {}) {
    make("grdma", lend(table), wanted);
  }
  explicit Pool(const fake::FakeRegistrar& registrar, const PoolOptions& wanted = {})
      : Pool(*registrar.table(), wanted) {}
  ~Pool() { close(PINRAIL_DESTROY_FORCE); }

  pinrail_status_t reg(uintptr_t base, size_t length, pinrail_handle_t* handle_out, uint32_t access = 1,
                       uint32_t flags = 0) const {
    return pinrail_mpool_register(pool_, reinterpret_cast<void*>(base), length, access, flags, handle_out);
  }
  // Registers, and expects that it works.
  pinrail_handle_t must(uintptr_t base, size_t length, uint32_t access = 1, uint32_t flags = 0) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(reg(base, length, &handle, access, flags), PINRAIL_SUCCESS);
    return handle;
  }
  // Registers and releases.
  void use(uintptr_t base, size_t length, uint32_t access = 1, uint32_t flags = 0) const {
    EXPECT_EQ(pinrail_mpool_deregister(must(base, length, access, flags)), PINRAIL_SUCCESS);
  }
  // Whether the cache has it; leaves no reference.
  bool has(uintptr_t base, size_t length, uint32_t access = 1) const {
    pinrail_handle_t handle{};
    if (pinrail_mpool_find(pool_, reinterpret_cast<void*>(base), length, access, &handle) != PINRAIL_SUCCESS) {
      return false;
    }
    EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    return true;
  }
};

inline void report(uintptr_t base, size_t length) { pinrail_monitor_report(reinterpret_cast<void*>(base), length); }

constexpr size_t kPage = 4096;

}  // namespace pinrail::test

#endif
