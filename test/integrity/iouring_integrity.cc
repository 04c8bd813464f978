// SPDX-License-Identifier: BSD-3-Clause
// Real pins, real transfers, the public face, several threads: with reports no byte differs, without them some do.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "base/patch/system_call.h"
#include "test/integrity/integrity.h"
#include "test/support/memory.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

class DeviceMover : public Mover {
 public:
  pinrail_status_t read(pinrail_handle_t handle, size_t offset, void* into, size_t length) override {
    return pinrail_mpool_device_read(handle, offset, into, length);
  }
  pinrail_status_t write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) override {
    return pinrail_mpool_device_write(handle, offset, from, length);
  }
};

class IouringIntegrity : public ::testing::Test {
 protected:
  void SetUp() override {
    const pinrail_setting_t settings[] = {{"monitor", "external"}};
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = settings;
    options.setting_count = 1;
    ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS);
    initialised_ = true;
  }

  void TearDown() override {
    if (pool_ != nullptr) {
      EXPECT_EQ(pinrail_mpool_destroy(pool_, 0), PINRAIL_SUCCESS);
    }
    if (initialised_) {
      EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS);
    }
  }

  pinrail_status_t make_pool(int64_t leave_pinned, int64_t size_limit) {
    pinrail_registrar_choice_t choice{};
    choice.name = "iouring";
    pinrail_mpool_options_t options = PINRAIL_MPOOL_OPTIONS_INIT;
    options.leave_pinned = leave_pinned;
    options.size_limit = size_limit;
    return pinrail_mpool_create("grdma", &choice, nullptr, &options, &pool_);
  }

  pinrail_mpool_stats_t run(const Plan& plan) {
    DeviceMover mover;
    Integrity(pool_, &mover, plan).run(&tally_);
    pinrail_mpool_stats_t stats{};
    stats.size = sizeof(stats);
    EXPECT_EQ(pinrail_mpool_read_stats(pool_, &stats), PINRAIL_SUCCESS);
    std::printf(
        "%llu operations, %llu MiB verified, %llu frees, %llu hits, %llu misses, %llu evictions, "
        "%llu invalidations, %llu differences\n",
        number(tally_.operations), number(tally_.bytes_verified >> 20), number(tally_.frees), number(stats.hits),
        number(stats.misses), number(stats.evictions), number(stats.invalidations), number(tally_.differences));
    return stats;
  }

  static unsigned long long number(uint64_t value) { return value; }

  bool initialised_ = false;
  pinrail_mpool_t* pool_ = nullptr;
  Tally tally_;
};

#define MAKE_POOL_OR_SKIP(leave_pinned, size_limit)                                                   \
  do {                                                                                                \
    const pinrail_status_t made = make_pool(leave_pinned, size_limit);                                \
    if (made == PINRAIL_ERR_NOT_AVAILABLE) GTEST_SKIP() << "registrar iouring is not available here"; \
    ASSERT_EQ(made, PINRAIL_SUCCESS);                                                                 \
  } while (false)

Plan plan_of(uint64_t seed) {
  Plan plan;
  plan.seed = seed;
  plan.seconds = 1.5;
  return plan;
}

TEST_F(IouringIntegrity, no_byte_differs_while_memory_is_freed_and_the_cache_is_unlimited) {
  MAKE_POOL_OR_SKIP(1, 0);
  const pinrail_mpool_stats_t stats = run(plan_of(101));
  EXPECT_EQ(tally_.differences, 0u);
  EXPECT_EQ(tally_.failures, 0u);
  EXPECT_GT(stats.hits, 0u);
  EXPECT_GT(stats.invalidations, 0u);
}

TEST_F(IouringIntegrity, no_byte_differs_while_the_limit_forces_evictions) {
  constexpr int64_t kLimit = int64_t{4} << 20;  // of 16 MiB of memory
  MAKE_POOL_OR_SKIP(1, kLimit);
  const pinrail_mpool_stats_t stats = run(plan_of(102));
  EXPECT_EQ(tally_.differences, 0u);
  EXPECT_EQ(tally_.failures, 0u);
  EXPECT_GT(stats.hits, 0u);
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_GT(stats.invalidations, 0u);
  EXPECT_LE(stats.peak_registered_bytes, static_cast<uint64_t>(kLimit));
}

TEST_F(IouringIntegrity, no_byte_differs_without_a_cache) {
  MAKE_POOL_OR_SKIP(0, 0);
  Plan plan = plan_of(103);
  plan.reports = false;
  plan.held = 0;
  run(plan);
  EXPECT_EQ(tally_.differences, 0u);
  EXPECT_EQ(tally_.failures, 0u);
}

// The proof that the cases above can fail.
TEST_F(IouringIntegrity, bytes_differ_when_freed_memory_is_not_reported) {
  MAKE_POOL_OR_SKIP(1, 0);
  Plan plan = plan_of(104);
  plan.seconds = 0.5;
  plan.reports = false;
  // On a slow machine freed memory is rarely used again within one round.
  for (int round = 0; round < 40 && tally_.differences == 0; ++round, ++plan.seed) run(plan);
  EXPECT_GT(tally_.differences, 0u);
}

// E4 over real pins: memory that comes and goes leaves nothing behind, and the last of it goes without any call.
// A million rounds: --gtest_also_run_disabled_tests --gtest_filter='*million*'

constexpr size_t kLength = size_t{64} << 10;

#if PINRAIL_CAN_PATCH
constexpr char kMonitor[] = "patcher";
void report_if_nobody_sees(void*) {}
#else
constexpr char kMonitor[] = "external";
void report_if_nobody_sees(void* memory) { pinrail_monitor_report(memory, kLength); }
#endif

size_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    size_t kilobytes;
    if (std::sscanf(line.c_str(), "RssAnon: %zu kB", &kilobytes) == 1) return kilobytes * 1024;
  }
  return 0;
}

class IouringFlat : public ::testing::Test {
 protected:
  void SetUp() override { start("2M"); }
  void start(const char* extent) {
    const pinrail_setting_t settings[] = {
        {"monitor", kMonitor}, {"mpool_grdma_leave_pinned", "yes"}, {"mpool_grdma_extent", extent}};
    pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
    options.settings = settings;
    options.setting_count = std::size(settings);
    ASSERT_EQ(pinrail_init(&options), PINRAIL_SUCCESS);
    pinrail_registrar_choice_t choice{};
    choice.name = "iouring";
    if (pinrail_mpool_create("grdma", &choice, nullptr, nullptr, &pool_) != PINRAIL_SUCCESS) {
      GTEST_SKIP() << "io_uring does not work here";
    }
  }
  void TearDown() override { EXPECT_EQ(pinrail_finalize(), PINRAIL_SUCCESS); }

  static void* map() {
    void* const memory = mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    madvise(memory, kLength, MADV_NOHUGEPAGE);
    return memory;
  }
  void use(void* memory) const {
    pinrail_handle_t handle{};
    ASSERT_EQ(pinrail_mpool_register(pool_, memory, kLength, 1, 0, &handle), PINRAIL_SUCCESS);
    ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  }
  static void unmap(void* memory) {
    report_if_nobody_sees(memory);
    munmap(memory, kLength);
  }
  void round() const {
    void* const memory = map();
    use(memory);
    unmap(memory);
  }
  // What is pinned and what is used stay where they were when the pool's tables of events and of what has ended were
  // full; and in the end nothing is pinned.
  void stays_flat(int rounds) const {
    for (int i = 0; i < 10000; ++i) round();
    const size_t used = anonymous_bytes();
    size_t most_used = used, most_pinned = 0;
    for (int i = 0; i < rounds; ++i) {
      round();
      if (i % 1000 != 0) continue;
      most_used = std::max(most_used, anonymous_bytes());
      most_pinned = std::max(most_pinned, vm_pin_bytes());
    }
    EXPECT_LT(most_used, used + (size_t{4} << 20));
    // While one thread gives back a batch of 256, which other processes may keep from running, up to 256 more of the
    // dead wait (framework/mpool/engine.h). A leak would pin 20,000.
    EXPECT_LE(most_pinned, (2 * 256 + 4) * kLength);
    EXPECT_TRUE(comes_true([] { return vm_pin_bytes() == 0; }));
    std::printf("%d rounds: RssAnon %zu KiB at first, %zu at most; pinned %zu KiB at most, none in the end\n", rounds,
                used >> 10, most_used >> 10, most_pinned >> 10);
  }

  pinrail_mpool_t* pool_ = nullptr;
};

TEST_F(IouringFlat, memory_that_comes_and_goes) { stays_flat(20000); }

TEST_F(IouringFlat, DISABLED_memory_that_comes_and_goes_a_million_times) { stays_flat(1000000); }

// Nothing is pinned but the buffers, whose bytes are counted.
class IouringFlatAsAsked : public IouringFlat {
 protected:
  void SetUp() override { start("0"); }
};

TEST_F(IouringFlatAsAsked, a_thousand_buffers_are_released_at_once_without_a_call) {
  std::vector<void*> all;
  for (int i = 0; i < 1000; ++i) all.push_back(map());
  for (void* memory : all) use(memory);
  EXPECT_EQ(vm_pin_bytes(), all.size() * kLength);
  for (void* memory : all) unmap(memory);
  EXPECT_TRUE(comes_true([] { return vm_pin_bytes() == 0; }));
}

}  // namespace
}  // namespace pinrail::test
