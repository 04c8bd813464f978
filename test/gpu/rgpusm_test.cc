// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm over the driver double: whose memory, and which order; what can happen to a request in each of the four
// modes; what a block may not say, and one that changes while it is read.
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "test/gpu/gpu_library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kA = 1000001, kB = 1000002;  // pids that no process has
constexpr uint64_t kBase = 0x10000;
constexpr size_t kSmall = 32 << 10, kLarge = 64 << 10;

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
  pinrail_gpu_block_t later = a.block;  // the kernel gives a pid again
  ++later.start;
  seal_block(&later);
  const pinrail_handle_t of_a = pool.must(a.block), of_b = pool.must(equal);
  EXPECT_NE(of_a.reg->base, of_b.reg->base);
  const uint32_t sent = 0x1234;
  uint32_t seen = 1;
  EXPECT_EQ(pinrail_mpool_device_write(of_a, 0, &sent, sizeof(sent)), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_device_read(of_b, 0, &seen, sizeof(seen)), PINRAIL_SUCCESS);
  EXPECT_EQ(seen, 0u);
  for (const auto& block : {a.block, equal, later, later}) pool.use(block);
  EXPECT_EQ(pool.stats().misses, 3u) << "one of each";
  drop(of_a);
  drop(of_b);
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
  void* const at = first.reg->base;
  const uint64_t hits = pool.stats().hits;
  pinrail_handle_t found{};
  ASSERT_EQ(pinrail_mpool_find(pool.get(), at, 10, 0, &found), PINRAIL_SUCCESS);
  EXPECT_EQ(found.reg, first.reg);
  EXPECT_EQ(pool.stats().hits, hits + 1);
  drop(found);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), at, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  drop(first);
  EXPECT_EQ(cuda_double_open_handles(), 1u);
  drop(second);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  EXPECT_EQ(pinrail_mpool_deregister(second), PINRAIL_ERR_BAD_PARAM);
  const pinrail_handle_t third = pool.must(memory.block);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 2u) << "it is not given out again";
  void* const there = third.reg->base;
  drop(third);
  EXPECT_EQ(pinrail_mpool_invalidate_range(pool.get(), there, 1), PINRAIL_SUCCESS);
  pool.use(memory.block);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 3u) << "nor what died when it was idle, and at once";
  EXPECT_EQ(pool.stats().invalidations, 2u);
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
    for (const PeerMemory* each : {&a, &b}) pool.use(each->block);
    for (const PeerMemory* each : {&b, &a}) std::thread([&] { pool.use(each->block); }).join();
    const Held held = pool.hold(first_is_held ? a.block : b.block);
    cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_ALREADY_MAPPED, 0);
    pool.use(c.block);
    EXPECT_EQ(pool.stats().evictions, 1u);
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

// The four modes of mpool/rgpusm x what can happen to a request: after each step the references, the bytes and the
// calls of the driver are counted, exactly.

uint64_t opens() { return cuda_double_calls("cuIpcOpenMemHandle"); }
uint64_t closes() { return cuda_double_calls("cuIpcCloseMemHandle"); }
// An open or a close: the context is retained and made current, the driver is asked, the caller's context is made
// current again, the reference given back. And what is mapped is identified: after an open, and before a close.
constexpr uint64_t kCallsEach = 5;
uint64_t identified() { return cuda_double_open_handles() + 2 * closes(); }

// What must be true after a step; opens and closes since SetUp(), refused ones too.
struct State {
  size_t references;
  size_t bytes;
  uint64_t opens, closes;
};

// leave_pinned x size limit, as the mode's number says: 1 no, none; 2 no, limited; 3 yes, none; 4 yes, limited.
class FourModes : public ::testing::TestWithParam<int> {
 protected:
  static constexpr size_t kLimit = 2 * kLarge;
  void SetUp() override {
    PoolOptions options;
    options.leave_pinned = keeps() ? 1 : 0;
    options.size_limit = is_limited() ? static_cast<int64_t>(kLimit) : 0;
    pool_ = std::make_unique<GpuPool>("rgpusm", options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
    // The first reference on the context of a device is kept.
    const PeerMemory first(kB, 16 * kBase, 4096);
    pinrail_handle_t handle{};
    ASSERT_EQ(pool_->open(first.block, &handle, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
    drop(handle);
    cuda_double_forget();
  }
  void TearDown() override {
    EXPECT_EQ(pool_->referenced(), 0u);
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    cuda_double_forget();
  }
  bool keeps() const { return GetParam() >= 3; }
  bool is_limited() const { return GetParam() % 2 == 0; }
  template <typename Value>
  Value by_keeping(Value kept, Value otherwise) const {
    return keeps() ? kept : otherwise;
  }
  void expect(const State& state, const char* after) const {
    SCOPED_TRACE(after);
    EXPECT_EQ(pool_->referenced(), state.references);
    EXPECT_EQ(pool_->stats().registered_bytes, state.bytes);
    EXPECT_EQ(opens(), state.opens);
    EXPECT_EQ(closes(), state.closes);
    EXPECT_EQ(cuda_double_calls("*"), kCallsEach * (state.opens + state.closes) + identified()) << "and nothing else";
    EXPECT_EQ(cuda_double_open_handles(), pool_->stats().registered_count);
    EXPECT_TRUE(pool_->invariants_hold());
  }

  const Library library_{without_threads()};
  std::unique_ptr<GpuPool> pool_;
};

TEST_P(FourModes, a_miss_opens_a_hit_asks_nothing_and_a_last_release_closes_only_without_leave_pinned) {
  const PeerMemory memory(kA, kBase, kSmall);
  const pinrail_handle_t first = pool_->must(memory.block);
  EXPECT_EQ(first.reg->length, kSmall);
  expect({1, kSmall, 1, 0}, "the miss");
  const pinrail_handle_t second = pool_->must(memory.block);
  EXPECT_EQ(first.reg, second.reg);
  expect({1, kSmall, 1, 0}, "a hit on what is held");
  drop(first);
  expect({1, kSmall, 1, 0}, "the release of one of two");
  drop(second);
  expect(by_keeping<State>({0, kSmall, 1, 0}, {0, 0, 1, 1}), "the last release");
  EXPECT_EQ(pinrail_mpool_deregister(second), PINRAIL_ERR_BAD_PARAM);
  const pinrail_handle_t third = pool_->must(memory.block);
  expect(by_keeping<State>({1, kSmall, 1, 0}, {1, kSmall, 2, 1}), "asked for again");
  drop(third);
  EXPECT_EQ(pool_->stats().hits, by_keeping(2u, 1u));
  EXPECT_EQ(pool_->stats().misses, by_keeping(2u, 3u)) << "one of them SetUp()'s";
}

TEST_P(FourModes, a_stale_idle_one_is_closed_before_the_open_or_when_the_driver_says_that_it_is_in_the_way) {
  PeerMemory memory(kA, kBase, kSmall);
  pool_->use(memory.block);
  memory.replace(kSmall);  // an entry is found, and is of another allocation
  drop(pool_->must(memory.block));
  expect(by_keeping<State>({0, kSmall, 2, 1}, {0, 0, 2, 2}), "as long as before");
  EXPECT_EQ(pool_->stats().retries, 0u);
  memory.replace(kLarge);  // larger: no entry is found, and the driver says that something is mapped
  const pinrail_handle_t handle = pool_->must(memory.block);
  expect(by_keeping<State>({1, kLarge, 4, 2}, {1, kLarge, 3, 2}), "larger");
  EXPECT_EQ(pool_->stats().retries, by_keeping(1u, 0u));
  drop(handle);
  expect(by_keeping<State>({0, kLarge, 4, 2}, {0, 0, 3, 3}), "the release");
}

TEST_P(FourModes, a_stale_one_in_use_in_the_way_would_block_and_stays_intact) {
  PeerMemory memory(kA, kBase, kSmall);
  const PeerMemory bystander(kA, kBase + (1 << 20), 4096);
  pool_->use(bystander.block);
  const pinrail_handle_t old_one = pool_->must(memory.block);
  const State held = by_keeping<State>({1, kSmall + 4096, 2, 0}, {1, kSmall, 2, 1});
  expect(held, "the old one is held");
  uint64_t attempts = 0;
  for (const size_t size : {kLarge, kSmall}) {
    memory.replace(size);
    EXPECT_EQ(pool_->answer_to(memory.block), PINRAIL_ERR_WOULD_BLOCK);
    ++attempts;
    expect({1, held.bytes, held.opens + attempts, held.closes}, "WOULD_BLOCK, in use: the bystander is none of it");
  }
  char byte = 0;
  EXPECT_EQ(pinrail_mpool_device_read(old_one, kSmall - 1, &byte, 1), PINRAIL_SUCCESS);
  drop(old_one);
  pool_->use(memory.block);
}

TEST_P(FourModes, a_limit_lets_idle_ones_go_and_held_ones_are_an_error) {
  const PeerMemory a(kA, kBase, kLarge), b(kB, kBase, kLarge), c(kB, 32 * kBase, kLarge),
      larger(kA, 32 * kBase, kLimit + 1);
  const pinrail_handle_t first = pool_->must(a.block), second = pool_->must(b.block);
  expect({2, kLimit, 2, 0}, "as much as may be");
  if (is_limited()) {
    EXPECT_EQ(pool_->answer_to(c.block), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    expect({2, kLimit, 2, 0}, "over the limit");
    drop(first);
    drop(pool_->must(c.block));
    const State after = by_keeping<State>({1, kLimit, 3, 1}, {1, kLarge, 3, 2});
    expect(after, "the idle one went");
    const std::string said = said_by([&] { EXPECT_EQ(pool_->answer_to(larger.block), PINRAIL_ERR_OUT_OF_RESOURCE); });
    EXPECT_NE(said.find("mpool_rgpusm_size_limit"), std::string::npos) << said;
    expect(after, "a request that is larger than the limit evicts nothing");
    EXPECT_EQ(pool_->stats().peak_registered_bytes, kLimit);
  } else {
    const Held third = pool_->hold(c.block), fourth = pool_->hold(larger.block);
    expect({4, 3 * kLarge + kLimit + 1, 4, 0}, "there is no limit");
    drop(first);
  }
  drop(second);
}

TEST_P(FourModes, whichever_call_of_the_driver_fails_nothing_is_held_or_left_open) {
  uint64_t calls = 1, failed = 0;
  for (uint64_t n = 1; n <= calls; ++n) {
    SCOPED_TRACE(n);
    PeerMemory memory(kA, kBase, kSmall);
    cuda_double_forget();
    cuda_double_fail("*", n, CUDA_ERROR_UNKNOWN, 0);
    for (const size_t bytes : {kSmall, kLarge}) {
      if (bytes != kSmall) memory.replace(bytes);
      pinrail_handle_t handle{};
      if (pool_->open(memory.block, &handle) == PINRAIL_SUCCESS) {
        drop(handle);
      } else {
        ++failed;
      }
      EXPECT_EQ(pool_->referenced(), 0u);
      EXPECT_EQ(cuda_double_open_handles(), pool_->stats().registered_count);
      EXPECT_TRUE(pool_->invariants_hold());
    }
    pool_->evict_all();
    EXPECT_EQ(pool_->stats().registered_bytes, 0u);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    calls = std::max(calls, cuda_double_calls("*"));
  }
  EXPECT_GT(calls, 20u);
  EXPECT_GT(failed, 4u);
}

INSTANTIATE_TEST_SUITE_P(Modes, FourModes, ::testing::Values(1, 2, 3, 4));

class RgpusmBlocks : public ::testing::Test {
 protected:
  void SetUp() override { cuda_double_forget(); }
  void TearDown() override { EXPECT_EQ(cuda_double_open_handles(), 0u); }
  const Library library_{without_threads()};
};

// What is not in the cache is refused, whichever byte it is. What is may be answered all the same, by what the block
// says it is of: a hit does not look at the rest.
TEST_F(RgpusmBlocks, a_block_of_which_any_byte_was_changed_gives_no_other_memory) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  const auto open_changed = [&](size_t byte, unsigned char change, pinrail_handle_t* handle) {
    pinrail_gpu_block_t block = memory.block;
    reinterpret_cast<unsigned char*>(&block)[byte] ^= change;
    *handle = {};
    return pinrail_mpool_register_remote(pool.get(), &block, 0, 1, 0, 0, handle);
  };
  pinrail_handle_t handle{};
  for (const unsigned char change : {0x01, 0x80, 0xff}) {
    for (size_t byte = 0; byte < sizeof(memory.block); ++byte) {
      const pinrail_status_t status = open_changed(byte, change, &handle);
      EXPECT_TRUE(status == PINRAIL_ERR_BAD_PARAM || status == PINRAIL_ERR_VERSION) << byte << ": " << status;
      EXPECT_EQ(handle.reg, nullptr) << byte;
    }
  }
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 0u);
  const pinrail_handle_t right = pool.must(memory.block);
  for (size_t byte = 0; byte < sizeof(memory.block); ++byte) {
    if (open_changed(byte, 0x01, &handle) != PINRAIL_SUCCESS) continue;
    EXPECT_EQ(handle.reg, right.reg) << byte;
    drop(handle);
  }
  EXPECT_EQ(pool.stats().registered_count, 1u);
  drop(right);
}

// What is wrong with a block, and a part of what is then said, once: the sender shall know why.
struct Damage {
  void (*change)(pinrail_gpu_block_t* block);
  pinrail_status_t status;
  std::string said = "";
  bool seal = true;
};

TEST_F(RgpusmBlocks, a_block_that_is_damaged_or_anothers_changes_nothing) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  using Block = pinrail_gpu_block_t*;
  const Damage damages[] = {
      {[](Block b) { b->magic ^= 1; }, PINRAIL_ERR_BAD_PARAM},
      // Of another version: where its checksum and its length stand is not known.
      {[](Block b) { b->version = 2; }, PINRAIL_ERR_VERSION, "of version 2 with 256 bytes", false},
      {[](Block b) { b->version = 2, b->length = 1; }, PINRAIL_ERR_VERSION, "", false},
      {[](Block b) { b->size = 255; }, PINRAIL_ERR_VERSION, "", false},
      {[](Block b) { b->event[63] = 1; }, PINRAIL_ERR_BAD_PARAM, "", false},
      {[](Block b) { b->driver[20] ^= 1; }, PINRAIL_ERR_BAD_PARAM, "", false},
      {[](Block b) { b->user += 1; }, PINRAIL_ERR_PERM, "of user " + std::to_string(geteuid() + 1)},
      {[](Block b) { b->machine += 1; }, PINRAIL_ERR_NOT_SUPPORTED, "another machine"},
      {[](Block b) { b->pid = static_cast<uint32_t>(getpid()); }, PINRAIL_ERR_NOT_SUPPORTED, "own GPU memory"},
      {[](Block b) { b->segment = 5; }, PINRAIL_ERR_NOT_FOUND},
      {[](Block b) { b->pid = 0; }, PINRAIL_ERR_BAD_PARAM},  // it would never be forgotten
      {[](Block b) { b->base = 0; }, PINRAIL_ERR_BAD_PARAM},
      {[](Block b) { b->length = 0; }, PINRAIL_ERR_BAD_PARAM},
      {[](Block b) { b->length = UINT64_MAX; }, PINRAIL_ERR_BAD_PARAM}};
  for (const Damage& damage : damages) {
    SCOPED_TRACE(&damage - damages);
    pinrail_gpu_block_t block = memory.block;
    damage.change(&block);
    if (damage.seal) block.checksum = checksum_of(block);
    const auto refuse = [&] {
      pinrail_handle_t handle{};
      EXPECT_EQ(pinrail_mpool_register_remote(pool.get(), &block, 0, 4096, 0, 0, &handle), damage.status);
      EXPECT_EQ(handle.reg, nullptr);
    };
    const std::string said = said_by(refuse);
    if (damage.said.empty()) continue;
    EXPECT_NE(said.find(damage.said), std::string::npos) << said;
    EXPECT_NE(said.find("What to do"), std::string::npos) << said;
    EXPECT_EQ(said.find('{'), std::string::npos) << said;
    EXPECT_EQ(said_by(refuse), "");
  }
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 0u);
}

TEST_F(RgpusmBlocks, a_range_that_is_not_within_the_allocation_is_refused) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kA, kBase, 4096);
  pinrail_handle_t handle{};
  const auto answer = [&](size_t offset, size_t length, uint32_t access = 0) {
    return pinrail_mpool_register_remote(pool.get(), &memory.block, offset, length, access, 0, &handle);
  };
  EXPECT_EQ(answer(1, 4096), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer(4097, 1), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer(SIZE_MAX, 2), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer(0, 0), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer(0, 4096, 0x80000000u), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer(0, 4096, PINRAIL_TRAIT_ON_DEMAND), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pinrail_mpool_register_remote(pool.get(), nullptr, 0, 1, 0, 0, &handle), PINRAIL_ERR_BAD_PARAM);
  ASSERT_EQ(answer(4095, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(handle.reg->length, 4096u);
  drop(handle);
}

// R2: what is checked is what is compared, although a peer changes the block meanwhile.
TEST_F(RgpusmBlocks, a_block_that_changes_during_the_call_brings_no_smaller_allocation) {
  GpuPool pool("rgpusm");
  const PeerMemory large(kA, kBase, 8 * 4096), small(kA, 20 * kBase, 4096);
  pool.use(large.block);
  pool.use(small.block);
  pinrail_gpu_block_t block = large.block;
  std::atomic<bool> stop{false};
  std::thread changing([&] {  // as a peer does that can write where blocks are received
    while (!stop) {
      for (const PeerMemory* each : {&small, &large}) {
        std::memcpy(&block, &each->block, sizeof(block));
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
  });
  size_t taken = 0, too_small = 0;
  for (int i = 0; i < short_or_long(1500000, 5000000); ++i) {
    pinrail_handle_t handle{};
    if (pinrail_mpool_register_remote(pool.get(), &block, 0, 8 * 4096, 0, 0, &handle) != PINRAIL_SUCCESS) continue;
    ++taken;
    if (handle.reg->length < 8 * 4096) ++too_small;
    drop(handle);
  }
  stop = true;
  changing.join();
  EXPECT_NE(taken, 0u);
  EXPECT_EQ(too_small, 0u);
}

// Mpool/rgpusm over a registrar that is out of resources: which of the two statuses the caller gets (R7).

class RgpusmLack : public ::testing::Test {
 protected:
  static fake::FakeOptions remote() {
    fake::FakeOptions options;
    options.kinds = PINRAIL_KIND_REMOTE;
    return options;
  }
  // Opens wanted_, which the registrar refuses each time, and in the nth try calls during().
  template <typename During>
  pinrail_status_t open_refused(uint64_t nth, During&& during) {
    uint64_t tries = 0;
    device_.on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
      if (++tries == nth) std::thread(during).join();
    });
    device_.fail_every_register(PINRAIL_ERR_OUT_OF_RESOURCE);
    const pinrail_status_t status = pool_.answer_to(wanted_.block);
    device_.clear_script();
    device_.on_register(nullptr);
    EXPECT_GE(tries, 2u) << "once, and once more";
    return status;
  }
  Library library_{without_threads()};
  fake::FakeRegistrar device_{remote()};
  GpuPool pool_{"rgpusm", *device_.table(), not_kept()};
  const PeerMemory other_{kA, kBase, 4096}, wanted_{kA, 2 * kBase, 4096};
};

TEST_F(RgpusmLack, with_nothing_else_open_is_for_good_and_else_for_now) {
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_OUT_OF_RESOURCE);
  const pinrail_handle_t held = pool_.must(other_.block);
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(open_refused(2, [&] { drop(held); }), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE)
      << "the last other one was closed during the last try";
  EXPECT_EQ(device_.live_count(), 0u);
  const auto come_and_go = [&] { EXPECT_EQ(pool_.answer_to(other_.block), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE); };
  EXPECT_EQ(open_refused(2, come_and_go), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

}  // namespace
}  // namespace pinrail::test
