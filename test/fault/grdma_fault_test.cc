// SPDX-License-Identifier: BSD-3-Clause
// The n-th registrar call, and the n-th allocation, fails: for all n. Whatever comes back, nothing leaks, no figure is
// wrong, and the pool works on.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

// What a caller does in a day: hits, misses, wider rights, overlaps, events, evictions, bypass, pins.
// Returns how many register calls failed.
int a_day(const Pool& pool) {
  std::vector<pinrail_handle_t> held;
  int failed = 0;
  auto take = [&](uintptr_t base, size_t length, uint32_t access, uint32_t flags) {
    pinrail_handle_t handle{};
    const pinrail_status_t status = pool.reg(base, length, &handle, access, flags);
    if (status != PINRAIL_SUCCESS) {
      EXPECT_TRUE(status < 0 && status >= PINRAIL_ERR_VERSION) << "no status that there is: " << status;
      EXPECT_EQ(handle.reg, nullptr) << "an output was written by a call that failed";
      ++failed;
      return;
    }
    EXPECT_LE(reinterpret_cast<uintptr_t>(handle.reg->base), base);
    EXPECT_GE(reinterpret_cast<uintptr_t>(handle.reg->base) + handle.reg->length, base + length);
    EXPECT_EQ(handle.reg->rights & access, access);
    held.push_back(handle);
  };
  auto release = [&] {
    for (pinrail_handle_t handle : held) drop(handle);
    held.clear();
  };
  for (uintptr_t i = 0; i < 6; ++i) {
    take(kBase + i * 4 * kPage, 2 * kPage, 1, 0);
    if (i % 2 != 0) release();
  }
  take(kBase, 2 * kPage, 2, 0);
  take(kBase, 8 * kPage, 3, 0);
  take(kBase + 100 * kPage, kPage, 1, PINRAIL_FLAG_CACHE_BYPASS);
  take(kBase + 101 * kPage, kPage, 1, PINRAIL_FLAG_PERSISTENT);
  report(kBase + kPage, kPage);
  release();
  report(kBase + 20 * kPage, kPage);
  for (uintptr_t i = 0; i < 12; ++i) {
    take(kBase + (200 + i) * kPage, kPage, 1, 0);
    release();
  }
  return failed;
}

void expect_sound(const Pool& pool, const fake::FakeRegistrar& fake) {
  EXPECT_TRUE(pool.invariants_hold());
  const pinrail_mpool_stats_t figures = pool.stats();
  EXPECT_EQ(figures.registered_bytes, fake.live_bytes());
  EXPECT_EQ(figures.registered_count, fake.live_count());
  EXPECT_EQ(fake.violations(), std::vector<std::string>{});
}

class NthCall : public ::testing::TestWithParam<pinrail_status_t> {};

TEST_P(NthCall, fails_and_nothing_is_lost) {
  Library library;
  uint64_t calls = 0;
  {
    fake::FakeRegistrar fake;
    Pool pool(fake, {1, PINRAIL_UNSET, 8});
    EXPECT_EQ(a_day(pool), 0);
    calls = fake.register_calls();
  }
  ASSERT_GT(calls, 20u);
  for (uint64_t n = 1; n <= calls; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th registrar call fails");
    fake::FakeRegistrar fake;
    Pool pool(fake, {1, PINRAIL_UNSET, 8});
    fake.fail_register(n, GetParam());
    a_day(pool);
    expect_sound(pool, fake);
    EXPECT_EQ(a_day(pool), 0) << "it works on";
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
    EXPECT_EQ(fake.live_count(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Statuses, NthCall,
                         ::testing::Values(PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE,
                                           PINRAIL_ERR_WOULD_BLOCK, PINRAIL_ERR_BAD_PARAM, PINRAIL_ERR_ERROR,
                                           PINRAIL_ERR_PERM, PINRAIL_ERR_NOT_SUPPORTED,
                                           static_cast<pinrail_status_t>(7)));

TEST(NthDeregistration, fails_and_the_budget_is_free_all_the_same) {
  Library library;
  for (uint64_t n = 1; n <= 12; ++n) {
    fake::FakeRegistrar fake;
    Pool pool(fake, {1, PINRAIL_UNSET, 8});
    fake.fail_deregister(n, PINRAIL_ERR_ERROR);
    EXPECT_EQ(a_day(pool), 0);
    EXPECT_TRUE(pool.invariants_hold());
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
  }
}

// For all n, until a whole run passes without reaching the n-th allocation.
TEST(NthAllocation, fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  Library library;
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  int reached = 0;
  for (long n = 1;; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    fake::FakeOptions options;
    options.zero_cost = true;  // the fake's own allocations are not under test
    fake::FakeRegistrar fake(options);
    const pinrail_registrar_choice_t choice = lend(fake);
    pinrail_mpool_options_t wanted = PINRAIL_MPOOL_OPTIONS_INIT;
    wanted.leave_pinned = 1;
    wanted.count_limit = 8;
    pinrail_mpool_t* made = nullptr;
    pinrail_handle_t handle{};
    pinrail_status_t created = PINRAIL_ERR_ERROR, registered = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] {
      created = registered = pinrail_mpool_create("grdma", &choice, nullptr, &wanted, &made);
      if (created == PINRAIL_SUCCESS) {
        registered = pinrail_mpool_register(made, reinterpret_cast<void*>(kBase), kPage, 1, 0, &handle);
      }
    });
    if (hit) {
      ++reached;
      EXPECT_TRUE(created == PINRAIL_ERR_OUT_OF_RESOURCE || registered == PINRAIL_ERR_OUT_OF_RESOURCE ||
                  registered == PINRAIL_SUCCESS);
    }
    if (registered == PINRAIL_SUCCESS) drop(handle);
    if (created == PINRAIL_SUCCESS) {
      EXPECT_EQ(made->ops->check(made->module), PINRAIL_SUCCESS);
      EXPECT_EQ(pinrail_mpool_destroy(made, 0), PINRAIL_SUCCESS);
    } else {
      EXPECT_EQ(made, nullptr);
    }
    if (!hit) break;
  }
  EXPECT_GT(reached, 5) << "the allocations of the library were not seen";
}

// The message about the limit may fail for lack of memory. No thread may wait for the failed request then.
TEST(NthAllocation, of_a_request_that_could_never_fit_fails_and_the_range_is_free) {
  NEED_GLIBC("the library brings its own operator new");
  Library library;
  long n = 0;
  for (bool reached = true; reached;) {
    SCOPED_TRACE("the " + std::to_string(++n) + "th allocation fails");
    fake::FakeRegistrar fake;
    Pool pool(fake, at_most_bytes(4 * kPage));
    reached = false;
    for (const uint32_t flags : {0u, uint32_t{PINRAIL_FLAG_CACHE_BYPASS}}) {
      pinrail_handle_t handle{};
      pinrail_status_t status = PINRAIL_SUCCESS;
      reached |= with_nth_allocation_failing(n, [&] { status = pool.reg(kBase, 8 * kPage, &handle, 1, flags); });
      EXPECT_EQ(status, PINRAIL_ERR_OUT_OF_RESOURCE);
      EXPECT_EQ(handle.reg, nullptr);
      pool.use(kBase + kPage, kPage);  // would wait for one that is pending
      expect_sound(pool, fake);
    }
  }
  EXPECT_GT(n, 2) << "the message needs memory";
}

// A registrar that answers whatever it shall, and needs no memory for that.
pinrail_status_t answer = PINRAIL_SUCCESS;
pinrail_registrar_t obedient(const fake::FakeRegistrar& fake) {
  pinrail_registrar_t table = *fake.table();
  table.register_mem = [](void*, const pinrail_register_request_t*, pinrail_registration_t*) { return answer; };
  table.deregister_mem = [](void*, pinrail_registration_t*, pinrail_reason_t) { return answer; };
  return table;
}

// Likewise the message about a registrar.
TEST(NthAllocation, of_what_is_told_of_a_registrar_fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  constexpr auto kNoStatus = static_cast<pinrail_status_t>(7);
  const Library library;
  const fake::FakeRegistrar fake;
  const pinrail_registrar_t table = obedient(fake);
  long n = 0;
  for (bool reached = true; reached;) {
    SCOPED_TRACE("the " + std::to_string(++n) + "th allocation fails");
    const Pool pool(table);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_SUCCESS;
    answer = kNoStatus;
    reached = with_nth_allocation_failing(n, [&] { status = pool.reg(kBase, kPage, &handle); });
    EXPECT_TRUE(status == PINRAIL_ERR_ERROR || status == PINRAIL_ERR_OUT_OF_RESOURCE) << status;
    answer = PINRAIL_SUCCESS;
    pool.use(kBase, kPage);  // would wait for one that is pending
    answer = PINRAIL_ERR_ERROR;
    reached |= with_nth_allocation_failing(n, [&] { status = pinrail_mpool_evict(pool.get()); });
    EXPECT_EQ(status, PINRAIL_SUCCESS);
    EXPECT_EQ(pool.stats().registered_count, 0u);
    EXPECT_TRUE(pool.invariants_hold());
    answer = PINRAIL_SUCCESS;
  }
  EXPECT_GT(n, 2);
}

// Keeps hwloc's plugins loaded. An exception in a plugin that is being loaded (hwloc_levelzero uses a library in C++)
// would leave hwloc's lock taken for ever.
class LoadedPlugins {
 public:
  LoadedPlugins() {
    void* const library = dlopen("libhwloc.so.15", RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) return;  // built without hwloc
    const auto init = reinterpret_cast<int (*)(void**)>(dlsym(library, "hwloc_topology_init"));
    destroy_ = reinterpret_cast<void (*)(void*)>(dlsym(library, "hwloc_topology_destroy"));
    if (init == nullptr || init(&topology_) != 0) topology_ = nullptr;
  }
  ~LoadedPlugins() {
    if (topology_ != nullptr && destroy_ != nullptr) destroy_(topology_);
  }
  LoadedPlugins(const LoadedPlugins&) = delete;
  LoadedPlugins& operator=(const LoadedPlugins&) = delete;

 private:
  void* topology_ = nullptr;
  void (*destroy_)(void*) = nullptr;
};

// The same for init itself: it fails with a status, and a later one works.
TEST(NthAllocation, of_init_fails_and_the_next_init_works) {
  NEED_GLIBC("the library brings its own operator new");
  const LoadedPlugins plugins;
  int failures = 0;
  for (long n = 1; n < 4000; ++n) {
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = pinrail_init(&options); });
    if (status == PINRAIL_SUCCESS) {
      EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
    } else {
      ++failures;
    }
    if (!hit) break;
  }
  EXPECT_GT(failures, 5);
  Library library;
  EXPECT_EQ(library.status, PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
