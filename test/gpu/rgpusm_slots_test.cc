// SPDX-License-Identifier: BSD-3-Clause
// mpool/rgpusm and validity slots: two loads decide a hit, what died is closed within a bound, and crashes hold
// nothing.
#include <sys/mman.h>

#include <memory>
#include <thread>
#include <vector>

#include "test/gpu/gpu_library.h"
#include "test/support/cases.h"

namespace pinrail::test {
namespace {

constexpr uint64_t kBase = 0x10000;

// A process with two allocations.
struct Owner {
  Owner() {
    EXPECT_TRUE(bystander->make(exporter.get(), 16));
    first = with_slot(first_memory, bystander->process, exporter.get());
    second = with_slot(second_memory, bystander->process, exporter.get());
  }
  std::unique_ptr<Bystander> bystander = std::make_unique<Bystander>();
  std::unique_ptr<slots::Exporter> exporter = std::make_unique<slots::Exporter>();
  PeerMemory first_memory{bystander->process.pid, kBase, 4096}, second_memory{bystander->process.pid, 2 * kBase, 4096};
  pinrail_gpu_block_t first, second;
};

class RgpusmSlots : public ::testing::Test {
 protected:
  explicit RgpusmSlots(const Settings& settings = without_threads()) : library_(settings) {}
  void SetUp() override {
    cuda_double_forget();
    ASSERT_TRUE(bystander_.make(exporter_.get(), 16));
    block_ = with_slot(memory_);
  }
  void TearDown() override {
    EXPECT_EQ(pool_.close(), PINRAIL_SUCCESS);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
  }
  uint32_t pid() const { return bystander_.process.pid; }
  // The memory's block with a slot of the exporter's.
  pinrail_gpu_block_t with_slot(const PeerMemory& memory) {
    return test::with_slot(memory, bystander_.process, exporter_.get());
  }
  // As the kernel does it when the exporter's program ends.
  static void mark_as_ended(const slots::Exporter& exporter) {
    const std::string path = "/proc/self/fd/" + std::to_string(slots::file_of(exporter.segment()));
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    void* const header = mmap(nullptr, slots::kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ASSERT_NE(header, MAP_FAILED);
    slots::end_of(static_cast<slots::Header*>(header))->fetch_or(slots::EndMark::kEnded);
    munmap(header, slots::kHeaderBytes);
    ::close(file);
  }

  Bystander bystander_;
  PeerMemory memory_{pid(), kBase, 4096};
  pinrail_gpu_block_t block_{};
  std::unique_ptr<slots::Exporter> exporter_ = std::make_unique<slots::Exporter>();
  const Library library_;
  GpuPool pool_{"rgpusm"};
};
// With the thread that looks around.
class RgpusmSlotsGc : public RgpusmSlots {
 protected:
  RgpusmSlotsGc() : RgpusmSlots({{"mpool_rgpusm_gc_interval", "10"}}) {}
};

TEST_F(RgpusmSlots, a_block_whose_memory_died_is_not_found_although_it_is_in_the_cache) {
  pool_.use(block_);
  pool_.use(block_);
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 1u);
  exporter_->kill_hook(block_.slot);
  EXPECT_EQ(pool_.answer_to(block_), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_.stats().registered_count, 0u);
}

TEST_F(RgpusmSlots, an_importer_is_counted_from_open_to_close) {
  cuda_double_fail("cuIpcOpenMemHandle", 1, CUDA_ERROR_UNKNOWN, 0);
  EXPECT_EQ(pool_.answer_to(block_), PINRAIL_ERR_ERROR);
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 0u);
  const pinrail_handle_t handle = pool_.must(block_);
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 1u);
  EXPECT_EQ(exporter_->word(block_.slot)->load() & slots::kImporters, 0u) << "it sits: were it to crash, that is seen";
  exporter_->kill_hook(block_.slot);
  EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 1u) << "it is held";
  drop(handle);
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 0u);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
}

// R10; rgpusm_component/P2: an exporter that defers its frees would wait for us for ever.
TEST_F(RgpusmSlots, a_forced_destroy_closes_what_is_held_and_leaves_no_importer) {
  const pinrail_handle_t handle = pool_.must(block_);
  const std::string said = said_by([&] { EXPECT_EQ(pool_.close(), PINRAIL_ERR_BUSY); });
  EXPECT_NE(said.find("1 reference"), std::string::npos) << said;
  EXPECT_EQ(cuda_double_open_handles(), 1u) << "nothing changed";
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 1u);
  ASSERT_EQ(pool_.close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
  EXPECT_EQ(exporter_->importers_hook(block_.slot), 0u);
  drop(handle);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(cuda_double_calls("cuIpcCloseMemHandle"), 1u);
}

TEST_F(RgpusmSlotsGc, the_thread_closes_what_died_without_any_call) {
  const PeerMemory other(pid(), 2 * kBase, 4096);
  const pinrail_gpu_block_t lives = with_slot(other);
  pool_.use(block_);
  pool_.use(lives);
  exporter_->kill_hook(block_.slot);
  EXPECT_TRUE(comes_true([] { return cuda_double_open_handles() == 1; }));
  EXPECT_EQ(exporter_->importers_hook(lives.slot), 1u);
}

// gpu_pool/X7: the call that closes dead mappings may look before this one is in the index, and does not look again.
TEST_F(RgpusmSlots, memory_that_dies_while_it_is_opened_does_not_stay_open) {
  for (const uint32_t flags : {uint32_t{0}, uint32_t{PINRAIL_FLAG_CACHE_BYPASS}}) {
    const pinrail_gpu_block_t block = with_slot(memory_);
    pinrail_handle_t handle{};
    pinrail_status_t status = PINRAIL_ERR_ERROR;
    cuda_double_gate("cuIpcOpenMemHandle");
    std::thread opener([&] { status = pool_.open(block, &handle, flags); });
    while (cuda_double_at_gate() == 0) std::this_thread::yield();
    exporter_->kill_hook(block.slot);
    EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
    cuda_double_open_gate();
    opener.join();
    EXPECT_EQ(status, PINRAIL_ERR_NOT_FOUND);
    EXPECT_EQ(exporter_->importers_hook(block.slot), 0u);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(pool_.stats().registered_count, 0u);
    EXPECT_TRUE(pool_.invariants_hold());
  }
}

TEST_F(RgpusmSlots, a_process_that_has_no_descriptor_left_does_not_take_an_exporter_for_dead) {
  {
    const FewDescriptors none;
    EXPECT_EQ(pool_.answer_to(block_), PINRAIL_ERR_OUT_OF_RESOURCE);
  }
  pool_.use(block_);
  {
    const FewDescriptors none;
    EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
  }
  EXPECT_EQ(pool_.stats().registered_count, 1u);
  pool_.use(block_);
}

// Where it became another program, its pid and its start stay, and all its GPU memory is gone.
TEST_F(RgpusmSlotsGc, what_an_exporter_left_that_crashed_or_became_another_program_is_closed) {
  Owner crashing;
  pool_.use(block_);
  pool_.use(crashing.first);
  ASSERT_TRUE(bystander_.exec());
  EXPECT_TRUE(slots::is_alive(bystander_.process.pid, bystander_.process.start));
  crashing.bystander->end();
  EXPECT_TRUE(comes_true([] { return cuda_double_open_handles() == 0; }));
  for (const pinrail_gpu_block_t& block : {block_, crashing.first}) {
    // The gc thread forgets the exporter afterwards; until then the driver is asked, and this one knows no processes.
    EXPECT_TRUE(comes_true([&] {
      pinrail_handle_t handle{};
      const pinrail_status_t status = pool_.open(block, &handle);
      if (status == PINRAIL_SUCCESS) drop(handle);
      return status == PINRAIL_ERR_NOT_FOUND;
    }));
  }
}

// In one round, however many they are.
TEST_F(RgpusmSlots, what_many_crashed_exporters_left_is_closed_at_once) {
  const std::vector<Owner> owners(40);
  for (const Owner& owner : owners) pool_.use(owner.first);
  for (const Owner& owner : owners) mark_as_ended(*owner.exporter);
  EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
  EXPECT_EQ(cuda_double_open_handles(), 0u);
}

// slots/V3: the kernel sets the mark before the old program's memory goes, so no hit is served after that.
TEST_F(RgpusmSlots, a_hit_on_memory_of_an_exporter_that_has_ended_is_refused_at_once) {
  for (int i = 0; i < 3; ++i) pool_.use(block_);
  EXPECT_EQ(pool_.stats().misses, 1u);
  mark_as_ended(*exporter_);
  EXPECT_EQ(pool_.answer_to(block_), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(RgpusmSlots, what_the_driver_refuses_of_a_dead_exporter_is_not_found_and_evicts_nothing) {
  const PeerMemory late(pid(), 2 * kBase, 4096);
  const PeerMemory others(1000001, kBase, 4096);
  const pinrail_gpu_block_t of_late = with_slot(late);
  pool_.use(block_);
  pool_.use(others.block);
  bystander_.end();  // and this pool has not noticed it yet
  for (const CUresult error : {CUDA_ERROR_MAP_FAILED, CUDA_ERROR_ALREADY_MAPPED, CUDA_ERROR_INVALID_VALUE}) {
    cuda_double_fail("cuIpcOpenMemHandle", 1, error, 1);
    EXPECT_EQ(pool_.answer_to(of_late), PINRAIL_ERR_NOT_FOUND) << error;
    EXPECT_EQ(pool_.stats().registered_count, 2u) << error;
    EXPECT_EQ(pool_.stats().retries, 0u);
    EXPECT_EQ(exporter_->importers_hook(of_late.slot), 0u);
  }
  cuda_double_forget();
}

TEST_F(RgpusmSlots, each_exporter_is_known_once_and_the_place_of_a_dead_one_is_used_again) {
  constexpr uint32_t kMany = 40;
  for (int round = 0; round < 2; ++round) {
    const std::vector<Owner> owners(kMany);
    for (const Owner& owner : owners) {
      pool_.use(owner.first);
      pool_.use(owner.second);
    }
    for (const Owner& owner : owners) EXPECT_EQ(times_mapped(owner.first), 2u) << "its maker is this process too";
    EXPECT_EQ(pool_.stats().registered_count, 2 * kMany);
    for (const Owner& owner : owners) owner.bystander->end();
    for (uint32_t i = 0; i < kMany; ++i) EXPECT_EQ(pinrail_mpool_progress(pool_.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(pool_.stats().registered_count, 0u);
    for (const Owner& owner : owners) EXPECT_EQ(times_mapped(owner.first), 1u);
  }
}

TEST_F(RgpusmSlots, an_exporter_that_started_anew_is_another_one) {
  pool_.use(block_);
  slots::Exporter anew;  // the same pid, the same address, another segment
  ASSERT_TRUE(bystander_.make(&anew, 16));
  memory_.replace(4096);
  const pinrail_gpu_block_t block = test::with_slot(memory_, bystander_.process, &anew);
  const pinrail_handle_t handle = pool_.must(block);
  EXPECT_EQ(anew.importers_hook(block.slot), 1u);
  drop(handle);
}

// The driver may take both for one exporter.
TEST_F(RgpusmSlots, what_a_dead_exporter_left_is_not_in_the_way_of_another_one_with_its_pid) {
  for (const bool is_marked : {false, true}) {
    slots::Process dead = bystander_.process;
    dead.start -= is_marked ? 1 : 2;  // started before the present one, so it does not run any more
    slots::Exporter of_dead;
    ASSERT_TRUE(of_dead.create(dead, 16).ok());
    PeerMemory memory(pid(), 4 * kBase, 4096), beside(pid(), 5 * kBase, 4096);
    pool_.use(test::with_slot(memory, dead, &of_dead));
    pool_.use(with_slot(beside));
    if (is_marked) mark_as_ended(of_dead);
    memory.replace(4096);
    pool_.use(with_slot(memory));
    EXPECT_EQ(cuda_double_open_handles(), 2u) << "the dead one's is closed, and nothing else";
    EXPECT_EQ(pinrail_mpool_evict(pool_.get()), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_evict(pool_.get()), PINRAIL_SUCCESS);
  }
}

TEST_F(RgpusmSlots, an_importer_that_cannot_be_told_from_others_says_so_once) {
  const PeerMemory second(pid(), 2 * kBase, 4096);
  const pinrail_gpu_block_t of_second = with_slot(second);
  std::vector<std::unique_ptr<slots::Importer>> others;
  for (uint32_t i = 0; i < slots::kImporterEntries; ++i) {
    others.push_back(std::make_unique<slots::Importer>());
    ASSERT_TRUE(others.back()->open(block_.user, block_.pid, block_.start, block_.segment).ok());
    others.back()->register_importer(bystander_.process);
  }
  const std::string said = said_by([&] { pool_.use(block_); });
  EXPECT_NE(said.find("256 processes, the most that can be told apart"), std::string::npos) << said;
  EXPECT_EQ(said_by([&] { pool_.use(of_second); }), "");
}

TEST_F(RgpusmSlots, a_block_that_claims_more_than_is_there_is_refused_and_nothing_stays_open) {
  const PeerMemory memory(pid(), 4 * kBase, 8192);
  const pinrail_gpu_block_t right = with_slot(memory);
  const auto refuse = [&](auto&& change) {
    pinrail_gpu_block_t block = right;
    change(&block);
    block.checksum = checksum_of(block);
    EXPECT_EQ(pool_.answer_to(block), PINRAIL_ERR_BAD_PARAM);
    EXPECT_EQ(cuda_double_open_handles(), 0u);
    EXPECT_EQ(exporter_->importers_hook(right.slot), 0u);
  };
  refuse([](auto* block) { block->slot = 16; });  // beyond the segment
  EXPECT_EQ(cuda_double_calls("cuIpcOpenMemHandle"), 0u);
  refuse([](auto* block) { block->length = 8193; });
  refuse([](auto* block) { block->length = uint64_t{1} << 40; });
  pool_.use(right);
}

}  // namespace
}  // namespace pinrail::test
