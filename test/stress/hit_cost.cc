// SPDX-License-Identifier: BSD-3-Clause
// What a hit costs beside many threads, in instructions. So many threads use the pool and stay; the last of them hits
// 10,000 times, spread over so many regions, in a function that callgrind counts by itself ("make soak"). Before, a
// pool that checks its hits has come and gone.
//   hit_cost [THREADS [REGIONS [inner]]]    inner: the regions are parts of one registration
#include <pinrail/pinrail.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "test/support/host_table.h"

namespace {

constexpr size_t kHits = 10000;
constexpr uintptr_t kFirst = uintptr_t{1} << 43;
constexpr size_t kLength = 65536;
size_t regions = 1;
bool is_inner = false;

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}

bool use(pinrail_mpool_t* pool, size_t region, size_t length) {
  pinrail_handle_t handle;
  void* const memory = reinterpret_cast<void*>(kFirst + region * kLength);  // NOLINT(performance-no-int-to-ptr)
  return pinrail_mpool_register(pool, memory, length, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) == PINRAIL_SUCCESS &&
         pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS;
}

bool use_each(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < regions; ++i) well = use(pool, i + is_inner, kLength) && well;
  return well;
}

}  // namespace

// Named in C, for callgrind.
extern "C" __attribute__((noinline)) bool pinrail_test_hit_often(pinrail_mpool_t* pool) {
  bool well = true;
  constexpr size_t kFarAway = 7919;  // a prime number
  for (size_t i = 0, region = 0; i < kHits; ++i, region = (region + kFarAway) % regions)
    well = use(pool, region + is_inner, kLength) && well;
  return well;
}

int main(int argc, char** argv) {
  const size_t threads = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 1024;
  if (argc > 2) regions = std::strtoul(argv[2], nullptr, 10);
  is_inner = argc > 3;
  pinrail_mpool_t* const checked = pinrail::test::open_library_with_table(
      {{"monitor", "external"}, {"mpool_grdma_check", "sample"}}, register_nothing);
  if (checked == nullptr || pinrail_mpool_destroy(checked, 0) != PINRAIL_SUCCESS) return 1;
  if (pinrail_finalize() != PINRAIL_SUCCESS) return 1;
  pinrail_mpool_t* const pool = pinrail::test::open_library_with_table({{"monitor", "external"}}, register_nothing);
  if (pool == nullptr) return 1;
  if (is_inner && !use(pool, 0, (regions + 1) * kLength)) return 1;
  std::atomic<size_t> ready{0};
  std::atomic<bool> well{true};
  std::mutex until_over;
  until_over.lock();
  std::vector<std::thread> all;
  for (size_t i = 0; i < threads; ++i) {
    all.emplace_back([&, i] {
      well = use_each(pool) && use_each(pool) && use_each(pool) && well;
      if (i + 1 == threads) well = pinrail_test_hit_often(pool) && well;
      ++ready;
      const std::lock_guard<std::mutex> over(until_over);
    });
    while (ready != i + 1) std::this_thread::yield();
  }
  until_over.unlock();
  for (std::thread& thread : all) thread.join();
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  const bool counted =
      pinrail_mpool_read_stats(pool, &stats) == PINRAIL_SUCCESS && stats.misses == (is_inner ? 1 : regions);
  std::printf("hit_cost: %zu threads, %llu hits, %llu misses\n", threads, static_cast<unsigned long long>(stats.hits),
              static_cast<unsigned long long>(stats.misses));
  return well && counted ? 0 : 1;
}
