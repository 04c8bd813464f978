// SPDX-License-Identifier: BSD-3-Clause
// mpool/gpusm over the driver double, and monitor/cuda: blocks of memory that lives, and of none that was freed.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <thread>

#include "base/core/compiler.h"
#include "config.h"
#include "test/gpu/gpu_library.h"
#include "test/support/cases.h"
#include "test/support/files.h"
#include "test/support/gpu_memory.h"

namespace pinrail::test {
namespace {

void* pointer_of(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

class Gpusm : public ::testing::Test {
 protected:
  void TearDown() override {
    pool_.reset();
    library_.reset();
    for (const CUdeviceptr at : all_) EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    EXPECT_EQ(cuda_double_used(), 0u);
  }
  void start(const Settings& settings = without_threads(), const PoolOptions& options = {}) {
    library_ = std::make_unique<Library>(settings);
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    pool_ = std::make_unique<GpuPool>("gpusm", options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  // What a test does not free itself is freed at its end.
  CUdeviceptr alloc(size_t bytes = kBytes) {
    CUdeviceptr at = 0;
    EXPECT_EQ(cuMemAlloc(&at, bytes), CUDA_SUCCESS);
    cuda_double_forget();
    all_.insert(at);
    return at;
  }
  void free(CUdeviceptr at) {
    EXPECT_EQ(cuMemFree(at), CUDA_SUCCESS);
    all_.erase(at);
  }
  pinrail_gpu_block_t exported(CUdeviceptr at, size_t length = 1) const {
    return pool_->block_of(pointer_of(at), length);
  }
  pinrail_status_t export_of(void* at, size_t length, pinrail_gpu_block_t* block_out) const {
    size_t offset = 0;
    return pinrail_mpool_export(pool_->get(), at, length, block_out, &offset);
  }

  static constexpr size_t kBytes = 8192;
  const CurrentContext context_;
  std::unique_ptr<Library> library_;
  std::unique_ptr<GpuPool> pool_;
  std::set<CUdeviceptr> all_;
};

TEST_F(Gpusm, any_pointer_inside_gives_the_whole_allocation_and_a_hit_asks_for_no_handle) {
  start();
  const CUdeviceptr at = alloc(10000);
  const pinrail_gpu_block_t whole = exported(at, 10000);
  pinrail_gpu_block_t inside{};
  size_t offset = 0;
  ASSERT_EQ(pinrail_mpool_export(pool_->get(), pointer_of(at + 777), 100, &inside, &offset), PINRAIL_SUCCESS);
  EXPECT_EQ(offset, 777u);
  EXPECT_EQ(std::memcmp(&whole, &inside, sizeof(whole)), 0);
  EXPECT_EQ(whole.base, at);
  EXPECT_EQ(whole.length, 10000u);
  EXPECT_EQ(whole.checksum, checksum_of(whole));
  EXPECT_TRUE(is_alive(whole));
  EXPECT_EQ(cuda_double_calls("cuIpcGetMemHandle"), 1u);
}

// The slots lie in a file in memory: giving it its length would end the process.
TEST_F(Gpusm, where_no_file_may_be_made_memory_is_exported_without_a_slot) {
  const ChildAnswer answer = answer_of([&] {
    const CUdeviceptr at = alloc();
    const rlimit none = {0, 0};
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) return ChildAnswer{-1};
    start();
    pinrail_gpu_block_t block{};
    return ChildAnswer{export_of(pointer_of(at), 100, &block)};
  });
  EXPECT_EQ(answer[0], PINRAIL_SUCCESS);
}

// A daemon may have closed it. Otherwise each message would be written into the slots, of which peers read the header.
TEST_F(Gpusm, the_file_of_the_slots_does_not_become_standard_error) {
  const ChildAnswer answer = answer_of([&] {
    const CUdeviceptr at = alloc();
    close(STDERR_FILENO);
    start();
    const pinrail_gpu_block_t block = exported(at);
    char name[256] = "";
    const ssize_t length = readlink("/proc/self/fd/2", name, sizeof(name) - 1);
    const int64_t is_ours = length > 0 && std::strstr(name, "pinrail") != nullptr ? 1 : 0;
    return ChildAnswer{block.length == kBytes ? 1 : 0, is_ours};
  });
  EXPECT_EQ(answer, (ChildAnswer{1, 0}));
}

// Each memory that goes by a descriptor keeps one open: what is idle makes room, and what is held stays as it is.
TEST_F(Gpusm, a_process_that_has_no_descriptor_left_gives_up_idle_blocks_for_new_ones) {
  start();
  const GpuMemory first(PINRAIL_GPU_VMM), second(PINRAIL_GPU_VMM), third(PINRAIL_GPU_VMM);
  const pinrail_gpu_block_t idle = exported(first.at());
  pinrail_gpu_block_t block{}, refused{};
  pinrail_handle_t held{};
  {
    const FewDescriptors none;
    EXPECT_EQ(pinrail_mpool_register(pool_->get(), second.pointer(), 1, 0, 0, &held), PINRAIL_SUCCESS);
    EXPECT_EQ(export_of(second.pointer(), 1, &block), PINRAIL_SUCCESS);
    EXPECT_EQ(export_of(third.pointer(), 1, &refused), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  }
  EXPECT_FALSE(is_alive(idle));
  EXPECT_TRUE(is_alive(block));
  EXPECT_EQ(refused.magic, 0u);
  drop(held);
  EXPECT_TRUE(is_alive(exported(third.at())));
}

// No peer can open the slots of what is exported now.
TEST_F(Gpusm, a_program_that_closed_the_slots_is_told_so_once) {
  start();
  const CUdeviceptr first = alloc(), second = alloc();
  ASSERT_EQ(close(slots::file_of(exported(first).segment)), 0);
  pinrail_gpu_block_t block{};
  const auto refused = [&] { EXPECT_EQ(export_of(pointer_of(second), 1, &block), PINRAIL_ERR_NOT_AVAILABLE); };
  EXPECT_NE(said_by(refused).find("[pinrail:gpusm] slots closed"), std::string::npos);
  EXPECT_EQ(said_by(refused), "");
  EXPECT_EQ(pool_->stats().registered_count, 1u);
}

TEST_F(Gpusm, memory_that_was_freed_unseen_is_dead_when_what_overlaps_it_is_exported_whatever_its_base) {
  start();
  const CUdeviceptr pad = alloc(4096), at = alloc();
  const pinrail_gpu_block_t first = exported(at);
  free(at);
  ASSERT_EQ(alloc(), at);
  const pinrail_gpu_block_t second = exported(at);
  EXPECT_NE(second.buffer_id, first.buffer_id);
  EXPECT_FALSE(is_alive(first));
  EXPECT_TRUE(is_alive(second));
  free(at);
  free(pad);
  ASSERT_EQ(alloc(12288), pad);
  exported(pad);
  EXPECT_FALSE(is_alive(second));
}

TEST_F(Gpusm, a_reported_free_kills_at_once_and_the_next_miss_closes) {
  start();
  const CUdeviceptr at = alloc(), other = alloc();
  const pinrail_gpu_block_t block = exported(at), lives = exported(other);
  pinrail_monitor_report(pointer_of(at), 1);
  EXPECT_FALSE(is_alive(block));
  EXPECT_TRUE(is_alive(lives));
  EXPECT_TRUE(is_alive(exported(at))) << "exported again, as it was not freed in fact";
  pinrail_monitor_report(pointer_of(at), 1);
  exported(alloc());  // another allocation may get the address before anything else is asked for there
  EXPECT_EQ(pool_->stats().registered_count, 2u);
}

TEST_F(Gpusm, the_monitor_sees_frees_and_says_nothing_about_host_memory) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  start(without_threads({{"monitor", "cuda"}}));
  const CUdeviceptr at = alloc();
  const pinrail_gpu_block_t block = exported(at);
  EXPECT_TRUE(is_alive(block));
  free(at);
  EXPECT_FALSE(is_alive(block));
  fake::FakeRegistrar registrar;
  EXPECT_EQ(test::Pool(registrar).status, PINRAIL_ERR_NOT_SUPPORTED) << "no monitor of host memory works";
#else
  GTEST_SKIP() << "code is patched on x86-64 only, and not under ThreadSanitizer";
#endif
}

TEST_F(Gpusm, a_stranger_hears_of_frees) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  start(without_threads({{"monitor", "external,cuda"}}));
  Span heard;
  const auto note = [](void* span, void* addr, size_t length) { *static_cast<Span*>(span) = Span::of(addr, length); };
  pinrail_subscription_t* subscription = nullptr;
  ASSERT_EQ(pinrail_monitor_subscribe(note, &heard, &subscription), PINRAIL_SUCCESS);
  const CUdeviceptr at = alloc();
  free(at);
  pinrail_monitor_unsubscribe(subscription);
  EXPECT_TRUE(heard.contains(Span::of(uintptr_t{at}, 1)));
#else
  GTEST_SKIP() << "code is patched on x86-64 only, and not under ThreadSanitizer";
#endif
}

// A patch stays where it is, and there is room for those of a few libraries. In a child, whose patches end with it.
TEST_F(Gpusm, a_process_that_has_watched_too_many_driver_libraries_is_told_so) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  const TempFolder folder;
  const std::string bytes = read_whole(PINRAIL_TEST_BUILD "/test/fake/.libs/libcuda.so.1");
  const auto watches = [&](int number) {
    return Library(without_threads(
                       {{"monitor", "external,cuda"},
                        {"monitor_cuda_library", folder.write("libcuda" + std::to_string(number) + ".so", bytes)}}))
               .status == PINRAIL_SUCCESS;
  };
  // Whether the first was watched, and one of the others was not.
  const ChildAnswer answer = answer_of([&]() -> ChildAnswer {
    const bool is_first_watched = watches(0);
    bool is_refused = false;
    for (int i = 1; i < 16 && !is_refused; ++i) is_refused = !watches(i);
    return {is_first_watched ? 1 : 0, is_refused ? 1 : 0};
  });
  EXPECT_EQ(answer[0], 1);
  EXPECT_EQ(answer[1], 1);
#else
  GTEST_SKIP() << "code is patched on x86-64 only, and not under ThreadSanitizer";
#endif
}

Settings deferring_frees(const char* timeout_ms) {
  return without_threads({{"mpool_gpusm_free", "defer"}, {"mpool_gpusm_free_timeout", timeout_ms}});
}

// Opens the block's memory as a peer does, and never closes it.
class Importer {
 public:
  explicit Importer(const pinrail_gpu_block_t& block) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      PeersSlots importer(block);
      if (importer.is_open) importer.register_importer(own_process());
      const bool in = importer.is_open && importer.enter(block.slot, block.slot_word);
      if (in && write(ends[1], "g", 1) == 1) pause();
      _exit(1);
    }
    char byte = 0;
    ::close(ends[1]);
    EXPECT_EQ(read(ends[0], &byte, 1), 1);
    ::close(ends[0]);
  }
  ~Importer() { crash(); }
  Importer(const Importer&) = delete;
  Importer& operator=(const Importer&) = delete;
  void crash() {
    if (child_ <= 0) return;
    ::kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
};

// An importer that has memory of two blocks open, as a process of its own would.
class TwoOpen {
 public:
  TwoOpen(const pinrail_gpu_block_t& first, const pinrail_gpu_block_t& second)
      : first_(first), second_(second), importer_(first) {
    importer_.register_importer(own_process());
    EXPECT_TRUE(importer_.enter(first.slot, first.slot_word));
    EXPECT_TRUE(importer_.enter(second.slot, second.slot_word));
  }
  // Reports that all GPU memory is about to be freed. Whether that returned after both were closed.
  bool are_both_waited_for() {
    std::atomic<bool> left{false};
    std::thread closer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      importer_.leave(first_.slot, first_.slot_word);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      left.store(true);
      importer_.leave(second_.slot, second_.slot_word);
    });
    pinrail_monitor_report(nullptr, SIZE_MAX);
    const bool waited = left.load();
    closer.join();
    return waited;
  }

 private:
  const pinrail_gpu_block_t first_, second_;
  PeersSlots importer_;
};

// gpusm_component/O3: the gc thread closes the registration of the second while the first is waited for.
TEST_F(Gpusm, a_deferred_free_waits_for_all_that_it_ends) {
  Settings settings = deferring_frees("3600000");
  settings.emplace_back("mpool_gpusm_gc_interval", "5");
  start(settings);
  const CUdeviceptr first = alloc(), second = alloc();
  TwoOpen importer(exported(first), exported(second));
  EXPECT_TRUE(importer.are_both_waited_for());
}

// gpusm_component/O3.
TEST_F(Gpusm, a_deferred_free_waits_for_importers_of_what_was_evicted) {
  start(deferring_frees("3600000"));
  const CUdeviceptr first = alloc(), second = alloc();
  const pinrail_gpu_block_t of_second = exported(second);
  TwoOpen importer(exported(first), of_second);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_FALSE(is_alive(of_second));
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  EXPECT_TRUE(importer.are_both_waited_for());
  pinrail_monitor_report(nullptr, SIZE_MAX);  // comes back: nothing is open
}

// gpusm_component/O3.
TEST_F(Gpusm, importers_that_stay_are_waited_for_once_and_do_not_use_up_the_slots) {
  Settings settings = deferring_frees("200");
  settings.emplace_back("mpool_gpusm_max_exports", "2");
  start(settings);
  const CUdeviceptr first = alloc(), second = alloc();
  const Importer importer(exported(first)), another(exported(second));
  for (int i = 0; i < 2; ++i) EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_SUCCESS);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 500; ++i) pinrail_monitor_report(pointer_of(first), 1);
  const auto waited = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(waited, std::chrono::milliseconds(100));
  EXPECT_LT(waited, std::chrono::seconds(60)) << "100 s is the time of all of them";
  EXPECT_TRUE(is_alive(exported(first)));
  EXPECT_TRUE(is_alive(exported(second)));
}

TEST_F(Gpusm, a_deferred_free_does_not_wait_for_importers_that_crash) {
  start(deferring_frees("3600000"));
  const CUdeviceptr first = alloc(), second = alloc();
  const pinrail_gpu_block_t of_first = exported(first), of_second = exported(second);
  Importer before(of_first), meanwhile(of_second);
  before.crash();
  pinrail_monitor_report(pointer_of(first), 1);  // comes back, an hour before its limit
  std::thread killer([&] {
    while (is_alive(of_second)) std::this_thread::yield();
    meanwhile.crash();
  });
  pinrail_monitor_report(pointer_of(second), 1);
  killer.join();
}

// R9: an importer of which the system does not tell may have the memory open.
TEST_F(Gpusm, a_deferred_free_waits_for_an_importer_that_it_cannot_ask_about) {
  start(deferring_frees("100"));
  const CUdeviceptr at = alloc();
  const pinrail_gpu_block_t block = exported(at);
  const Importer importer(block);
  const auto begin = std::chrono::steady_clock::now();
  {
    const FewDescriptors none;
    pinrail_monitor_report(pointer_of(at), 1);
  }
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(50));
}

// slots/V4: those that had nothing open when they crashed.
TEST_F(Gpusm, importers_that_crash_do_not_use_up_the_table) {
  start();
  const CUdeviceptr at = alloc();
  const pinrail_gpu_block_t block = exported(at);
  const pid_t child = fork();
  if (child == 0) {
    for (uint32_t i = 0; i < slots::kImporterEntries; ++i) {
      auto* const never_closed = new PeersSlots(block);
      if (!never_closed->is_open) _exit(1);
      never_closed->register_importer(own_process());
    }
    _exit(0);
  }
  expect_success_of(child);
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  PeersSlots importer(block);
  importer.register_importer(own_process());
  ASSERT_TRUE(importer.enter(block.slot, block.slot_word));
  EXPECT_EQ(importer.word(block.slot)->load() & slots::kImporters, 0u) << "it has an entry";
  importer.leave(block.slot, block.slot_word);
}

TEST_F(Gpusm, all_that_a_free_ends_is_dead_before_the_first_is_waited_for) {
  start(deferring_frees("3600000"));
  const CUdeviceptr first = alloc(), second = alloc();
  const pinrail_gpu_block_t of_first = exported(first), of_second = exported(second);
  PeersSlots importer(of_first);  // without an entry: it is counted in the slot's word
  ASSERT_TRUE(importer.enter(of_first.slot, of_first.slot_word));
  std::atomic<bool> left{false};
  std::thread closer([&] {
    while (is_alive(of_second)) std::this_thread::yield();
    left.store(true);
    importer.leave(of_first.slot, of_first.slot_word);
  });
  pinrail_monitor_report(pointer_of(std::min(first, second)), 2 * kBytes);
  EXPECT_TRUE(left.load());
  closer.join();
}

TEST_F(Gpusm, what_is_no_gpu_memory_or_not_within_one_allocation_or_without_ipc_is_refused) {
  start();
  const CUdeviceptr at = alloc(4096);
  pinrail_gpu_block_t block{};
  EXPECT_EQ(export_of(&block, 8, &block), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(export_of(pointer_of(at), 4097, &block), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(export_of(pointer_of(at), 0, &block), PINRAIL_ERR_BAD_PARAM);
  cuda_double_fail("cuIpcGetMemHandle", 1, CUDA_ERROR_NOT_SUPPORTED, 0);
  EXPECT_EQ(export_of(pointer_of(at), 1, &block), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pool_->stats().registered_count, 0u);
  EXPECT_EQ(block.magic, 0u);
}

TEST_F(Gpusm, without_leave_pinned_a_block_lives_as_long_as_its_registration) {
  start(without_threads(), not_kept());
  const CUdeviceptr at = alloc(4096);
  pinrail_gpu_block_t block{};
  EXPECT_EQ(export_of(pointer_of(at), 1, &block), PINRAIL_ERR_NOT_SUPPORTED);
  pinrail_handle_t handle{};
  ASSERT_EQ(pinrail_mpool_register(pool_->get(), pointer_of(at), 1, 0, 0, &handle), PINRAIL_SUCCESS);
  std::memcpy(&block, pinrail_registration_tail(handle.reg), sizeof(block));
  EXPECT_TRUE(is_alive(block));
  drop(handle);
  EXPECT_FALSE(is_alive(block));
}

}  // namespace
}  // namespace pinrail::test
