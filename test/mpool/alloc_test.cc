// SPDX-License-Identifier: BSD-3-Clause
// pinrail/alloc.h: memory that is registered already.
#include <pinrail/alloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include "test/support/files.h"
#include "test/support/library.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class Alloc : public OnePool<Pool> {
 protected:
  void SetUp() override { start(); }
  void start(const Settings& settings = {}, const PoolOptions& options = {}, const fake::FakeOptions& fake = {}) {
    make(settings, fake, options);
  }
  pinrail_status_t alloc(size_t length, void** addr_out, size_t alignment = 0, int node = PINRAIL_NODE_ANY) const {
    return pinrail_mpool_alloc(pool_->get(), length, alignment, node, addr_out);
  }
  char* must(size_t length, size_t alignment = 0, int node = PINRAIL_NODE_ANY) const {
    void* at = nullptr;
    EXPECT_EQ(alloc(length, &at, alignment, node), PINRAIL_SUCCESS);
    return static_cast<char*>(at);
  }
  pinrail_status_t release(void* at) const { return pinrail_mpool_free(pool_->get(), at); }
  pinrail_alloc_stats_t stats() const {
    auto figures = sized<pinrail_alloc_stats_t>();
    EXPECT_EQ(pinrail_mpool_alloc_read_stats(pool_->get(), &figures), PINRAIL_SUCCESS);
    return figures;
  }
  bool is_hit(void* at, size_t length) const {
    const uint64_t before = device_->register_calls();
    pool_->use(reinterpret_cast<uintptr_t>(at), length, PINRAIL_RIGHTS_MASK);
    return device_->register_calls() == before;
  }
};

TEST_F(Alloc, what_is_allocated_is_registered_and_the_steady_state_calls_no_device) {
  std::mt19937 random(1);
  std::vector<char*> held(200, nullptr);
  uint64_t calls = 0;
  for (int i = 0; i < 20000; ++i) {
    if (i == 10000) calls = device_->register_calls();
    char*& at = held[random() % held.size()];
    EXPECT_EQ(release(at), PINRAIL_SUCCESS);
    const size_t length = 64u << random() % 11;
    at = must(length);
    std::memset(at, i, length);
    EXPECT_TRUE(i % 100 != 0 || is_hit(at, length));
  }
  EXPECT_EQ(device_->register_calls(), calls);
  EXPECT_EQ(stats().allocations, held.size());
  for (char* at : held) EXPECT_EQ(release(at), PINRAIL_SUCCESS);
  EXPECT_EQ(stats().allocations, 0u);
}

TEST_F(Alloc, allocations_are_aligned_and_do_not_overlap) {
  std::vector<std::pair<char*, size_t>> all;
  for (size_t length : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4000}, size_t{70000}, kMiB, 3 * kMiB}) {
    for (size_t alignment : {size_t{0}, size_t{64}, size_t{256}, size_t{4096}, size_t{65536}, kMiB, 2 * kMiB}) {
      char* const at = must(length, alignment);
      EXPECT_TRUE(alignment == 0 || reinterpret_cast<uintptr_t>(at) % alignment == 0);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0u);
      std::memset(at, static_cast<int>(all.size()), length);
      EXPECT_TRUE(is_hit(at, length));
      all.emplace_back(at, length);
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    const auto& [at, length] = all[i];
    EXPECT_EQ(at[0], static_cast<char>(i));
    EXPECT_EQ(at[length - 1], static_cast<char>(i));
    EXPECT_EQ(release(at), PINRAIL_SUCCESS);
  }
}

// R8: the memory limit of a fresh system is less than the usual region.
TEST_F(Alloc, regions_are_smaller_under_a_limit_or_beside_a_device_with_a_maximum) {
  start({}, at_most_bytes(8 * kMiB));
  void* small = nullptr;
  ASSERT_EQ(alloc(100, &small), PINRAIL_SUCCESS);
  EXPECT_TRUE(is_hit(small, 100));
  EXPECT_EQ(stats().mapped_bytes, 8 * kMiB);
  EXPECT_EQ(release(small), PINRAIL_SUCCESS);
  expect_nothing_is_left();

  start({}, {}, fake::options_with(&fake::FakeOptions::max_length, 5 * kMiB));
  ASSERT_EQ(alloc(100, &small), PINRAIL_SUCCESS);
  EXPECT_EQ(stats().mapped_bytes, 4 * kMiB);
  EXPECT_EQ(release(small), PINRAIL_SUCCESS);
}

// allocator/B3: what is kept for later allocations makes room for what is asked for now.
TEST_F(Alloc, what_is_kept_makes_room_for_what_does_not_fit_beside_it) {
  start({}, at_most_bytes(40 * kMiB));
  EXPECT_EQ(release(must(100)), PINRAIL_SUCCESS);
  ASSERT_EQ(stats().mapped_bytes, 32 * kMiB);
  EXPECT_EQ(release(must(20 * kMiB)), PINRAIL_SUCCESS) << "an allocation";
  EXPECT_EQ(release(must(100)), PINRAIL_SUCCESS);
  ASSERT_EQ(stats().mapped_bytes, 32 * kMiB);
  pool_->use(0x10000000, 20 * kMiB);  // a registration
  EXPECT_EQ(stats().mapped_bytes, 0u);
  EXPECT_EQ(release(must(100)), PINRAIL_SUCCESS) << "it works on";
}

// The threads that freed it are idle or have ended.
TEST_F(Alloc, what_other_threads_have_free_makes_room) {
  for (const bool has_ended : {false, true}) {
    for (const char* const keep : {"0", "1G"}) {
      constexpr size_t kThreads = 16, kLimit = 128 * kMiB;
      start({{"mpool_alloc_keep", keep}}, at_most_bytes(kLimit));
      std::vector<std::vector<void*>> held(kThreads);
      for (auto& of_thread : held) {
        while (of_thread.size() < 8) of_thread.push_back(must(kMiB));
      }
      EXPECT_EQ(stats().mapped_bytes, kLimit);
      std::mutex mutex;
      std::unique_lock<std::mutex> lock(mutex);  // while it is held, no thread ends
      std::atomic<size_t> idle{0};
      Team threads(kThreads, [&](size_t i) {
        for (void* each : held[i]) EXPECT_EQ(release(each), PINRAIL_SUCCESS);
        ++idle;
        const std::lock_guard<std::mutex> wait(mutex);
      });
      while (idle != kThreads) std::this_thread::yield();
      if (has_ended) {
        lock.unlock();
        threads.join();
      }
      EXPECT_NE(stats().mapped_bytes, 0u) << "each thread has a part of each region";
      pinrail_handle_t handle{};
      EXPECT_EQ(pool_->reg(0x10000000, kMiB, &handle), PINRAIL_SUCCESS) << keep << has_ended;
      drop(handle);
      EXPECT_EQ(stats().mapped_bytes, 0u);
      if (!has_ended) lock.unlock();
      threads.join();
      expect_nothing_is_left();
    }
  }
}

TEST_F(Alloc, realloc_keeps_the_bytes) {
  void* at = nullptr;
  ASSERT_EQ(pinrail_mpool_realloc(pool_->get(), nullptr, 10, &at), PINRAIL_SUCCESS) << "allocates";
  std::memcpy(at, "123456789", 10);
  for (const size_t length : {size_t{60}, size_t{5000}, 2 * kMiB, size_t{300}, size_t{12}}) {
    ASSERT_EQ(pinrail_mpool_realloc(pool_->get(), at, length, &at), PINRAIL_SUCCESS);
    EXPECT_STREQ(static_cast<char*>(at), "123456789") << length;
    EXPECT_TRUE(is_hit(at, length));
  }
  void* same = nullptr;
  ASSERT_EQ(pinrail_mpool_realloc(pool_->get(), at, 64, &same), PINRAIL_SUCCESS);
  EXPECT_EQ(same, at) << "it fits in its place";
  ASSERT_EQ(pinrail_mpool_realloc(pool_->get(), at, 1, &same), PINRAIL_SUCCESS);
  EXPECT_EQ(same, at) << "there is no smaller place";
  EXPECT_EQ(release(at), PINRAIL_SUCCESS);
}

TEST_F(Alloc, realloc_takes_the_begin_of_an_allocation_only) {
  char* const small = must(1000);
  char* const large = must(3 * kMiB);
  for (char* const inside : {small + 64, small + 1, large + 64, large + 2 * kMiB}) {
    for (const size_t length : {size_t{10}, size_t{900}, 3 * kMiB, 5 * kMiB}) {
      void* out = nullptr;
      EXPECT_EQ(pinrail_mpool_realloc(pool_->get(), inside, length, &out), PINRAIL_ERR_BAD_PARAM);
    }
  }
  EXPECT_EQ(stats().allocations, 2u);
  EXPECT_EQ(release(small), PINRAIL_SUCCESS);
  EXPECT_EQ(release(large), PINRAIL_SUCCESS);
}

// Objects of 1 MiB: two in a slab, a region and a magazine, so that the fifth free ends a region.
TEST_F(Alloc, a_registrar_may_free_while_a_region_ends) {
  start({{"mpool_alloc_region", "2M"}, {"mpool_alloc_keep", "0"}});
  std::vector<char*> all;
  for (int i = 0; i < 6; ++i) all.push_back(must(kMiB));
  bool is_first = true;
  device_->on_deregister([&](pinrail_registration_t*, pinrail_reason_t) {
    if (!is_first) return;
    is_first = false;
    EXPECT_EQ(release(all[5]), PINRAIL_SUCCESS);
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(release(all[static_cast<size_t>(i)]), PINRAIL_SUCCESS);
  EXPECT_FALSE(is_first);
  std::set<char*> again;
  for (int i = 0; i < 6; ++i) again.insert(must(kMiB));
  EXPECT_EQ(again.size(), 6u) << "no object is handed out twice";
  for (char* at : again) EXPECT_EQ(release(at), PINRAIL_SUCCESS);
  device_->on_deregister(nullptr);
}

TEST_F(Alloc, wrong_frees_are_refused) {
  char* const at = must(1000);
  char* const large = must(3 * kMiB);
  int local = 0;
  void* out = nullptr;
  EXPECT_EQ(release(at + 64), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(release(large + 4096), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(release(&local), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pinrail_mpool_realloc(pool_->get(), &local, 10, &out), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(release(at), PINRAIL_SUCCESS);
  EXPECT_EQ(release(at), PINRAIL_ERR_BAD_PARAM) << "twice";
  EXPECT_EQ(release(large), PINRAIL_SUCCESS);
  EXPECT_EQ(release(large), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(release(nullptr), PINRAIL_SUCCESS);
  EXPECT_EQ(alloc(1, &out, 4 * kMiB), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(alloc(SIZE_MAX - 5, &out), PINRAIL_ERR_OUT_OF_RESOURCE);
}

TEST_F(Alloc, what_is_free_is_given_back_above_the_limit) {
  start({{"mpool_alloc_keep", "32M"}, {"mpool_alloc_region", "4M"}});
  std::vector<char*> all;
  for (int i = 0; i < 4000; ++i) all.push_back(must(16384));
  const uint64_t most = stats().mapped_bytes;
  EXPECT_GE(most, 4000u * 16384);
  for (char* at : all) EXPECT_EQ(release(at), PINRAIL_SUCCESS);
  const uint64_t rest = stats().mapped_bytes;
  EXPECT_LE(rest, 32 * kMiB + 2 * 4 * kMiB);
  EXPECT_GE(rest, 32 * kMiB) << "up to the limit it is kept";
  EXPECT_EQ(device_->live_bytes(), rest);
  EXPECT_EQ(pool_->stats().registered_bytes, rest);
}

TEST_F(Alloc, single_backing_has_one_registration_of_whole_granules_for_each) {
  for (const size_t granule : {kPage, 16 * kPage}) {
    start({{"mpool_alloc_backing", "single"}}, {}, fake::options_with(&fake::FakeOptions::granularity, granule));
    char* const small = must(100);
    char* const large = must(kMiB);
    EXPECT_EQ(device_->live_count(), 2u);
    EXPECT_EQ(device_->live_bytes(), granule + kMiB);
    EXPECT_EQ(stats().mapped_bytes, granule + kMiB) << "all that is registered is the allocations' own";
    EXPECT_EQ(release(small), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->live_count(), 1u);
    EXPECT_EQ(release(large), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->live_count(), 0u);
  }
}

// allocator/B4: what is handed out next, of the same region, is registered, and once.
TEST_F(Alloc, after_an_event_on_one_page_and_after_a_restart_a_region_is_registered_anew) {
  char* kept = must(100);
  const auto expect_registered = [&] {
    char* const next = must(1000);
    EXPECT_TRUE(is_hit(next, 1000));
    const uint64_t calls = device_->register_calls();
    EXPECT_EQ(release(next), PINRAIL_SUCCESS);
    EXPECT_EQ(release(must(1000)), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->register_calls(), calls);
    EXPECT_EQ(release(kept), PINRAIL_SUCCESS);
  };
  report(reinterpret_cast<uintptr_t>(kept), 100);
  expect_registered();
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u) << "a checkpoint gives back what is free";
  kept = must(100);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);
  expect_registered();
  EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
}

TEST_F(Alloc, a_finalize_that_is_refused_for_one_pool_leaves_the_free_memory_of_another) {
  const auto other = std::make_unique<Pool>(*device_);  // newer: it is asked later
  EXPECT_EQ(release(must(1000)), PINRAIL_SUCCESS);
  const uint64_t mapped = stats().mapped_bytes;
  EXPECT_NE(mapped, 0u);
  void* kept = nullptr;
  ASSERT_EQ(pinrail_mpool_alloc(other->get(), 1000, 0, PINRAIL_NODE_ANY, &kept), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(stats().mapped_bytes, mapped);
  EXPECT_EQ(pinrail_mpool_free(other->get(), kept), PINRAIL_SUCCESS);
}

// What is allocated stays mapped, and what is free does not.
TEST_F(Alloc, a_pool_with_allocations_is_busy_and_force_leaves_the_memory) {
  char* const at = must(1000);
  const std::string said = said_by([this] {
    EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
    EXPECT_EQ(pinrail_finalize(), PINRAIL_ERR_BUSY);
  });
  EXPECT_TRUE(has(said, "memory of the pool is allocated")) << said;
  EXPECT_TRUE(is_hit(at, 1000)) << "nothing has changed";
  std::vector<char*> large(8);
  for (char*& each : large) each = must(16 * kMiB);
  for (char* const each : large) EXPECT_EQ(release(each), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(device_->live_count(), 0u);
  std::memset(at, 7, 1000);
  unsigned char resident = 0;
  for (char* const each : large) {
    void* const page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(each) / kPage * kPage);
    EXPECT_NE(mincore(page, kPage, &resident), 0);
  }
  pool_.reset();
}

TEST_F(Alloc, a_refusal_of_the_registrar_leaves_nothing_behind) {
  start({{"mpool_alloc_region", "2M"}});
  for (const pinrail_status_t refusal : {PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_ERROR}) {
    device_->fail_every_register(refusal);
    for (const size_t length : {size_t{100}, 3 * kMiB}) {
      void* at = nullptr;
      EXPECT_EQ(alloc(length, &at), refusal);
      EXPECT_EQ(at, nullptr);
    }
    EXPECT_EQ(stats().mapped_bytes, 0u);
    EXPECT_EQ(device_->live_count(), 0u);
    device_->fail_every_register(PINRAIL_SUCCESS);
    EXPECT_EQ(release(must(100)), PINRAIL_SUCCESS);
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    pool_ = std::make_unique<Pool>(*device_);
  }
}

// The n-th call fails, for all n: nothing leaks, and what was allocated is registered.
TEST_F(Alloc, each_call_of_the_registrar_may_fail) {
  for (const pinrail_status_t failure : {PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_ERROR, PINRAIL_ERR_NOT_SUPPORTED}) {
    uint64_t calls = 1;
    for (uint64_t nth = 1; nth <= calls; ++nth) {
      start({{"mpool_alloc_region", "2M"}, {"mpool_alloc_keep", "0"}});
      device_->fail_register(nth, failure);
      std::vector<void*> held;
      for (const size_t length : {size_t{100}, 3 * kMiB, size_t{5000}, 2 * kMiB, kMiB, kMiB, kMiB, size_t{64}}) {
        void* at = nullptr;
        if (alloc(length, &at) == PINRAIL_SUCCESS) held.push_back(at);
      }
      for (void*& each : held) {
        void* moved = nullptr;
        if (pinrail_mpool_realloc(pool_->get(), each, 2 * kMiB, &moved) == PINRAIL_SUCCESS) each = moved;
      }
      EXPECT_GE(held.size(), 7u) << "one call may fail";
      EXPECT_EQ(stats().allocations, held.size());
      for (void* each : held) {
        EXPECT_TRUE(pool_->has(reinterpret_cast<uintptr_t>(each), 1));
        EXPECT_EQ(release(each), PINRAIL_SUCCESS);
      }
      EXPECT_EQ(stats().allocations, 0u);
      EXPECT_EQ(pool_->stats().registered_bytes, device_->live_bytes()) << nth;
      EXPECT_TRUE(pool_->invariants_hold());
      calls = device_->register_calls();
      expect_nothing_is_left();
    }
    EXPECT_GE(calls, 8u);
  }
}

TEST_F(Alloc, a_limit_of_the_pool_holds) {
  start({{"mpool_alloc_region", "2M"}}, at_most_bytes(8 * kMiB));
  std::vector<char*> all;
  void* at = nullptr;
  pinrail_status_t status;
  while ((status = alloc(100000, &at)) == PINRAIL_SUCCESS) all.push_back(static_cast<char*>(at));
  EXPECT_EQ(status, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_GE(all.size(), 60u);
  EXPECT_LE(device_->peak_live_bytes(), 8 * kMiB);
  EXPECT_EQ(release(all.back()), PINRAIL_SUCCESS);
  EXPECT_EQ(alloc(100000, &at), PINRAIL_SUCCESS);
  all.back() = static_cast<char*>(at);
  for (char* each : all) EXPECT_EQ(release(each), PINRAIL_SUCCESS);
}

// The pool would extend their registrations to memory that is not the allocator's.
TEST_F(Alloc, a_device_that_takes_only_more_than_a_slab_at_a_time_gets_no_allocations) {
  for (const char* const backing : {"slabs", "single"}) {
    start({{"mpool_alloc_backing", backing}}, {}, fake::options_with(&fake::FakeOptions::granularity, 64 * kMiB));
    for (const size_t length : {size_t{100}, 3 * kMiB}) {
      void* at = nullptr;
      EXPECT_EQ(alloc(length, &at), PINRAIL_ERR_NOT_SUPPORTED) << backing << " " << length;
      EXPECT_EQ(pool_->stats().registered_bytes, stats().mapped_bytes) << backing << " " << length;
      EXPECT_EQ(release(at), PINRAIL_SUCCESS);
    }
    expect_nothing_is_left();
  }
}

TEST_F(Alloc, a_device_without_atomics_is_enough) {
  start({}, {}, fake::options_with(&fake::FakeOptions::refused_rights, PINRAIL_ACCESS_REMOTE_ATOMIC));
  char* const at = must(100);
  const uint64_t calls = device_->register_calls();
  pool_->use(reinterpret_cast<uintptr_t>(at), 100, PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_LOCAL_WRITE);
  EXPECT_EQ(device_->register_calls(), calls);
  EXPECT_EQ(release(at), PINRAIL_SUCCESS);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which keep notes on what is mapped
size_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  size_t mapped = 0, resident = 0;
  file >> mapped >> resident;
  return resident;
}

TEST_F(Alloc, an_allocation_is_one_slab_however_long_it_is) {
  const size_t before = resident_pages();
  void* at = nullptr;
  if (alloc(size_t{1} << 38, &at) != PINRAIL_SUCCESS) GTEST_SKIP() << "this system maps no 256 GiB without a reserve";
  EXPECT_LT(resident_pages(), before + 1024);
  EXPECT_EQ(release(at), PINRAIL_SUCCESS);
}
#endif

TEST_F(Alloc, nodes_have_memory_of_their_own) {
  char* const any = must(100);
  char* const first = must(100, 0, 0);
  EXPECT_NE(reinterpret_cast<uintptr_t>(any) / (2 * kMiB), reinterpret_cast<uintptr_t>(first) / (2 * kMiB));
  std::memset(first, 1, 100);
  EXPECT_EQ(release(any), PINRAIL_SUCCESS);
  EXPECT_EQ(release(first), PINRAIL_SUCCESS);
}

// Objects pass between threads; each is stamped by its maker and checked by who frees it.
TEST_F(Alloc, many_threads_allocate_and_free_each_others_memory) {
  start({{"mpool_alloc_keep", "4M"}, {"mpool_alloc_region", "2M"}});
  struct Object {
    char* at;
    size_t length;
    char stamp;
  };
  std::mutex mutex;
  std::vector<Object> shared;
  const auto run = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < 8000; ++i) {
      const size_t length = 1 + random() % (size_t{1} << (6 + random() % 11));
      const char stamp = static_cast<char>(random());
      char* const at = must(length);
      std::memset(at, stamp, length);
      Object other{};
      {
        const std::lock_guard<std::mutex> guard(mutex);
        shared.push_back({at, length, stamp});
        if (shared.size() > 500) {
          std::swap(shared[random() % shared.size()], shared.back());
          other = shared.back();
          shared.pop_back();
        }
      }
      if (other.at == nullptr) continue;
      for (size_t k = 0; k < other.length; k += 61) ASSERT_EQ(other.at[k], other.stamp);
      ASSERT_EQ(release(other.at), PINRAIL_SUCCESS);
    }
  };
  on_threads(8u, run);
  EXPECT_EQ(stats().allocations, shared.size());
  for (const Object& each : shared) EXPECT_EQ(release(each.at), PINRAIL_SUCCESS);
  EXPECT_EQ(stats().allocations, 0u);
}

// Fragmentation: what a random load of all sizes keeps registered beside what it uses.
TEST_F(Alloc, a_random_load_keeps_less_than_twice_what_it_uses) {
  start({{"mpool_alloc_keep", "0"}, {"mpool_alloc_region", "2M"}});
  std::mt19937 random(5);
  std::vector<std::pair<char*, size_t>> held(4000);
  uint64_t asked = 0;
  for (int i = 0; i < 40000; ++i) {
    auto& [at, length] = held[random() % held.size()];
    EXPECT_EQ(release(at), PINRAIL_SUCCESS);
    asked -= length;
    length = 1 + random() % (size_t{64} << random() % 15);
    at = must(length);
    asked += length;
  }
  const pinrail_alloc_stats_t now = stats();
  RecordProperty("asked", std::to_string(asked));
  std::printf("asked for %.1f MiB, in places of %.1f MiB, registered %.1f MiB\n", static_cast<double>(asked) / kMiB,
              static_cast<double>(now.allocated_bytes) / kMiB, static_cast<double>(now.mapped_bytes) / kMiB);
  EXPECT_LT(now.mapped_bytes, 2 * asked + 57 * 2 * kMiB) << "one slab of each class may be almost empty";
  for (const auto& each : held) EXPECT_EQ(release(each.first), PINRAIL_SUCCESS);
}

TEST_F(Alloc, what_threads_kept_of_a_pool_goes_with_it) {
  const auto serve_and_close = [this] {
    Pool pool(*device_, {});
    void* at = nullptr;
    EXPECT_EQ(pinrail_mpool_alloc(pool.get(), 100, 0, PINRAIL_NODE_ANY, &at), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_free(pool.get(), at), PINRAIL_SUCCESS);
    EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  };
  serve_and_close();
  const size_t before = heap_bytes();
  for (int i = 0; i < 100; ++i) serve_and_close();
  EXPECT_LT(heap_bytes(), before + 100 * 512);
}

TEST_F(Alloc, a_forked_child_has_the_bytes_and_frees_nothing) {
  char* const at = must(1000);
  std::strcpy(at, "parent");
  const uint64_t calls = device_->register_calls() + device_->deregister_calls();
  expect_success_in_child([&] {
    void* out = nullptr;
    bool is_right = std::strcmp(at, "parent") == 0 && alloc(10, &out) == PINRAIL_ERR_NOT_AVAILABLE;
    is_right = is_right && release(at) == PINRAIL_SUCCESS;
    is_right = is_right && device_->register_calls() + device_->deregister_calls() == calls;
    return is_right ? 0 : 1;
  });
  EXPECT_EQ(release(at), PINRAIL_SUCCESS);
}

// Its notes alone would take more memory than there is, for an allocation of any size.
TEST(AllocRegion, one_that_no_machine_has_memory_for_is_refused_at_the_start) {
  for (const char* const bytes : {"1025G", "1000T", "0"}) {
    const Library library(Settings{{"mpool_alloc_region", bytes}});
    EXPECT_EQ(library.status, PINRAIL_ERR_BAD_PARAM) << bytes;
  }
  const Library library(Settings{{"mpool_alloc_region", "1T"}});
  EXPECT_EQ(library.status, PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
