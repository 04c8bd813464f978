// SPDX-License-Identifier: BSD-3-Clause
// The n-th registrar call, and the n-th allocation, fails: for all n. Whatever comes back, nothing leaks, no figure is
// wrong, and the pool works on.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pinrail/alloc.h>
#include <pinrail/pin.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "test/mpool/mrall_and_odp.h"
#include "test/support/cases.h"
#include "test/support/library.h"
#include "test/support/registrars.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

// The program has used up the keys by which the end of a thread is seen: no thread keeps free registrations for itself,
// which would be lost with it. In a new process, which has used no library before: its key would stay.
TEST(NoKey, ended_threads_leave_the_memory_of_registrations_to_others) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto use_keys_up = [] {
    for (pthread_key_t key; pthread_key_create(&key, nullptr) == 0;) {
    }
    const Library library;
    const fake::FakeRegistrar registrar;
    const Pool pool(registrar, at_most(2));
    std::set<const pinrail_registration_t*> seen;
    constexpr uintptr_t kThreads = 50, kUses = 20;
    for (uintptr_t thread = 0; thread < kThreads; ++thread) {
      std::thread([&] {
        for (uintptr_t i = 0; i < kUses; ++i) seen.insert(pool.hold(kBase + 2 * i * kPage, kPage).reg);
      }).join();
    }
    // Two of them at a time.
    std::fprintf(stderr, "%ju calls for %zu registrations\n", uintmax_t{registrar.register_calls()}, seen.size());
    return testing::Test::HasFailure() ? 1 : 0;
  };
  EXPECT_EXIT(_exit(use_keys_up()), testing::ExitedWithCode(0), "1000 calls for [0-9] registrations");
}

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

TEST(NthAllocation, fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library;
  const int reached = for_each_allocation([](long n) {
    const fake::FakeRegistrar fake(without_cost());
    std::optional<Pool> pool;
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] {
      pool.emplace(fake, at_most(8));
      status = pool->status == PINRAIL_SUCCESS ? pool->reg(kBase, kPage, &handle) : pool->status;
    });
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    if (status == PINRAIL_SUCCESS) drop(handle);
    EXPECT_EQ(pool->get() != nullptr, pool->status == PINRAIL_SUCCESS);
    EXPECT_TRUE(pool->get() == nullptr || pool->invariants_hold());
    EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
    return hit;
  });
  EXPECT_GT(reached, 5) << "the allocations of the library were not seen";
}

// The message about the limit may fail for lack of memory. No thread may wait for the failed request then.
TEST(NthAllocation, of_a_request_that_could_never_fit_fails_and_the_range_is_free) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library;
  const int reached = for_each_allocation([](long n) {
    const fake::FakeRegistrar fake;
    const Pool pool(fake, at_most_bytes(4 * kPage));
    bool hit = false;
    for (const uint32_t flags : {0u, uint32_t{PINRAIL_FLAG_CACHE_BYPASS}}) {
      pinrail_handle_t handle{};
      pinrail_status_t status = PINRAIL_SUCCESS;
      hit |= with_nth_allocation_failing(n, [&] { status = pool.reg(kBase, 8 * kPage, &handle, 1, flags); });
      EXPECT_EQ(status, PINRAIL_ERR_OUT_OF_RESOURCE);
      EXPECT_EQ(handle.reg, nullptr);
      pool.use(kBase + kPage, kPage);  // would wait for one that is pending
      expect_sound(pool, fake);
    }
    return hit;
  });
  EXPECT_GT(reached, 1) << "the message needs memory";
}

// What a pool says of its events at a high verbosity may fail for lack of memory: no exception leaves the call.
TEST(NthAllocation, of_what_is_said_of_events_fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_grdma_verbose", "50"}});
  pinrail_set_message_function([](void*, int, const char*, const char*) {}, nullptr);
  const int reached = for_each_allocation([](long n) {
    const fake::FakeRegistrar fake(without_cost());
    Pool pool(fake);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = pool.reg(kBase, kPage, &handle); });
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    if (status == PINRAIL_SUCCESS) drop(handle);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
    return hit;
  });
  pinrail_set_message_function(nullptr, nullptr);
  EXPECT_GT(reached, 2) << "what is said needs memory";
}

// There is no memory for the record of a thread that calls for the first time. In a new process, where no thread has
// ended that would leave its record.
struct FirstCall {
  long nth;  // the allocation that fails; below 0: each does
  std::function<pinrail_status_t()> make;
};
pinrail_status_t on_a_new_thread(FirstCall call) {
  pinrail_status_t status = PINRAIL_ERR_ERROR;
  const auto make = std::exchange(call.make, nullptr);
  call.make = [&] { return status = make(); };
  const auto run = [](void* pointer) -> void* {
    const auto* const first = static_cast<FirstCall*>(pointer);
    with_nth_allocation_failing(first->nth, first->make);
    return nullptr;
  };
  pthread_t thread;  // std::thread would allocate
  EXPECT_EQ(pthread_create(&thread, nullptr, run, &call), 0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  return status;
}

TEST(NoRecord, destroy_and_unpin_fail_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto end_a_pool = [] {
    const Library library;
    const fake::FakeRegistrar registrar(without_cost());
    Pool pool(registrar);
    pinrail_mpool_t* const it = pool.get();
    const pinrail_range_t range = {reinterpret_cast<void*>(kBase), kPage};
    void* at = nullptr;
    EXPECT_EQ(pinrail_mpool_prepin(it, &range, 1, 1, nullptr, nullptr), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_alloc(it, 64, 0, PINRAIL_NODE_ANY, &at), PINRAIL_SUCCESS);
    const auto force = [=] { return pinrail_mpool_destroy(it, PINRAIL_DESTROY_FORCE); };
    EXPECT_EQ(on_a_new_thread({-1, force}), PINRAIL_ERR_OUT_OF_RESOURCE);
    EXPECT_EQ(pinrail_mpool_free(it, at), PINRAIL_SUCCESS) << "it is still allocated";
    EXPECT_EQ(on_a_new_thread({-1, [=] { return pinrail_mpool_destroy(it, 0); }}), PINRAIL_ERR_OUT_OF_RESOURCE);
    const auto unpin = [&] { return pinrail_mpool_unpin(it, &range, 1, 1); };
    EXPECT_EQ(on_a_new_thread({2, unpin}), PINRAIL_ERR_OUT_OF_RESOURCE);
    EXPECT_EQ(unpin(), PINRAIL_SUCCESS) << "it is still pinned";
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "no reference is lost";
    return testing::Test::HasFailure() ? 1 : 0;
  };
  EXPECT_EXIT(_exit(end_a_pool()), testing::ExitedWithCode(0), "");
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
  const int reached = for_each_allocation([&](long n) {
    const Pool pool(table);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_SUCCESS;
    answer = kNoStatus;
    bool hit = with_nth_allocation_failing(n, [&] { status = pool.reg(kBase, kPage, &handle); });
    EXPECT_TRUE(status == PINRAIL_ERR_ERROR || status == PINRAIL_ERR_OUT_OF_RESOURCE) << status;
    answer = PINRAIL_SUCCESS;
    pool.use(kBase, kPage);  // would wait for one that is pending
    answer = PINRAIL_ERR_ERROR;
    hit |= with_nth_allocation_failing(n, [&] { status = pinrail_mpool_evict(pool.get()); });
    EXPECT_EQ(status, PINRAIL_SUCCESS);
    EXPECT_EQ(pool.stats().registered_count, 0u);
    EXPECT_TRUE(pool.invariants_hold());
    answer = PINRAIL_SUCCESS;
    return hit;
  });
  EXPECT_GT(reached, 1);
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
  for_each_allocation([&](long n) {
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = pinrail_init(&options); });
    failures += status == PINRAIL_SUCCESS ? 0 : 1;
    EXPECT_TRUE(status != PINRAIL_SUCCESS || pinrail_finalize() == PINRAIL_SUCCESS);
    return hit;
  });
  EXPECT_GT(failures, 5);
  Library library;
  EXPECT_EQ(library.status, PINRAIL_SUCCESS);
}

// The n-th allocation of a prepin, of one in the background and of a stream fails, for all n: nothing is left, and the
// next one works.

// Ranges that touch, one that is cut, and one apart.
std::array<pinrail_range_t, 4> ranges() {
  const auto range = [](size_t first, size_t pages) {
    return pinrail_range_t{reinterpret_cast<void*>(kBase + first * kPage), pages * kPage};
  };
  return {range(0, 1), range(1, 1), range(8, 20), range(40, 2)};
}

pinrail_prepin_options_t in_chunks() {
  pinrail_prepin_options_t options = PINRAIL_PREPIN_OPTIONS_INIT;
  options.chunk_size = 4 * kPage;
  return options;
}

// An unpin that lacks memory changes nothing, so it can be repeated.
pinrail_status_t unpin(pinrail_mpool_t* pool) {
  const auto all = ranges();
  const pinrail_status_t status = pinrail_mpool_unpin(pool, all.data(), all.size(), 1);
  if (status != PINRAIL_ERR_OUT_OF_RESOURCE) return status;
  EXPECT_EQ(pinrail_mpool_unpin(pool, all.data(), all.size(), 1), PINRAIL_SUCCESS);
  return status;
}

pinrail_status_t pin(pinrail_mpool_t* pool) {
  const auto all = ranges();
  const pinrail_prepin_options_t options = in_chunks();
  const pinrail_status_t status = pinrail_mpool_prepin(pool, all.data(), all.size(), 1, &options, nullptr);
  if (status != PINRAIL_SUCCESS) return status;
  return unpin(pool);
}

pinrail_status_t pin_in_background(pinrail_mpool_t* pool) {
  const auto all = ranges();
  const pinrail_prepin_options_t options = in_chunks();
  pinrail_prepin_t* prepin = nullptr;
  pinrail_status_t status = pinrail_mpool_prepin_start(pool, all.data(), all.size(), 1, &options, &prepin);
  if (status != PINRAIL_SUCCESS) return status;
  status = pinrail_prepin_wait(prepin, nullptr);
  EXPECT_EQ(pinrail_prepin_free(prepin), PINRAIL_SUCCESS);
  if (status != PINRAIL_SUCCESS) return status;
  return unpin(pool);
}

pinrail_status_t stream(pinrail_mpool_t* pool) {
  pinrail_chunk_options_t options = PINRAIL_CHUNK_OPTIONS_INIT;
  options.chunk_size = 4 * kPage;
  options.ahead = 2;
  options.flags = PINRAIL_FLAG_PERSISTENT;
  pinrail_chunk_stream_t* chunks = nullptr;
  pinrail_status_t status =
      pinrail_chunk_stream_open(pool, reinterpret_cast<void*>(kBase), 20 * kPage, 1, &options, &chunks);
  if (status != PINRAIL_SUCCESS) return status;
  pinrail_handle_t handle;
  while ((status = pinrail_chunk_stream_next(chunks, &handle, nullptr, nullptr)) == PINRAIL_SUCCESS) drop(handle);
  EXPECT_EQ(pinrail_chunk_stream_close(chunks), PINRAIL_SUCCESS);
  return status == PINRAIL_ERR_NOT_FOUND ? PINRAIL_SUCCESS : status;
}

using Way = pinrail_status_t (*)(pinrail_mpool_t* pool);

class NthAllocationOf : public testing::TestWithParam<Way> {};

TEST_P(NthAllocationOf, a_prepin_fails_and_nothing_is_left) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library;
  const auto once = [](long n) {
    const fake::FakeRegistrar registrar(without_cost());
    Pool pool(registrar);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = GetParam()(pool.get()); });
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    EXPECT_EQ(pool.stats().registered_count, 0u);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(GetParam()(pool.get()), PINRAIL_SUCCESS) << "it works on";
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
    return hit;
  };
  const int reached = for_each_allocation(once, 3);
  EXPECT_GE(reached, 2);  // a stream makes three or four, as its helper thread comes before the caller or after
}

INSTANTIATE_TEST_SUITE_P(Ways, NthAllocationOf, testing::Values(pin, pin_in_background, stream));

// The n-th allocation fails while a pool allocates, resizes and frees registered memory, for all n: nothing is lost,
// nothing stays registered, and the next calls work.

constexpr size_t kMiB = size_t{1} << 20;

// A free that lacks memory changes nothing, so it can be repeated.
void release(pinrail_mpool_t* pool, void* at) {
  pinrail_status_t status = pinrail_mpool_free(pool, at);
  if (status == PINRAIL_ERR_OUT_OF_RESOURCE) status = pinrail_mpool_free(pool, at);
  EXPECT_EQ(status, PINRAIL_SUCCESS);
}

struct Held {
  pinrail_mpool_t* pool;
  void* all[4] = {};
  size_t count = 0;
};

void* release_all(void* pointer) {
  const auto* const held = static_cast<Held*>(pointer);
  for (size_t i = 0; i < held->count; ++i) release(held->pool, held->all[i]);
  return nullptr;
}

// Allocates, resizes, and frees on another thread. Returns the first error of alloc and realloc.
pinrail_status_t use(pinrail_mpool_t* pool) {
  pinrail_status_t first = PINRAIL_SUCCESS;
  const auto note = [&](pinrail_status_t status) { first = first == PINRAIL_SUCCESS ? status : first; };
  Held held{pool};
  for (const size_t length : {size_t{100}, 3 * kMiB, size_t{5000}, kMiB}) {
    void* at = nullptr;
    note(pinrail_mpool_alloc(pool, length, 0, PINRAIL_NODE_ANY, &at));
    if (at != nullptr) held.all[held.count++] = at;
  }
  for (size_t i = 0; i < held.count; ++i) note(pinrail_mpool_realloc(pool, held.all[i], 2 * kMiB, &held.all[i]));
  pthread_t other;  // std::thread would allocate
  EXPECT_EQ(pthread_create(&other, nullptr, release_all, &held), 0);
  EXPECT_EQ(pthread_join(other, nullptr), 0);
  return first;
}

uint64_t mapped_bytes(pinrail_mpool_t* pool) {
  auto figures = sized<pinrail_alloc_stats_t>();
  EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool, &figures), PINRAIL_SUCCESS);
  EXPECT_EQ(figures.allocations, 0u);
  return figures.mapped_bytes;
}

TEST(NthAllocation, of_an_allocator_fails_and_nothing_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_alloc_region", "2M"}});
  uint64_t mapped = 0;
  const auto once = [&](long n) {
    const fake::FakeRegistrar registrar(without_cost());
    Pool pool(registrar);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = use(pool.get()); });
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    EXPECT_EQ(use(pool.get()), PINRAIL_SUCCESS) << "it works on";
    if (mapped == 0) mapped = mapped_bytes(pool.get());
    EXPECT_EQ(mapped_bytes(pool.get()), mapped) << "each slab serves again";
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "no registration is referenced";
    return n != 0 && hit;
  };
  once(0);  // none fails
  const int reached = for_each_allocation(once);
  EXPECT_GT(reached, 10);
}

// The n-th allocation fails while a pool of mpool/mrall is asked what is registered, and while it registers: no
// reference is lost, so the pool can be destroyed.

// Maps, has the mapping registered, asks for everything, and unmaps.
void follow_and_query(pinrail_mpool_t* pool) {
  void* const at = mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  (void)pinrail_mpool_progress(pool);
  pinrail_pinned_t pinned;
  const pinrail_status_t status =
      pinrail_mpool_query(pool, reinterpret_cast<void*>(kPage), (size_t{1} << 47) - 2 * kPage,
                          PINRAIL_ACCESS_REMOTE_READ, &pinned, nullptr, 0, nullptr);
  EXPECT_TRUE(status == PINRAIL_SUCCESS || status == PINRAIL_ERR_OUT_OF_RESOURCE) << status;
  munmap(at, 64 * kPage);
}

// The pool registers what is mapped, without a request for it, although the first look at it failed: there are more
// mappings than it had room for.
TEST(NthAllocation, of_a_round_fails_and_what_it_was_to_look_at_is_registered_later) {
  NEED_GLIBC("the library brings its own operator new");
  if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  constexpr size_t kMany = 4096;
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const fake::FakeRegistrar registrar(without_cost());
  auto* const many =
      static_cast<char*>(mmap(nullptr, kMany * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  ASSERT_NE(many, MAP_FAILED);
  MrallPool pool(registrar);
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  for (size_t i = 0; i < kMany; i += 2) mprotect(many + i * kPage, kPage, PROT_READ);
  void* at = MAP_FAILED;
  EXPECT_TRUE(with_nth_allocation_failing(1, [&] {
    at = mmap(nullptr, 64 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)comes_true([] { return allocations_left <= 0; });
  }));
  EXPECT_TRUE(comes_true([&] {
    pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
    EXPECT_EQ(pinrail_mpool_query(pool.get(), at, kPage, PINRAIL_ACCESS_REMOTE_READ, &pinned, nullptr, 0, nullptr),
              PINRAIL_SUCCESS);
    return pinned == PINRAIL_PINNED_WHOLLY;
  }));
  munmap(at, 64 * kPage);
  munmap(many, kMany * kPage);
}

TEST(NthAllocation, of_a_pool_that_registers_everything_fails_and_no_reference_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  const Library library(Settings{{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const auto once = [](long n) {
    const fake::FakeRegistrar registrar(without_cost());
    MrallPool pool(registrar);
    EXPECT_EQ(pool.status, PINRAIL_SUCCESS);
    const bool hit = n < 200 && with_nth_allocation_failing(n, [&] { follow_and_query(pool.get()); });
    EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS) << "it works on";
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced";
    return hit;
  };
  const int reached = for_each_allocation(once, 3);
  EXPECT_GT(reached, 3);
}

// The n-th allocation fails while a pool of mpool/odp is asked what is registered: no reference is lost, so the pool
// can be destroyed.

TEST(NthAllocation, of_a_query_of_tiles_fails_and_no_reference_is_lost) {
  NEED_GLIBC("the library brings its own operator new");
  const Library library(Settings{{"mpool_odp_tile_size", "1M"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const fake::FakeRegistrar registrar(paging());
  const int reached = for_each_allocation([&](long n) {
    OdpPool pool(registrar);
    for (unsigned i = 0; i < 200; ++i) pool.use(kBase + 2 * i * kTile, kPage);  // as many parts of the answer
    pinrail_pinned_t pinned;
    pinrail_status_t status = PINRAIL_SUCCESS;
    const bool hit = with_nth_allocation_failing(n, [&] {
      status = pinrail_mpool_query(pool.get(), reinterpret_cast<void*>(kBase), size_t{1} << 40, kRead, &pinned, nullptr,
                                   0, nullptr);
    });
    EXPECT_EQ(status, hit ? PINRAIL_ERR_OUT_OF_RESOURCE : PINRAIL_SUCCESS);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS) << "nothing is referenced";
    return hit;
  });
  EXPECT_GT(reached, 5);
}

}  // namespace
}  // namespace pinrail::test
