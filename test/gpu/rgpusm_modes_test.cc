// SPDX-License-Identifier: BSD-3-Clause
// The four modes of mpool/rgpusm x what can happen to a request, row by row over the driver double: after each step the
// references, the bytes and the calls of the driver are counted, exactly.
#include <cstring>

#include "test/gpu/gpu_library.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kA = 1000001, kB = 1000002;  // pids that no process has
constexpr uint64_t kBase = 0x10000, kElsewhere = kBase + (1 << 20);
constexpr size_t kSmall = 32 << 10, kLarge = 64 << 10;

uint64_t opens() { return cuda_double_calls("cuIpcOpenMemHandle"); }
uint64_t closes() { return cuda_double_calls("cuIpcCloseMemHandle"); }
// An open or a close: the context is retained and made current, the driver is asked, the caller's context is made
// current again, the reference given back. And what is mapped is identified: after an open, and before a close.
constexpr uint64_t kCallsEach = 5;
uint64_t identified() { return cuda_double_open_handles() + 2 * closes(); }

// What must be true after a step; opens and closes since make(), refused ones too.
struct State {
  size_t references;
  size_t bytes;
  uint64_t opens, closes;
};

// leave_pinned x size limit, as the mode's number says: 1 no, none; 2 no, limited; 3 yes, none; 4 yes, limited.
class FourModes : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { cuda_double_forget(); }
  void TearDown() override {
    EXPECT_EQ(pool_->referenced(), 0u);
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    cuda_double_forget();
  }
  void make(size_t limit) {
    PoolOptions options;
    options.leave_pinned = keeps() ? 1 : 0;
    options.size_limit = is_limited() ? static_cast<int64_t>(limit) : 0;
    pool_ = std::make_unique<GpuPool>("rgpusm", options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
    // The first reference on the context of a device is kept.
    const PeerMemory first(kB, 16 * kBase, 4096);
    pinrail_handle_t handle{};
    ASSERT_EQ(pool_->open(first.block, &handle, PINRAIL_FLAG_CACHE_BYPASS), PINRAIL_SUCCESS);
    ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    cuda_double_forget();
  }
  bool keeps() const { return GetParam() >= 3; }
  bool is_limited() const { return GetParam() % 2 == 0; }
  template <typename Value>
  Value by_keeping(Value kept, Value otherwise) const {
    return keeps() ? kept : otherwise;
  }
  template <typename Value>
  Value by_limit(Value limited, Value otherwise) const {
    return is_limited() ? limited : otherwise;
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
  void refused(const pinrail_gpu_block_t& block, pinrail_status_t status) const {
    pinrail_handle_t handle{};
    EXPECT_EQ(pool_->open(block, &handle), status);
    EXPECT_EQ(handle.reg, nullptr);
  }
  static void release(pinrail_handle_t handle) { drop(handle); }

  Library library_{without_threads()};
  std::unique_ptr<GpuPool> pool_;
};

TEST_P(FourModes, a_miss_opens_once_and_a_release_closes_only_without_leave_pinned) {
  make(kSmall);
  const PeerMemory memory(kA, kBase, kSmall);
  const pinrail_handle_t handle = pool_->must(memory.block);
  EXPECT_EQ(handle.reg->length, kSmall);
  expect({1, kSmall, 1, 0}, "the miss");
  release(handle);
  expect(by_keeping<State>({0, kSmall, 1, 0}, {0, 0, 1, 1}), "the release");
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  expect(by_keeping<State>({0, kSmall, 1, 0}, {0, 0, 1, 1}), "a release too many");
}

TEST_P(FourModes, a_hit_asks_nothing_of_the_driver) {
  make(kSmall);
  const PeerMemory memory(kA, kBase, kSmall);
  const pinrail_handle_t first = pool_->must(memory.block);
  const pinrail_handle_t second = pool_->must(memory.block);
  EXPECT_EQ(first.reg, second.reg);
  expect({1, kSmall, 1, 0}, "a hit on what is held");
  release(first);
  expect({1, kSmall, 1, 0}, "the release of one of two");
  release(second);
  expect(by_keeping<State>({0, kSmall, 1, 0}, {0, 0, 1, 1}), "the last release");
  const pinrail_handle_t third = pool_->must(memory.block);
  expect(by_keeping<State>({1, kSmall, 1, 0}, {1, kSmall, 2, 1}), "asked for again");
  release(third);
  EXPECT_EQ(pool_->stats().hits, by_keeping(2u, 1u));
  EXPECT_EQ(pool_->stats().misses, by_keeping(2u, 3u)) << "one of them make()'s";
}

TEST_P(FourModes, a_mismatch_evicts_the_old_one_before_the_driver_is_asked) {
  make(kSmall);
  PeerMemory memory(kA, kBase, kSmall);
  pool_->use(memory.block);
  memory.replace(kSmall);
  const pinrail_handle_t handle = pool_->must(memory.block);
  expect({1, kSmall, 2, 1}, "the mismatch");
  EXPECT_EQ(pool_->stats().retries, 0u);
  release(handle);
  expect(by_keeping<State>({0, kSmall, 2, 1}, {0, 0, 2, 2}), "the release");
}

TEST_P(FourModes, a_stale_idle_one_in_the_way_is_evicted_and_the_open_repeated) {
  make(kSmall + kLarge);
  PeerMemory memory(kA, kBase, kSmall);
  pool_->use(memory.block);
  memory.replace(kLarge);  // larger: no entry is found, and the driver says that something is mapped
  const pinrail_handle_t handle = pool_->must(memory.block);
  expect(by_keeping<State>({1, kLarge, 3, 1}, {1, kLarge, 2, 1}), "WOULD_BLOCK, idle");
  EXPECT_EQ(pool_->stats().retries, by_keeping(1u, 0u));
  EXPECT_EQ(pool_->stats().evictions, by_keeping(1u, 0u));
  release(handle);
  expect(by_keeping<State>({0, kLarge, 3, 1}, {0, 0, 2, 2}), "the release");
}

TEST_P(FourModes, a_stale_one_in_use_in_the_way_would_block_and_stays_intact) {
  make(2 * (kSmall + kLarge));
  PeerMemory memory(kA, kBase, kSmall);
  const PeerMemory bystander(kA, kElsewhere, 4096);
  pool_->use(bystander.block);
  const pinrail_handle_t old_one = pool_->must(memory.block);
  const State held = by_keeping<State>({1, kSmall + 4096, 2, 0}, {1, kSmall, 2, 1});
  expect(held, "the old one is held");
  uint64_t attempts = 0;
  for (const size_t size : {kLarge, kSmall}) {  // another size, and a mismatch of the same
    memory.replace(size);
    refused(memory.block, PINRAIL_ERR_WOULD_BLOCK);
    ++attempts;
    expect({1, held.bytes, held.opens + attempts, held.closes}, "WOULD_BLOCK, in use: the bystander is none of it");
  }
  char byte = 0;
  EXPECT_EQ(pinrail_mpool_device_read(old_one, kSmall - 1, &byte, 1), PINRAIL_SUCCESS);
  release(old_one);
  pool_->use(memory.block);
}

TEST_P(FourModes, over_the_limit_held_ones_make_it_an_error_and_idle_ones_go) {
  make(2 * kSmall);
  const PeerMemory a(kA, kBase, kSmall), b(kB, kBase, kSmall), c(kB, kElsewhere, kSmall);
  const pinrail_handle_t first = pool_->must(a.block), second = pool_->must(b.block);
  expect({2, 2 * kSmall, 2, 0}, "as much as may be");
  if (is_limited()) {
    refused(c.block, PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
    expect({2, 2 * kSmall, 2, 0}, "over the limit");
    release(first);
    const pinrail_handle_t third = pool_->must(c.block);
    expect({2, 2 * kSmall, 3, 1}, "the idle one went");
    release(third);
  } else {
    const pinrail_handle_t third = pool_->must(c.block);
    expect({3, 3 * kSmall, 3, 0}, "there is no limit");
    release(third);
    release(first);
  }
  EXPECT_EQ(pool_->stats().peak_registered_bytes, by_limit(2u, 3u) * kSmall);
  release(second);
  const size_t left = by_keeping(by_limit<size_t>(2, 3), size_t{0});
  expect({0, left * kSmall, 3, 3 - left}, "all are released");
}

TEST_P(FourModes, what_is_larger_than_the_limit_is_refused_without_the_driver) {
  make(kSmall);
  const PeerMemory large(kA, kBase, kLarge), small(kB, kBase, kSmall);
  pool_->use(small.block);
  const State before = by_keeping<State>({0, kSmall, 1, 0}, {0, 0, 1, 1});
  expect(before, "the small one");
  if (is_limited()) {
    const std::string said = said_by([&] { refused(large.block, PINRAIL_ERR_OUT_OF_RESOURCE); });
    EXPECT_NE(said.find("mpool_rgpusm_size_limit"), std::string::npos) << said;
    expect(before, "the refusal: the small one was not evicted for nothing");
  } else {
    release(pool_->must(large.block));
    expect(by_keeping<State>({0, kSmall + kLarge, 2, 0}, {0, 0, 2, 2}), "the large one");
  }
}

// The n-th call of that function fails, each from the first to the last of these in a run of its own: what the first
// request (32 KiB) and the second one (64 KiB, the first freed, the same base) come to, the bytes after each, and until
// nothing is left how often the driver was asked to open and to close, and how often its context was wanted. n = 0:
// none fails. What fails and must not is tried once more: closing, and leaving the context.
struct Fault {
  const char* function;
  uint64_t nth, last_nth;
  bool first, second;
  size_t first_bytes, second_bytes;
  uint64_t opens, closes, entries;

  bool hit(const char* name) const {
    return std::strcmp(function, name) == 0 && nth != 0 && cuda_double_calls(name) >= nth;
  }
  // Open, close, open, close: what is identified first and third was just opened.
  bool is_of_an_open() const { return nth % 2 == 1; }
};
constexpr const char* kRetain = "cuDevicePrimaryCtxRetain";
constexpr const char* kPush = "cuCtxPushCurrent";
constexpr const char* kPop = "cuCtxPopCurrent";
constexpr const char* kRelease = "cuDevicePrimaryCtxRelease";
constexpr const char* kOpen = "cuIpcOpenMemHandle";
constexpr const char* kClose = "cuIpcCloseMemHandle";
constexpr const char* kIdentify = "cuPointerGetAttributes";
// Open; open (ALREADY_MAPPED), close, open; close.
constexpr Fault kKeeping[] = {
    {kOpen, 0, 0, true, true, kSmall, kLarge, 3, 2, 5},    {kRetain, 1, 1, false, true, 0, kLarge, 1, 1, 3},
    {kRetain, 2, 2, true, false, kSmall, kSmall, 1, 1, 3}, {kRetain, 3, 3, true, true, kSmall, kLarge, 3, 2, 6},
    {kRetain, 4, 4, true, false, kSmall, 0, 2, 1, 4},      {kRetain, 5, 5, true, true, kSmall, kLarge, 3, 2, 6},
    {kRetain, 6, 6, true, true, kSmall, kLarge, 3, 2, 5},  {kPush, 1, 1, false, true, 0, kLarge, 1, 1, 3},
    {kPush, 2, 2, true, false, kSmall, kSmall, 1, 1, 3},   {kPush, 3, 3, true, true, kSmall, kLarge, 3, 2, 6},
    {kPush, 4, 4, true, false, kSmall, 0, 2, 1, 4},        {kPush, 5, 5, true, true, kSmall, kLarge, 3, 2, 6},
    {kPush, 6, 6, true, true, kSmall, kLarge, 3, 2, 5},    {kOpen, 1, 1, false, true, 0, kLarge, 2, 1, 3},
    {kOpen, 2, 2, true, false, kSmall, kSmall, 2, 1, 3},   {kOpen, 3, 3, true, false, kSmall, 0, 3, 1, 4},
    {kOpen, 4, 4, true, true, kSmall, kLarge, 3, 2, 5},    {kClose, 1, 2, true, true, kSmall, kLarge, 3, 3, 6},
    {kClose, 3, 3, true, true, kSmall, kLarge, 3, 2, 5},   {kPop, 1, 6, true, true, kSmall, kLarge, 3, 2, 5},
    {kRelease, 1, 6, true, true, kSmall, kLarge, 3, 2, 5}, {kIdentify, 1, 4, true, true, kSmall, kLarge, 3, 2, 5}};
// Open, close; open, close.
constexpr Fault kNotKeeping[] = {
    {kOpen, 0, 0, true, true, 0, 0, 2, 2, 4},    {kRetain, 1, 1, false, true, 0, 0, 1, 1, 3},
    {kRetain, 2, 2, true, true, 0, 0, 2, 2, 5},  {kRetain, 3, 3, true, false, 0, 0, 1, 1, 3},
    {kRetain, 4, 4, true, true, 0, 0, 2, 2, 5},  {kRetain, 5, 5, true, true, 0, 0, 2, 2, 4},
    {kPush, 1, 1, false, true, 0, 0, 1, 1, 3},   {kPush, 2, 2, true, true, 0, 0, 2, 2, 5},
    {kPush, 3, 3, true, false, 0, 0, 1, 1, 3},   {kPush, 4, 4, true, true, 0, 0, 2, 2, 5},
    {kPush, 5, 5, true, true, 0, 0, 2, 2, 4},    {kOpen, 1, 1, false, true, 0, 0, 2, 1, 3},
    {kOpen, 2, 2, true, false, 0, 0, 2, 1, 3},   {kOpen, 3, 3, true, true, 0, 0, 2, 2, 4},
    {kClose, 1, 2, true, true, 0, 0, 2, 3, 5},   {kClose, 3, 3, true, true, 0, 0, 2, 2, 4},
    {kPop, 1, 5, true, true, 0, 0, 2, 2, 4},     {kRelease, 1, 5, true, true, 0, 0, 2, 2, 4},
    {kIdentify, 1, 5, true, true, 0, 0, 2, 2, 4}};

class FourModesFaults : public FourModes {
 protected:
  void request(const PeerMemory& memory, bool works, size_t bytes_afterwards) const {
    if (works) {
      release(pool_->must(memory.block));
    } else {
      refused(memory.block, PINRAIL_ERR_ERROR);
    }
    EXPECT_EQ(pool_->referenced(), 0u);
    EXPECT_EQ(pool_->stats().registered_bytes, bytes_afterwards);
    EXPECT_EQ(cuda_double_open_handles(), pool_->stats().registered_count);
    EXPECT_TRUE(pool_->invariants_hold());
  }
  void run_all(Fault fault) const {
    for (; fault.nth <= fault.last_nth; ++fault.nth) run(fault);
  }
  void run(const Fault& fault) const {
    SCOPED_TRACE(std::string(fault.function) + " " + std::to_string(fault.nth));
    PeerMemory memory(kA, kBase, kSmall);
    cuda_double_forget();
    cuda_double_fail(fault.function, fault.nth, CUDA_ERROR_UNKNOWN, 0);
    request(memory, fault.first, fault.first_bytes);
    memory.replace(kLarge);
    request(memory, fault.second, fault.second_bytes);
    pool_->evict_all();
    EXPECT_EQ(pool_->stats().registered_bytes, 0u);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
    expect_calls(fault);
  }
  static void expect_calls(const Fault& fault) {
    EXPECT_EQ(opens(), fault.opens);
    EXPECT_EQ(closes(), fault.closes);
    const uint64_t entered = fault.entries - (fault.hit(kRetain) ? 1 : 0),
                   inside = entered - (fault.hit(kPush) ? 1 : 0);
    EXPECT_EQ(cuda_double_calls(kRetain), fault.entries);
    EXPECT_EQ(cuda_double_calls(kPush), entered);
    EXPECT_EQ(cuda_double_calls(kPop), inside + (fault.hit(kPop) ? 1 : 0));
    EXPECT_EQ(cuda_double_calls(kRelease), entered + (fault.hit(kRelease) ? 1 : 0));
    // After each open that did not fail, of which each was closed in the end; and before each close, unless the driver
    // did not tell what was opened.
    const uint64_t opened = fault.closes - (fault.hit(kClose) ? 1 : 0);
    const bool is_unknown = fault.hit(kIdentify) && fault.is_of_an_open();
    EXPECT_EQ(cuda_double_calls(kIdentify), opened + fault.closes - (is_unknown ? 1 : 0));
    uint64_t known = 0;
    for (const char* name : {kRetain, kPush, kPop, kRelease, kOpen, kClose, kIdentify})
      known += cuda_double_calls(name);
    EXPECT_EQ(cuda_double_calls("*"), known) << "and nothing else";
  }
};

TEST_P(FourModesFaults, whichever_call_of_the_driver_fails_nothing_is_held_or_left_open) {
  make(2 * kLarge);
  if (keeps()) {
    for (const Fault& fault : kKeeping) run_all(fault);
  } else {
    for (const Fault& fault : kNotKeeping) run_all(fault);
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, FourModes, ::testing::Values(1, 2, 3, 4));
INSTANTIATE_TEST_SUITE_P(Modes, FourModesFaults, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace pinrail::test
