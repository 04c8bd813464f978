// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm without memory: whatever was not to be had, nothing of the request stays.
#include <string>

#include "test/gpu/gpu_library.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

constexpr size_t kMost = 4096;

// What a pool registers for itself, each time in the memory of a registration that was given back last.
const pinrail_registration_t* next_registration(const GpuPool& pool, const pinrail_gpu_block_t& block) {
  pinrail_handle_t handle{};
  EXPECT_EQ(pool.open(block, &handle, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
  drop(handle);
  return handle.reg;
}

class GpuNthAllocation : public ::testing::TestWithParam<uint32_t> {};

// The block is larger than the pool's limit, so the driver, who needs memory as well, is not asked; and what is to be
// said of that needs memory.
TEST_P(GpuNthAllocation, fails_and_the_exporter_and_the_registration_are_free) {
  const Library library(without_threads());
  const Bystander owner;
  slots::Exporter exporter;
  ASSERT_TRUE(owner.make(&exporter, 4));
  const PeerMemory small(owner.process.pid, 0x10000, kMost), large(owner.process.pid, 0x20000, 2 * kMost);
  const pinrail_gpu_block_t block = with_slot(large, owner.process, &exporter);
  long n = 0;
  for (bool reached = true; reached;) {
    SCOPED_TRACE("the " + std::to_string(++n) + "th allocation fails");
    GpuPool pool("rgpusm", at_most_bytes(kMost));
    const pinrail_registration_t* const free_one = next_registration(pool, small.block);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_SUCCESS;
    reached = with_nth_allocation_failing(n, [&] { status = pool.open(block, &handle, GetParam()); });
    EXPECT_EQ(status, PINRAIL_ERR_OUT_OF_RESOURCE);
    EXPECT_EQ(handle.reg, nullptr);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(next_registration(pool, small.block), free_one);
    EXPECT_EQ(exporter.importers_hook(block.slot), 0u);
    EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);  // ends all acquaintance
    EXPECT_EQ(times_mapped(block), 1u) << "its maker is this process too; the pool still counts a user";
  }
  EXPECT_GT(n, 5);
}

INSTANTIATE_TEST_SUITE_P(Flags, GpuNthAllocation,
                         ::testing::Values(PINRAIL_FLAG_CACHE_BYPASS, PINRAIL_FLAG_PERSISTENT));

}  // namespace
}  // namespace pinrail::test
