// SPDX-License-Identifier: BSD-3-Clause
// The n-th allocation of a prepin, of one in the background and of a stream fails, for all n: nothing is left, and the
// next one works.
#include <pinrail/pin.h>

#include <array>

#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

constexpr uintptr_t kBase = 0x10000000;

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
  int reached = 0, harmless = 0;
  // Several passes without a failure end the test: threads may allocate in another order.
  for (long n = 1; harmless < 3; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    fake::FakeOptions options;
    options.zero_cost = true;  // the fake's own allocations are not under test
    const fake::FakeRegistrar registrar(options);
    Pool pool(registrar);
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    const bool hit = with_nth_allocation_failing(n, [&] { status = GetParam()(pool.get()); });
    reached += hit ? 1 : 0;
    harmless += hit ? 0 : 1;
    EXPECT_TRUE(status == PINRAIL_SUCCESS || (hit && status == PINRAIL_ERR_OUT_OF_RESOURCE)) << status;
    EXPECT_EQ(pool.stats().registered_count, 0u);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(GetParam()(pool.get()), PINRAIL_SUCCESS) << "it works on";
    ASSERT_EQ(pool.close(), PINRAIL_SUCCESS);
  }
  EXPECT_GT(reached, 4);
}

INSTANTIATE_TEST_SUITE_P(Ways, NthAllocationOf, testing::Values(pin, pin_in_background, stream));

}  // namespace
}  // namespace pinrail::test
