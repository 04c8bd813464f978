// SPDX-License-Identifier: BSD-3-Clause
// What a miss with its eviction costs, in instructions. One thread asks for 2,048 ranges in turn, of which the pool
// keeps 1,024, so that each request is a miss; after three rounds ten are made in a function that callgrind counts by
// itself ("make soak"). The registrar reads no memory, and the addresses have none.
#include <pinrail/pinrail.h>

#include <cstdio>

#include "test/support/host_table.h"

namespace {

constexpr uintptr_t kFirst = uintptr_t{1} << 44;
constexpr size_t kLength = 65536, kRanges = 2048, kRounds = 10;

pinrail_status_t register_nothing(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  return PINRAIL_SUCCESS;
}

bool use_all(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < kRanges; ++i) {
    pinrail_handle_t handle;
    void* const range = reinterpret_cast<void*>(kFirst + i * kLength);  // NOLINT(performance-no-int-to-ptr)
    well = pinrail_mpool_register(pool, range, kLength, PINRAIL_ACCESS_LOCAL_WRITE, 0, &handle) == PINRAIL_SUCCESS &&
           pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS && well;
  }
  return well;
}

}  // namespace

// Named in C, for callgrind.
extern "C" __attribute__((noinline)) bool pinrail_test_miss_often(pinrail_mpool_t* pool) {
  bool well = true;
  for (size_t i = 0; i < kRounds; ++i) well = use_all(pool) && well;
  return well;
}

int main() {
  pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
  options.count_limit = kRanges / 2;
  pinrail_mpool_t* const pool =
      pinrail::test::open_library_with_table({{"monitor", "external"}}, register_nothing, options);
  if (pool == nullptr) return 1;
  bool well = true;
  for (size_t i = 0; i < 3; ++i) well = use_all(pool) && well;
  well = pinrail_test_miss_often(pool) && well;
  pinrail_mpool_stats_t stats{};
  stats.size = sizeof(stats);
  const bool counted =
      pinrail_mpool_read_stats(pool, &stats) == PINRAIL_SUCCESS && stats.misses == (3 + kRounds) * kRanges;
  std::printf("miss_cost: %llu misses\n", static_cast<unsigned long long>(stats.misses));
  return well && counted ? 0 : 1;
}
