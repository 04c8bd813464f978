// SPDX-License-Identifier: BSD-3-Clause
// Threads register and release peers' GPU memory, export their own, free it, evict, invalidate and drain at once, over
// the driver double; what must hold is checked while they do.
#include <chrono>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "test/gpu/gpu_library.h"
#include "test/support/gpu_memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kBytes = 4096;
constexpr size_t kMemories = 24;
constexpr uint32_t kSlots = 64;
constexpr int kRounds = 1500;

// Looks until it is stopped, and at least once.
void check_all_the_time(const GpuPool* pool, const std::atomic<bool>* stop, std::atomic<uint64_t>* broken,
                        uint64_t most_bytes) {
  do {
    if (!pool->invariants_hold() || pool->stats().registered_bytes > most_bytes) ++*broken;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  } while (!*stop);
}

// Memory of another process that is freed and allocated anew at the same address now and then.
struct Exported {
  Exported(const Bystander& owner, slots::Exporter* from, uint64_t base)
      : start(owner.process.start), exporter(from), memory(owner.process.pid, base, kBytes) {
    seal();
  }
  void seal() {
    memory.block.start = start;
    memory.block.segment = exporter->segment();
    EXPECT_TRUE(exporter->take(&memory.block.slot, &memory.block.slot_word).ok());
    memory.block.checksum = checksum_of(memory.block);
  }

  const uint64_t start;
  slots::Exporter* const exporter;
  std::mutex mutex;  // who reads the block, and who frees the memory
  PeerMemory memory;
};

struct Shape {
  int64_t leave_pinned, size_limit, count_limit;
};

class RgpusmStress : public ::testing::TestWithParam<Shape> {
 protected:
  void SetUp() override {
    cuda_double_forget();
    ASSERT_TRUE(bystander_.make(&exporter_, kSlots));
    for (size_t i = 0; i < kMemories; ++i) {
      all_.push_back(std::make_unique<Exported>(bystander_, &exporter_, 0x100000 * (i + 1)));
    }
  }

  void use(const GpuPool& pool, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<pinrail_handle_t> held;
    for (int i = 0; i < kRounds; ++i) {
      Exported& each = *all_[random() % (random() % 2 == 0 ? kMemories : 4)];  // some are used more than others
      const uint32_t flags = random() % 32 == 0   ? PINRAIL_FLAG_CACHE_BYPASS
                             : random() % 32 == 1 ? PINRAIL_FLAG_PERSISTENT
                                                  : 0;
      pinrail_gpu_block_t block;
      {
        const std::lock_guard<std::mutex> guard(each.mutex);
        block = each.memory.block;
      }
      pinrail_handle_t handle{};
      take(pool.open(block, &handle, flags), handle, &held);
      if (held.size() > random() % 4) drop_one(&held, random() % 4 == 0);
      if (random() % 16 == 0) free_and_allocate(pool, &each);
      if (random() % 32 == 0 && !held.empty()) {
        if (pinrail_mpool_invalidate_range(pool.get(), held.front().reg->base, 1) != PINRAIL_SUCCESS) ++wrong_;
      }
      if (random() % 32 == 0 && !held.empty()) find_again(pool, held.front());
      if (random() % 16 == 0) (void)(pinrail_mpool_evict(pool.get()) == PINRAIL_SUCCESS);
      if (random() % 64 == 0 && pinrail_mpool_progress(pool.get()) != PINRAIL_SUCCESS) ++wrong_;
    }
    while (!held.empty()) drop_one(&held, false);
  }

  void take(pinrail_status_t status, pinrail_handle_t handle, std::vector<pinrail_handle_t>* held) {
    const bool refused = status == PINRAIL_ERR_NOT_FOUND || status == PINRAIL_ERR_WOULD_BLOCK ||
                         status == PINRAIL_ERR_TEMP_OUT_OF_RESOURCE || status == PINRAIL_ERR_OUT_OF_RESOURCE;
    if (status == PINRAIL_SUCCESS) {
      ++served_;
      char byte;
      if (handle.reg->length != kBytes) ++wrong_;
      if (pinrail_mpool_device_read(handle, kBytes - 1, &byte, 1) != PINRAIL_SUCCESS) ++wrong_;
      held->push_back(handle);
    } else if (!refused) {
      ++wrong_;
    }
  }

  // By where it is mapped; it may have died, or be mapped twice.
  void find_again(const GpuPool& pool, pinrail_handle_t held) {
    pinrail_handle_t found{};
    const pinrail_status_t status = pinrail_mpool_find(pool.get(), held.reg->base, kBytes, 0, &found);
    if (status == PINRAIL_ERR_NOT_FOUND) return;
    if (status != PINRAIL_SUCCESS || found.reg->base != held.reg->base) ++wrong_;
    if (status == PINRAIL_SUCCESS && pinrail_mpool_deregister(found) != PINRAIL_SUCCESS) ++wrong_;
  }

  // elsewhere: by another thread, sooner or later.
  void drop_one(std::vector<pinrail_handle_t>* held, bool elsewhere) {
    pinrail_handle_t handle = held->front();
    held->erase(held->begin());
    if (elsewhere) {
      const std::lock_guard<std::mutex> guard(passed_mutex_);
      std::swap(handle, passed_);
    }
    if (handle.reg != nullptr && pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++wrong_;
  }

  // After the slot has died the old block is never served again, whatever other threads do.
  void free_and_allocate(const GpuPool& pool, Exported* each) {
    const std::lock_guard<std::mutex> guard(each->mutex);
    const pinrail_gpu_block_t old_one = each->memory.block;
    exporter_.kill_hook(old_one.slot);
    pinrail_handle_t handle{};
    if (pool.open(old_one, &handle) != PINRAIL_ERR_NOT_FOUND) ++wrong_;
    each->memory.replace(kBytes);
    exporter_.give_back(old_one.slot);
    each->seal();
  }

  Bystander bystander_;
  slots::Exporter exporter_;
  std::vector<std::unique_ptr<Exported>> all_;
  std::mutex passed_mutex_;
  pinrail_handle_t passed_{};
  std::atomic<uint64_t> wrong_{0}, served_{0};
};

TEST_P(RgpusmStress, many_threads_and_every_invariant_holds) {
  Library library(Settings{{"mpool_rgpusm_gc_interval", "1"}});
  const Shape shape = GetParam();
  GpuPool pool("rgpusm", {shape.leave_pinned, shape.size_limit, shape.count_limit});
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> broken{0};
  std::thread checker(check_all_the_time, &pool, &stop, &broken,
                      shape.size_limit > 0 ? static_cast<uint64_t>(shape.size_limit) : UINT64_MAX);
  on_threads(4u, [&](unsigned i) { use(pool, i + 1); });
  stop = true;
  checker.join();
  if (passed_.reg != nullptr) drop(passed_);
  EXPECT_EQ(wrong_, 0u);
  EXPECT_EQ(broken, 0u);
  EXPECT_GT(served_, 0u);
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pool.referenced(), 0u) << "every reference was given back";
  EXPECT_EQ(pinrail_mpool_progress(pool.get()), PINRAIL_SUCCESS);
  pool.evict_all();
  // The gc thread may be closing some.
  EXPECT_TRUE(comes_true([&] { return pool.stats().registered_count == 0; })) << "what died was left behind";
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  for (uint32_t slot = 0; slot < kSlots; ++slot) EXPECT_EQ(exporter_.importers_hook(slot), 0u);
}

INSTANTIATE_TEST_SUITE_P(Modes, RgpusmStress,
                         ::testing::Values(Shape{0, 0, 0}, Shape{0, 16 * kBytes, 0}, Shape{1, 0, 0},
                                           Shape{1, 20 * kBytes, 0}, Shape{1, 0, 20}));

// Each thread its own memory: a block is alive until its memory is freed, and dead from then on.
void export_and_free(const GpuPool& pool, CUcontext context, unsigned seed, bool is_limited,
                     std::atomic<uint64_t>* wrong) {
  std::mt19937 random(seed);
  slots::Importer importer;
  if (cuCtxPushCurrent(context) != CUDA_SUCCESS) ++*wrong;
  for (int i = 0; i < kRounds; ++i) {
    CUdeviceptr at = 0;
    if (cuMemAlloc(&at, kBytes * (1 + random() % 3)) != CUDA_SUCCESS) ++*wrong;
    void* const pointer = reinterpret_cast<void*>(at);
    pinrail_gpu_block_t block{}, again{};
    size_t offset = 0;
    pinrail_handle_t handle{};
    if (pinrail_mpool_register(pool.get(), pointer, kBytes, 0, 0, &handle) != PINRAIL_SUCCESS) ++*wrong;
    if (pinrail_mpool_export(pool.get(), pointer, kBytes, &block, &offset) != PINRAIL_SUCCESS) ++*wrong;
    if (importer.count() == 0 && !importer.open(block.user, block.pid, block.start, block.segment).ok()) ++*wrong;
    const auto is_alive = [&] { return slots::is_alive(importer.word(block.slot), block.slot_word); };
    if (!is_alive()) ++*wrong;  // it is registered, so nothing evicts it
    if (handle.reg != nullptr && pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) ++*wrong;
    if (pinrail_mpool_export(pool.get(), pointer, 1, &again, &offset) != PINRAIL_SUCCESS) ++*wrong;
    if (!is_limited && std::memcmp(&block, &again, sizeof(block)) != 0) ++*wrong;
    const bool is_reported = random() % 4 != 0;
    if (is_reported) pinrail_monitor_report(pointer, 1);
    if (is_reported && is_alive()) ++*wrong;
    if (is_limited && random() % 8 == 0) (void)(pinrail_mpool_evict(pool.get()) == PINRAIL_SUCCESS);
    if (cuMemFree(at) != CUDA_SUCCESS) ++*wrong;
  }
  if (cuCtxPopCurrent(nullptr) != CUDA_SUCCESS) ++*wrong;
}

class GpusmStress : public ::testing::TestWithParam<int64_t> {};

TEST_P(GpusmStress, blocks_live_as_long_as_their_memory) {
  Library library(Settings{{"mpool_gpusm_gc_interval", "1"}});
  const int64_t count_limit = GetParam();
  const PrimaryContext context;
  GpuPool pool("gpusm", {1, 0, count_limit});
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> broken{0}, wrong{0};
  std::thread checker(check_all_the_time, &pool, &stop, &broken, UINT64_MAX);
  on_threads(4u, [&](unsigned i) { export_and_free(pool, context.get(), i + 1, count_limit != 0, &wrong); });
  stop = true;
  checker.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(broken, 0u);
  EXPECT_TRUE(pool.invariants_hold());
  EXPECT_EQ(pool.referenced(), 0u);
  if (count_limit != 0) {
    EXPECT_LE(pool.stats().registered_count, static_cast<uint64_t>(count_limit));
  }
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Limits, GpusmStress, ::testing::Values(0, 16));

}  // namespace
}  // namespace pinrail::test
