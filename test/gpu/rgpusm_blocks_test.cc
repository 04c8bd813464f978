// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm over the driver double: what a block may not say, and one that changes while it is read.
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

#include "test/gpu/gpu_library.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kPeer = 1000001;  // a pid that no process has
constexpr uint64_t kBase = 0x10000;

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
  const PeerMemory memory(kPeer, kBase, 4096);
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

TEST_F(RgpusmBlocks, a_block_that_is_damaged_or_anothers_changes_nothing) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, 4096);
  const auto answer_to = [&](auto&& change, bool seal) {
    pinrail_gpu_block_t block = memory.block;
    change(&block);
    if (seal) block.checksum = checksum_of(block);
    pinrail_handle_t handle{};
    return pool.open(block, &handle);
  };
  using Block = pinrail_gpu_block_t*;
  pinrail_gpu_block_t later = memory.block;
  later.version = 2;
  later.length = 1;
  pinrail_handle_t none{};
  EXPECT_EQ(pinrail_mpool_register_remote(pool.get(), &later, 0, 4096, 1, 0, &none), PINRAIL_ERR_VERSION)
      << "what stands where in a later version is not known";
  EXPECT_EQ(answer_to([](Block b) { b->magic ^= 1; }, true), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer_to([](Block b) { b->version = 2; }, true), PINRAIL_ERR_VERSION);
  EXPECT_EQ(answer_to([](Block b) { b->size = 255; }, true), PINRAIL_ERR_VERSION);
  EXPECT_EQ(answer_to([](Block b) { b->event[63] = 1; }, false), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer_to([](Block b) { b->driver[20] ^= 1; }, false), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer_to([](Block b) { b->user += 1; }, true), PINRAIL_ERR_PERM);
  EXPECT_EQ(answer_to([](Block b) { b->machine += 1; }, true), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer_to([](Block b) { b->pid = static_cast<uint32_t>(getpid()); }, true), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(answer_to([](Block b) { b->segment = 5; }, true), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(answer_to([](Block b) { b->pid = 0; }, true), PINRAIL_ERR_BAD_PARAM) << "it would never be forgotten";
  EXPECT_EQ(answer_to([](Block b) { b->base = 0; }, true), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer_to([](Block b) { b->length = 0; }, true), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(answer_to([](Block b) { b->length = UINT64_MAX; }, true), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(pool.stats().registered_count, 0u);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 0u);
}

TEST_F(RgpusmBlocks, a_sender_of_blocks_that_cannot_be_opened_is_told_why_once) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, 4096);
  const auto told_of = [&](auto&& change) {
    pinrail_gpu_block_t block = memory.block;
    change(&block);
    block.checksum = checksum_of(block);
    const std::string said = said_by([&] { EXPECT_NE(pool.answer_to(block), PINRAIL_SUCCESS); });
    EXPECT_EQ(said_by([&] { EXPECT_NE(pool.answer_to(block), PINRAIL_SUCCESS); }), "");
    return said;
  };
  const auto expect_told = [](const std::string& said, const char* what) {
    EXPECT_NE(said.find(what), std::string::npos) << said;
    EXPECT_NE(said.find("What to do"), std::string::npos) << said;
    EXPECT_EQ(said.find('{'), std::string::npos) << said;
  };
  using Block = pinrail_gpu_block_t*;
  expect_told(told_of([](Block b) { b->version = 2; }), "of version 2 with 256 bytes");
  expect_told(told_of([](Block b) { b->user += 1; }), ("of user " + std::to_string(geteuid() + 1)).c_str());
  expect_told(told_of([](Block b) { b->machine += 1; }), "another machine");
  expect_told(told_of([](Block b) { b->pid = static_cast<uint32_t>(getpid()); }), "own GPU memory");
}

TEST_F(RgpusmBlocks, a_range_that_is_not_within_the_allocation_is_refused) {
  GpuPool pool("rgpusm");
  const PeerMemory memory(kPeer, kBase, 4096);
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

// A process that writes one block after the other to where the block of a request lies.
class ChangingBlock {
 public:
  ChangingBlock(const pinrail_gpu_block_t& one, const pinrail_gpu_block_t& other) {
    void* const shared = mmap(nullptr, sizeof(*block), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(shared, MAP_FAILED);
    block = static_cast<pinrail_gpu_block_t*>(shared);
    *block = one;
    child_ = fork();
    if (child_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no process behind
    for (;;) {
      for (const pinrail_gpu_block_t* each : {&other, &one}) {
        std::memcpy(block, each, sizeof(*block));
        std::atomic_signal_fence(std::memory_order_seq_cst);
      }
    }
  }
  ~ChangingBlock() {
    ::kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    munmap(block, sizeof(*block));
  }
  ChangingBlock(const ChangingBlock&) = delete;
  ChangingBlock& operator=(const ChangingBlock&) = delete;

  pinrail_gpu_block_t* block = nullptr;

 private:
  pid_t child_ = -1;
};

// R2: what is checked is what is compared, although a peer changes the block meanwhile.
TEST_F(RgpusmBlocks, a_block_that_changes_during_the_call_brings_no_smaller_allocation) {
  GpuPool pool("rgpusm");
  const PeerMemory large(kPeer, kBase, 8 * 4096), small(kPeer, 20 * kBase, 4096);
  pool.use(large.block);
  pool.use(small.block);
  const ChangingBlock changing(large.block, small.block);
  size_t taken = 0, too_small = 0;
  for (int i = 0; i < short_or_long(1500000, 5000000); ++i) {
    pinrail_handle_t handle{};
    if (pinrail_mpool_register_remote(pool.get(), changing.block, 0, 8 * 4096, 0, 0, &handle) != PINRAIL_SUCCESS) {
      continue;
    }
    ++taken;
    if (handle.reg->length < 8 * 4096) ++too_small;
    drop(handle);
  }
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
  const PeerMemory other_{kPeer, kBase, 4096}, wanted_{kPeer, 2 * kBase, 4096};
};

TEST_F(RgpusmLack, with_nothing_else_open_is_for_good) {
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_OUT_OF_RESOURCE);
}

TEST_F(RgpusmLack, with_something_open_is_for_now) {
  const Held held = pool_.hold(other_.block);
  EXPECT_EQ(open_refused(0, [] {}), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

TEST_F(RgpusmLack, is_for_now_also_where_the_last_other_one_is_closed_during_the_last_try) {
  const pinrail_handle_t held = pool_.must(other_.block);
  EXPECT_EQ(open_refused(2, [&] { drop(held); }), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(device_.live_count(), 0u);
}

TEST_F(RgpusmLack, is_for_now_also_where_another_one_came_and_went_during_the_last_try) {
  const auto come_and_go = [&] { EXPECT_EQ(pool_.answer_to(other_.block), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE); };
  EXPECT_EQ(open_refused(2, come_and_go), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
}

}  // namespace
}  // namespace pinrail::test
