// SPDX-License-Identifier: BSD-3-Clause
// library.h - an initialised library and a pool over a fake registrar, for tests of what embedders see.
#ifndef PINRAIL_TEST_SUPPORT_LIBRARY_H
#define PINRAIL_TEST_SUPPORT_LIBRARY_H

#include <gtest/gtest.h>
#include <pinrail/component_mpool.h>
#include <pinrail/pinrail.h>
#include <sys/wait.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/mpool/mpool.h"  // the layout of a pool, to reach its check()
#include "test/fake/fake_registrar.h"
#include "test/support/cases.h"

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
inline pinrail_registrar_choice_t named(const char* registrar) {
  pinrail_registrar_choice_t choice{};
  choice.name = registrar;
  return choice;
}

struct PoolOptions {
  int64_t leave_pinned = 1;
  int64_t size_limit = PINRAIL_UNSET;
  int64_t count_limit = PINRAIL_UNSET;
  uint32_t flags = 0;
  const char* cache_name = nullptr;
};
inline PoolOptions at_most(int64_t count) { return {1, PINRAIL_UNSET, count}; }
inline PoolOptions at_most_bytes(int64_t bytes) { return {1, bytes}; }
inline PoolOptions not_kept() { return {0}; }

inline void drop(pinrail_handle_t handle) { EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS); }

// A reference that is dropped at the end of its scope.
class Held {
 public:
  explicit Held(pinrail_handle_t handle) : reg(handle.reg), handle_(handle) {}
  ~Held() { drop(handle_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  const pinrail_registration_t* const reg;

 private:
  const pinrail_handle_t handle_;
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
    auto figures = sized<pinrail_mpool_stats_t>();
    EXPECT_EQ(pinrail_mpool_read_stats(pool_, &figures), PINRAIL_SUCCESS);
    return figures;
  }
  // The last events of the pool, from this number on; *next goes on.
  std::vector<pinrail_mpool_event_t> events(uint64_t* next) const {
    std::vector<pinrail_mpool_event_t> events(1 << 13);
    events[0].size = sizeof(events[0]);
    size_t count = 0;
    EXPECT_EQ(pinrail_mpool_events(pool_, events.data(), events.size(), next, &count), PINRAIL_SUCCESS);
    events.resize(count);
    return events;
  }
  std::vector<pinrail_mpool_event_t> events() const {
    uint64_t next = 0;
    return events(&next);
  }
  void evict_all() const {
    while (pinrail_mpool_evict(pool_) == PINRAIL_SUCCESS) continue;
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
  void SetUp() override { make({}); }
  // Another library, with another pool.
  void make(const Settings& settings, const fake::FakeOptions& fake = {}, const PoolOptions& options = {}) {
    pool_.reset();
    library_.reset();
    library_ = std::make_unique<Library>(settings);
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    make_pool(fake, options);
  }
  // Another device and pool.
  void make_pool(const fake::FakeOptions& fake = {}, const PoolOptions& options = {}) {
    pool_.reset();
    device_ = std::make_unique<fake::FakeRegistrar>(fake);
    pool_ = std::make_unique<P>(*device_, options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  void expect_nothing_is_left() {
    EXPECT_TRUE(pool_->invariants_hold());
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->live_count(), 0u) << "destroy leaves nothing at the device";
    EXPECT_EQ(device_->violations(), std::vector<std::string>{});
  }
  void TearDown() override {
    if (pool_ != nullptr && pool_->get() != nullptr) expect_nothing_is_left();
  }

  std::unique_ptr<Library> library_;
  std::unique_ptr<fake::FakeRegistrar> device_;
  std::unique_ptr<P> pool_;
};

// Settings that the later ones override.
inline Settings with(Settings settings, const Settings& later) {
  settings.insert(settings.end(), later.begin(), later.end());
  return settings;
}

// One of host memory, that is destroyed at the end with whatever is still referenced. Requests ask for `usual` rights
// unless they say others.
class Pool : public AnyPool {
 public:
  using Access = std::optional<uint32_t>;

  explicit Pool(const pinrail_registrar_choice_t& registrar, const PoolOptions& wanted = {},
                const char* mpool = "grdma", uint32_t usual = 1)
      : usual_(usual) {
    make(mpool, registrar, wanted);
  }
  explicit Pool(const pinrail_registrar_t& table, const PoolOptions& wanted = {}) : Pool(lend(table), wanted) {}
  explicit Pool(const fake::FakeRegistrar& registrar, const PoolOptions& wanted = {}) : Pool(lend(registrar), wanted) {}
  ~Pool() { close(PINRAIL_DESTROY_FORCE); }

  pinrail_status_t reg(uintptr_t base, size_t length, pinrail_handle_t* handle_out, Access access = {},
                       uint32_t flags = 0) const {
    return pinrail_mpool_register(pool_, reinterpret_cast<void*>(base), length, access.value_or(usual_), flags,
                                  handle_out);
  }
  // What comes of a request that is to be refused: it gives no handle.
  pinrail_status_t answer_to(uintptr_t base, size_t length, Access access = {}, uint32_t flags = 0) const {
    pinrail_handle_t handle{};
    const pinrail_status_t answer = reg(base, length, &handle, access, flags);
    EXPECT_EQ(handle.reg, nullptr);
    return answer;
  }
  // Registers, and expects that it works.
  pinrail_handle_t must(uintptr_t base, size_t length, Access access = {}, uint32_t flags = 0) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(reg(base, length, &handle, access, flags), PINRAIL_SUCCESS);
    return handle;
  }
  Held hold(uintptr_t base, size_t length, Access access = {}, uint32_t flags = 0) const {
    return Held(must(base, length, access, flags));
  }
  // Registers and releases.
  void use(uintptr_t base, size_t length, Access access = {}, uint32_t flags = 0) const {
    drop(must(base, length, access, flags));
  }
  // Whether the cache has it; leaves no reference.
  bool has(uintptr_t base, size_t length, Access access = {}) const {
    pinrail_handle_t handle{};
    const pinrail_status_t answer =
        pinrail_mpool_find(pool_, reinterpret_cast<void*>(base), length, access.value_or(usual_), &handle);
    if (answer == PINRAIL_SUCCESS) drop(handle);
    return answer == PINRAIL_SUCCESS;
  }

 private:
  const uint32_t usual_;
};

// Of a registrar that allocates nothing by itself, and does nothing.
inline fake::FakeOptions without_cost() {
  fake::FakeOptions options;
  options.zero_cost = true;
  return options;
}

inline void report(uintptr_t base, size_t length) { pinrail_monitor_report(reinterpret_cast<void*>(base), length); }

// Waits for a child process that ends with 0.
inline void expect_success_of(pid_t child) {
  int how = -1;
  EXPECT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
}

constexpr size_t kPage = 4096;

}  // namespace pinrail::test

#endif
