// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm without memory: whatever was not to be had, nothing of the request stays.
#include <memory>
#include <vector>

#include "framework/registrar/request.h"
#include "test/gpu/gpu_library.h"
#include "test/support/cases.h"
#include "test/support/registrars.h"

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
  const int reached = for_each_allocation([&](long n) {
    GpuPool pool("rgpusm", at_most_bytes(kMost));
    const pinrail_registration_t* const free_one = next_registration(pool, small.block);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_SUCCESS;
    const bool hit = with_nth_allocation_failing(n, [&] { status = pool.open(block, &handle, GetParam()); });
    EXPECT_EQ(status, PINRAIL_ERR_OUT_OF_RESOURCE);
    EXPECT_EQ(handle.reg, nullptr);
    EXPECT_TRUE(pool.invariants_hold());
    EXPECT_EQ(next_registration(pool, small.block), free_one);
    EXPECT_EQ(exporter.importers_hook(block.slot), 0u);
    EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_RESTART), PINRAIL_SUCCESS);  // ends all acquaintance
    EXPECT_EQ(times_mapped(block), 1u) << "its maker is this process too; the pool still counts a user";
    return hit;
  });
  EXPECT_GT(reached, 4);
}

INSTANTIATE_TEST_SUITE_P(Flags, GpuNthAllocation,
                         ::testing::Values(PINRAIL_FLAG_CACHE_BYPASS, PINRAIL_FLAG_PERSISTENT));

// R10, C4: a registrar of GPU memory that throws leaves no request, registration or count behind.

using In = LeavingRegistrar::In;
constexpr uint32_t kPid = 4711;
constexpr size_t kLength = 4096;

void try_to_use(const GpuPool& pool, const pinrail_gpu_block_t& block) {
  pinrail_handle_t handle{};
  if (pool.open(block, &handle) == PINRAIL_SUCCESS) drop(handle);
}
void try_to_use(const GpuPool& pool, uintptr_t at) {
  pinrail_handle_t handle{};
  auto* const addr = reinterpret_cast<void*>(at);  // NOLINT(performance-no-int-to-ptr): never read
  if (pinrail_mpool_register(pool.get(), addr, kLength, 0, 0, &handle) == PINRAIL_SUCCESS) drop(handle);
}

// A hang is a failure.
class GpuUnwinding : public ::testing::TestWithParam<In> {
 protected:
  void SetUp() override { alarm(60); }
  void TearDown() override { alarm(0); }
  void leave(const std::function<void()>& body) {
    registrar_.leave_in(GetParam());
    body();
    EXPECT_TRUE(registrar_.has_left());
  }
  void expect_whole(GpuPool* pool, const pinrail_gpu_block_t& block) {
    pool->use(block);
    EXPECT_TRUE(pool->invariants_hold());
    EXPECT_EQ(pool->stats().registered_count, pool->stats().indexed);
    EXPECT_EQ(pool->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(registrar_.tails.load(), 0);
  }

  const Library library_{without_threads()};
  LeavingRegistrar registrar_{PINRAIL_THREAD_CONCURRENT, PINRAIL_KIND_REMOTE};
};
// Out of what closes one.
class GpuUnwindingBack : public GpuUnwinding {};

TEST_P(GpuUnwinding, out_of_a_miss_leaves_nothing_behind) {
  const PeerMemory old(kPid, 0x10000, kLength), fresh(kPid, 0x20000, kLength);
  GpuPool pool("rgpusm", registrar_.table(), at_most(1));
  pool.use(old.block);  // in the way, so that a miss closes something as well
  leave([&] { try_to_use(pool, fresh.block); });
  expect_whole(&pool, fresh.block);
}

TEST_P(GpuUnwindingBack, out_of_one_closes_the_rest_of_the_batch) {
  std::vector<std::unique_ptr<PeerMemory>> memory;
  for (uint64_t i = 1; i <= 100; ++i) memory.push_back(std::make_unique<PeerMemory>(kPid, i * 0x10000, kLength));
  GpuPool pool("rgpusm", registrar_.table());
  for (const auto& each : memory) pool.use(each->block);
  EXPECT_EQ(pool.stats().registered_count, memory.size());
  leave([&] { EXPECT_EQ(pinrail_mpool_ft_event(pool.get(), PINRAIL_FT_CHECKPOINT), PINRAIL_SUCCESS); });
  EXPECT_EQ(pool.stats().registered_count, 0u);
  expect_whole(&pool, memory.front()->block);
}

// What a block without a slot overlaps is closed after the request has got its reference.
TEST_P(GpuUnwindingBack, out_of_what_the_next_block_overlaps_leaves_no_reference) {
  const PeerMemory old(kPid, 0x10000, 2 * kLength), fresh(kPid, 0x10000 + kLength, kLength);
  GpuPool pool("rgpusm", registrar_.table());
  pool.use(old.block);
  leave([&] { try_to_use(pool, fresh.block); });
  expect_whole(&pool, fresh.block);
}

// The same at the owner, whose registrar says at each request that the allocation at an address is another one.
class OwnerUnwinding : public GpuUnwinding {
 protected:
  static pinrail_status_t identify(void*, const void* addr, pinrail_gpu_range_t* range_out) {
    range_out->base = const_cast<void*>(addr);
    range_out->length = 2 * kLength;
    range_out->buffer_id = id;
    return PINRAIL_SUCCESS;
  }
  static inline uint64_t id = 0;
};

TEST_P(OwnerUnwinding, out_of_what_an_export_overlaps_leaves_no_reference) {
  pinrail_registrar_t table = registrar_.table();
  static pinrail_status_t (*inner)(void*, const pinrail_register_request_t*, pinrail_registration_t*);
  inner = table.register_mem;
  table.kinds = PINRAIL_KIND_GPU;
  table.tail_size = sizeof(pinrail_gpu_block_t);
  table.identify = identify;
  table.register_mem = [](void* self, const pinrail_register_request_t* request, pinrail_registration_t* reg) {
    static_cast<pinrail_gpu_block_t*>(registrar_tail(reg))->buffer_id = id;
    return inner(self, request, reg);
  };
  GpuPool pool("gpusm", table);
  id = 1;
  try_to_use(pool, 0x10000);
  id = 2;
  leave([&] { try_to_use(pool, 0x10000 + kLength); });
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar_.tails.load(), 0);
}

// Before the request is announced, and while it is.
TEST(GpuIdentify, that_throws_is_an_error_and_leaves_no_request_behind) {
  const Library library(without_threads());
  const LeavingRegistrar registrar(PINRAIL_THREAD_CONCURRENT, PINRAIL_KIND_GPU);
  pinrail_registrar_t table = registrar.table();
  static int calls_left;
  table.tail_size = sizeof(pinrail_gpu_block_t);
  table.identify = [](void*, const void* addr, pinrail_gpu_range_t* range_out) {
    if (--calls_left == 0) throw std::bad_alloc();
    range_out->base = const_cast<void*>(addr);
    range_out->length = kLength;
    return PINRAIL_SUCCESS;
  };
  GpuPool pool("gpusm", table);
  for (const int call : {1, 2}) {
    SCOPED_TRACE(call);
    calls_left = call;
    pinrail_handle_t handle{};
    auto* const addr = reinterpret_cast<void*>(kLength);  // NOLINT(performance-no-int-to-ptr): never read
    EXPECT_EQ(pinrail_mpool_register(pool.get(), addr, kLength, 0, 0, &handle), PINRAIL_ERR_ERROR);
    ASSERT_EQ(pool.stats().registered_count, 0u);
    ASSERT_EQ(pinrail_mpool_register(pool.get(), addr, kLength, 0, 0, &handle), PINRAIL_SUCCESS);
    drop(handle);
    pool.evict_all();
  }
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(registrar.tails.load(), 0);
}

const In kBack[] = {In::deregister_mem, In::tail_fini};
const In kForth[] = {In::register_mem, In::tail_init};
INSTANTIATE_TEST_SUITE_P(back, GpuUnwinding, ::testing::ValuesIn(kBack));
INSTANTIATE_TEST_SUITE_P(forth, GpuUnwinding, ::testing::ValuesIn(kForth));
INSTANTIATE_TEST_SUITE_P(back, GpuUnwindingBack, ::testing::ValuesIn(kBack));
INSTANTIATE_TEST_SUITE_P(back, OwnerUnwinding, ::testing::ValuesIn(kBack));

}  // namespace
}  // namespace pinrail::test
