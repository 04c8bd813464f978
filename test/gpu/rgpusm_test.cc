// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm over the driver double: whose memory, and which order. The four modes are in rgpusm_modes_test.cc.
#include <memory>
#include <thread>
#include <vector>

#include "test/gpu/gpu_library.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kA = 1000001, kB = 1000002;  // pids that no process has
constexpr uint64_t kBase = 0x10000;
constexpr size_t kSmall = 32 << 10;

class Rgpusm : public ::testing::Test {
 protected:
  void SetUp() override { cuda_double_forget(); }
  void TearDown() override {
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    cuda_double_forget();
  }
  Library library_{without_threads()};
};

TEST_F(Rgpusm, two_exporters_with_equal_addresses_never_mix) {
  GpuPool pool("rgpusm");
  const PeerMemory a(kA, kBase, kSmall), b(kB, kBase, kSmall);
  pinrail_gpu_block_t equal = b.block;  // but for the pid: drivers count buffer ids in each process from the beginning
  equal.buffer_id = a.block.buffer_id;
  seal_block(&equal);
  const pinrail_handle_t of_a = pool.must(a.block), of_b = pool.must(equal);
  EXPECT_NE(of_a.reg, of_b.reg);
  EXPECT_NE(of_a.reg->base, of_b.reg->base);
  const uint32_t sent = 0x1234;
  uint32_t seen = 1;
  EXPECT_EQ(pinrail_mpool_device_write(of_a, 0, &sent, sizeof(sent)), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_device_read(of_b, 0, &seen, sizeof(seen)), PINRAIL_SUCCESS);
  EXPECT_EQ(seen, 0u);
  pinrail_mpool_deregister(of_a);
  pinrail_mpool_deregister(of_b);
}

// The kernel gives a pid again, and drivers count buffer ids in each process from the beginning.
TEST_F(Rgpusm, an_exporter_that_began_later_with_the_pid_of_another_is_another) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, kSmall);
  pinrail_gpu_block_t later = memory.block;
  ++later.start;
  seal_block(&later);
  for (int use = 0; use < 2; ++use) {
    for (const pinrail_gpu_block_t& block : {memory.block, later}) pool.use(block);
  }
  EXPECT_EQ(pool.stats().misses, 2u) << "one of each";
}

TEST(RgpusmSettings, with_empty_cache_all_that_is_idle_makes_room_for_one) {
  const Library library(without_threads({{"mpool_rgpusm_empty_cache", "yes"}}));
  const GpuPool pool("rgpusm", at_most(4));
  const PeerMemory a(kA, kBase, 4096), b(kA, 2 * kBase, 4096), c(kA, 3 * kBase, 4096), d(kA, 4 * kBase, 4096),
      e(kA, 5 * kBase, 4096);
  const Held held = pool.hold(a.block);
  for (const PeerMemory* each : {&b, &c, &d}) pool.use(each->block);
  EXPECT_EQ(pool.stats().registered_count, 4u);
  pool.use(e.block);
  EXPECT_EQ(pool.stats().registered_count, 2u) << "what is held, and the new one";
}

// Without slots only the next block tells that memory was freed, and a driver may open it beside the old mapping. As
// long as that is open, it keeps the freed memory.
TEST_F(Rgpusm, without_slots_what_the_next_block_overlaps_is_closed) {
  GpuPool pool("rgpusm");
  PeerMemory idle(kA, kBase, kSmall), used(kA, 2 * kBase, kSmall);
  const PeerMemory same_place_of_another(kB, kBase, kSmall), beside(kA, 3 * kBase, kSmall);
  for (const auto& block : {idle.block, same_place_of_another.block, beside.block}) pool.use(block);
  const pinrail_handle_t held = pool.must(used.block);
  idle.free();
  used.free();
  const PeerMemory in_idle(kA, kBase + 4096, 4096), in_used(kA, 2 * kBase + 4096, 4096);
  pool.use(in_idle.block);
  pool.use(in_used.block);
  EXPECT_EQ(cuda_double_is_open(kA, kBase), 0);
  EXPECT_EQ(cuda_double_is_open(kA, 2 * kBase), 1);
  drop(held);
  EXPECT_EQ(cuda_double_is_open(kA, 2 * kBase), 0);
  EXPECT_EQ(pool.stats().indexed, 4u) << "the two new ones, and the others";
  EXPECT_TRUE(pool.invariants_hold());
}

TEST_F(Rgpusm, what_dies_while_hits_hold_it_is_closed_by_the_last_release) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  pool.use(memory.block);
  const pinrail_handle_t first = pool.must(memory.block), second = pool.must(memory.block);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), first.reg->base, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  drop(first);
  EXPECT_EQ(cuda_double_open_handles(), 1u);
  drop(second);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  EXPECT_EQ(pinrail_mpool_deregister(second), PINRAIL_ERR_BAD_PARAM);
}

TEST_F(Rgpusm, the_driver_out_of_memory_costs_the_oldest_ones_until_it_agrees) {
  GpuPool pool("rgpusm");
  const PeerMemory a(kA, kBase, 4096), b(kA, 2 * kBase, 4096), c(kA, 3 * kBase, 4096);
  pool.use(a.block);
  pool.use(b.block);
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
  pool.use(c.block);
  EXPECT_EQ(pool.stats().evictions, 1u);
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  EXPECT_EQ(pool.answer_to(a.block), PINRAIL_ERR_OUT_OF_RESOURCE);
  EXPECT_EQ(pool.stats().registered_count, 0u);
}

// Another thread closed what was in the way between the driver's answer and the look for something to close.
TEST_F(Rgpusm, what_was_closed_meanwhile_is_not_in_the_way) {
  const GpuPool pool("rgpusm");
  const PeerMemory a(kA, kBase, 4096);
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_ALREADY_MAPPED, 0);
  const Held held = pool.hold(a.block);
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_OUT_OF_MEMORY, 0);
  const PeerMemory b(kA, 2 * kBase, 4096);
  pool.use(b.block);
}

TEST_F(Rgpusm, ways_of_idle_ones_of_that_exporter_are_tried_only_while_it_would_block) {
  GpuPool pool("rgpusm");
  const PeerMemory a(kA, kBase, 4096), b(kA, 2 * kBase, 4096), c(kA, 3 * kBase, 4096), other(kB, kBase, 4096);
  pool.use(a.block);
  pool.use(b.block);
  pool.use(other.block);
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_ALREADY_MAPPED, 0);
  pool.use(c.block);
  EXPECT_EQ(pool.stats().evictions, 1u) << "one, and the driver agreed";
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_ALREADY_MAPPED, 1);
  EXPECT_EQ(pool.answer_to(a.block), PINRAIL_ERR_WOULD_BLOCK);
  EXPECT_EQ(pool.stats().registered_count, 1u) << "the other exporter's";
}

TEST_F(Rgpusm, one_that_is_idle_is_found_beside_one_that_is_held) {
  for (const bool first_is_held : {true, false}) {
    GpuPool pool("rgpusm");
    const PeerMemory a(kA, kBase, 4096), b(kA, 2 * kBase, 4096), c(kA, 3 * kBase, 4096);
    pool.use(a.block);
    pool.use(b.block);
    std::thread([&] { pool.use(b.block); }).join();
    std::thread([&] { pool.use(a.block); }).join();
    const pinrail_handle_t held = pool.must(first_is_held ? a.block : b.block);
    cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_ALREADY_MAPPED, 0);
    pool.use(c.block);
    EXPECT_EQ(pool.stats().evictions, 1u);
    drop(held);
  }
}

// The memory of a registration that has ended serves the next one, to which the hint of the first then leads.
TEST_F(Rgpusm, a_hint_to_memory_that_serves_another_allocation_answers_nothing) {
  GpuPool pool("rgpusm");
  const PeerMemory first(kA, kBase, 4096), second(kB, 2 * kBase, 4096);
  const pinrail_handle_t old = pool.must(first.block);
  drop(old);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_SUCCESS);
  const pinrail_handle_t held = pool.must(second.block);
  EXPECT_EQ(held.reg, old.reg);
  const pinrail_handle_t again = pool.must(first.block);
  EXPECT_NE(again.reg, held.reg);
  drop(again);
  drop(held);
  EXPECT_EQ(pool.referenced(), 0u);
}

TEST_F(Rgpusm, bypass_opens_for_itself_and_persistent_ones_are_not_evicted) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096), other(kA, 2 * kBase, 4096);
  pinrail_handle_t bypass{}, persistent{};
  ASSERT_EQ(pool.open(memory.block, &bypass, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
  ASSERT_EQ(pool.open(other.block, &persistent, PINRAIL_FLAG_PERSISTENT), PINRAIL_SUCCESS);
  EXPECT_EQ(pool.stats().indexed, 1u);
  EXPECT_EQ(pool.stats().pinned_bytes, 2u * 4096u);
  EXPECT_EQ(pinrail_mpool_evict(pool.get()), PINRAIL_ERR_NOT_FOUND);
  drop(bypass);
  drop(persistent);
  EXPECT_EQ(pool.stats().registered_count, 0u);
}

TEST_F(Rgpusm, an_invalidated_mapping_is_not_given_out_again) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  const pinrail_handle_t handle = pool.must(memory.block);
  void* const at = handle.reg->base;
  pinrail_handle_t found{};
  ASSERT_EQ(pinrail_mpool_find(pool.get(), at, 10, 0, &found), PINRAIL_SUCCESS);
  EXPECT_EQ(found.reg, handle.reg);
  pinrail_mpool_deregister(found);
  pinrail_mpool_deregister(handle);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), at, 1), PINRAIL_SUCCESS);
  pool.use(memory.block);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 2u);
}

TEST_F(Rgpusm, host_memory_is_none_of_its_business_and_other_pools_know_no_blocks) {
  GpuPool pool("rgpusm");
  pinrail_handle_t handle{};
  pinrail_gpu_block_t block{};
  size_t offset = 0;
  int here = 0;
  EXPECT_EQ(pinrail_mpool_register(pool.get(), &here, sizeof(here), 0, 0, &handle), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pinrail_mpool_export(pool.get(), &here, sizeof(here), &block, &offset), PINRAIL_ERR_NOT_SUPPORTED);
  fake::FakeRegistrar registrar;
  const Pool host_pool(registrar);
  EXPECT_EQ(pinrail_mpool_register_remote(host_pool.get(), &block, 0, 1, 0, 0, &handle), PINRAIL_ERR_NOT_SUPPORTED);
}

TEST(RgpusmParameters, old_names_are_understood) {
  for (const char* name : {"mpool_rgpusm_rcache_size_limit", "rcache_rgpusm_size_limit"}) {
    Library library(without_threads({{name, "5000"}}));
    ASSERT_EQ(library.status, PINRAIL_SUCCESS) << name;
    pinrail_mpool_t* pool = nullptr;
    ASSERT_EQ(pinrail_mpool_create("rgpusm", nullptr, nullptr, nullptr, &pool), PINRAIL_SUCCESS);
    auto stats = sized<pinrail_mpool_stats_t>();
    EXPECT_EQ(pinrail_mpool_read_stats(pool, &stats), PINRAIL_SUCCESS);
    EXPECT_EQ(stats.size_limit, 5000u) << name;
    EXPECT_EQ(stats.leave_pinned, 1u);
    EXPECT_STREQ(pinrail_mpool_registrar_name(pool), "cuda_ipc") << "found by itself";
    EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
  }
}

// A pool of that mpool on cuda_ipc: what making it comes to.
pinrail_status_t make_gpu_pool(const char* mpool) {
  pinrail_registrar_choice_t registrar{};
  registrar.name = "cuda_ipc";
  pinrail_mpool_t* pool = nullptr;
  const pinrail_status_t status = pinrail_mpool_create(mpool, &registrar, nullptr, nullptr, &pool);
  EXPECT_EQ(pool != nullptr, status == PINRAIL_SUCCESS);
  if (pool != nullptr) {
    EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
  }
  return status;
}

// No driver; and a library that is there and has none of the driver's functions.
TEST(GpuPoolsAbsent, without_a_driver_they_are_not_available_and_nothing_else_changes) {
  for (const char* file : {"libcuda.of.nowhere", "libm.so.6"}) {
    said_by([&] {
      Library library(without_threads({{"registrar_cuda_ipc_library", file}}));
      ASSERT_EQ(library.status, PINRAIL_SUCCESS) << file;
      EXPECT_EQ(make_gpu_pool("gpusm"), PINRAIL_ERR_NOT_AVAILABLE) << file;
      EXPECT_EQ(make_gpu_pool("rgpusm"), PINRAIL_ERR_NOT_AVAILABLE) << file;
      fake::FakeRegistrar registrar;
      const Pool host_pool(registrar);
      ASSERT_EQ(host_pool.status, PINRAIL_SUCCESS) << "pools of host memory go on";
      host_pool.use(0x10000000, kPage);
    });
  }
}

TEST(GpuPoolsAbsent, a_driver_without_ipc_refuses_each_block_and_holds_nothing) {
  Library library(without_threads());
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  cuda_double_forget();
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_NOT_SUPPORTED, 1);
  EXPECT_EQ(pool.answer_to(memory.block), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(pool.referenced(), 0u);
  cuda_double_forget();
}

}  // namespace
}  // namespace pinrail::test
