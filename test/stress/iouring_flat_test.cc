// SPDX-License-Identifier: BSD-3-Clause
// E4 over real pins: memory that comes and goes leaves nothing behind, and the last of it goes without any call. And
// every byte that the device sees is right.
#include <gtest/gtest.h>
#include <pinrail/pinrail.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "base/patch/system_call.h"
#include "test/support/library.h"
#include "test/support/process.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

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
  explicit IouringFlat(const Settings& settings = {{"monitor", kMonitor}, {"mpool_grdma_extent", "2M"}},
                       const PoolOptions& options = {})
      : library_(with({{"mpool_grdma_gc_thread", "auto"}}, settings)), pool_(named("iouring"), options) {}
  void SetUp() override {
    ASSERT_EQ(library_.status, PINRAIL_SUCCESS);
    if (pool_.status != PINRAIL_SUCCESS) GTEST_SKIP() << "io_uring does not work here";
  }

  static void* map() {
    void* const memory = mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::abort();
    madvise(memory, kLength, MADV_NOHUGEPAGE);
    return memory;
  }
  void use(void* memory) const { pool_.use(reinterpret_cast<uintptr_t>(memory), kLength); }
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
    // dead wait (framework/mpool/engine.h). A leak would pin 10,000.
    EXPECT_LE(most_pinned, (2 * 256 + 4) * kLength);
    EXPECT_TRUE(comes_true([] { return vm_pin_bytes() == 0; }));
    std::printf("%d rounds: RssAnon %zu KiB at first, %zu at most; pinned %zu KiB at most, none in the end\n", rounds,
                used >> 10, most_used >> 10, most_pinned >> 10);
  }

  const Library library_;
  const Pool pool_;
};

TEST_F(IouringFlat, memory_that_comes_and_goes) { stays_flat(short_or_long(10000, 100000)); }

// Nothing is pinned but the buffers, whose bytes are counted.
class IouringFlatAsAsked : public IouringFlat {
 protected:
  IouringFlatAsAsked() : IouringFlat({{"monitor", kMonitor}}) {}
};

TEST_F(IouringFlatAsAsked, a_thousand_buffers_are_released_at_once_without_a_call) {
  std::vector<void*> all;
  for (int i = 0; i < 1000; ++i) all.push_back(map());
  for (void* memory : all) use(memory);
  EXPECT_EQ(vm_pin_bytes(), all.size() * kLength);
  for (void* memory : all) unmap(memory);
  EXPECT_TRUE(comes_true([] { return vm_pin_bytes() == 0; }));
}

// Every byte, on threads that map their memory anew, through a pool that evicts. Runs under ThreadSanitizer, too, and
// without the tools, unlike the oracle.
class IouringBytes : public IouringFlat {
 protected:
  static constexpr size_t kLimit = 16 * kLength;
  IouringBytes() : IouringFlat({{"mpool_grdma_extent", "2M"}}, at_most_bytes(kLimit)) {}
  // Whether the device reads and writes the bytes of the buffer, all of which are changed.
  bool is_right(unsigned char* at, int round) const {
    std::vector<unsigned char> seen(kLength);
    std::memset(at, round % 251, kLength);
    pinrail_handle_t handle{};
    if (pinrail_mpool_register(pool_.get(), at, kLength, PINRAIL_RIGHTS_MASK, 0, &handle) != PINRAIL_SUCCESS)
      return false;
    const auto offset = static_cast<size_t>(at - static_cast<unsigned char*>(handle.reg->base));
    bool right = pinrail_mpool_device_read(handle, offset, seen.data(), kLength) == PINRAIL_SUCCESS &&
                 std::memcmp(seen.data(), at, kLength) == 0;
    std::memset(seen.data(), (round + 100) % 251, kLength);
    right = pinrail_mpool_device_write(handle, offset, seen.data(), kLength) == PINRAIL_SUCCESS &&
            std::memcmp(seen.data(), at, kLength) == 0 && right;
    return pinrail_mpool_deregister(handle) == PINRAIL_SUCCESS && right;
  }
  // In how many rounds something was wrong. A buffer in four is mapped anew.
  uint64_t count_wrong(unsigned seed, int rounds, bool reports) const {
    std::mt19937 random(seed);
    std::vector<unsigned char*> buffers(8);
    for (auto& each : buffers) each = static_cast<unsigned char*>(map());
    uint64_t wrong = 0;
    for (int round = 0; round < rounds; ++round) {
      unsigned char* const at = buffers[random() % buffers.size()];
      if (random() % 4 == 0) {
        if (reports) pinrail_monitor_report(at, kLength);
        constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
        if (mmap(at, kLength, PROT_READ | PROT_WRITE, kFlags, -1, 0) != at) std::abort();
      }
      if (!is_right(at, round)) ++wrong;
    }
    for (unsigned char* const each : buffers) {
      pinrail_monitor_report(each, kLength);
      munmap(each, kLength);
    }
    return wrong;
  }
};

TEST_F(IouringBytes, are_right_while_memory_is_mapped_anew_and_the_limit_evicts) {
  std::atomic<uint64_t> wrong{0};
  std::atomic<unsigned> seed{0};
  on_threads(4, [&] { wrong += count_wrong(++seed, 500, true); });
  EXPECT_EQ(wrong, 0u);
  const pinrail_mpool_stats_t stats = pool_.stats();
  EXPECT_GT(stats.hits, 0u);
  EXPECT_GT(stats.evictions, 0u);
  EXPECT_GT(stats.invalidations, 0u);
  EXPECT_LE(stats.peak_registered_bytes, kLimit);
}

// The case above can fail.
TEST_F(IouringBytes, are_others_where_nothing_is_reported) { EXPECT_GT(count_wrong(1, 500, false), 0u); }

}  // namespace
}  // namespace pinrail::test
