// SPDX-License-Identifier: BSD-3-Clause
// calls.cc - what a program sees of libibverbs under pinrun, beside a double of libibverbs. Run by test/pinrun_test.sh.
#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "test/fake/verbs/verbs_double.h"
#include "test/support/cases.h"
#include "test/support/gpu_memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kBytes = size_t{1} << 16;
constexpr int kLocal = IBV_ACCESS_LOCAL_WRITE;
constexpr int kRemote = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

class PinrunCalls : public ::testing::Test {
 protected:
  PinrunCalls() : domain(ibv_alloc_pd(&device)), memory(map(nullptr)) {}
  ~PinrunCalls() override {
    verbs_double_fail_from(0);
    verbs_double_most_live(UINT64_MAX);
    EXPECT_EQ(ibv_dealloc_pd(domain), 0);
    munmap(memory, kBytes);
  }

  static char* map(void* where) {
    const int fixed = where != nullptr ? MAP_FIXED : 0;
    return static_cast<char*>(mmap(where, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0));
  }

  // How many regions the device made while the function ran.
  template <typename Function>
  static uint64_t made_by(Function function) {
    const uint64_t before = verbs_double_registered();
    function();
    return verbs_double_registered() - before;
  }

  ibv_mr* reg(int access = kLocal) { return ibv_reg_mr(domain, memory, kBytes, access); }
  uint64_t made_by_regs(int count, int access = kLocal) {
    return made_by([&] {
      for (int i = 0; i < count; ++i) EXPECT_EQ(ibv_dereg_mr(reg(access)), 0);
    });
  }
  // Other pages at the same address.
  void replace_memory() {
    munmap(memory, kBytes);
    ASSERT_EQ(map(memory), memory);
  }

  ibv_context device{};
  ibv_pd* domain;
  char* memory;
};

TEST_F(PinrunCalls, equal_requests_share_keys_and_have_regions_of_their_own) {
  ibv_mr *one = nullptr, *other = nullptr;
  EXPECT_EQ(made_by([&] {
              one = reg();
              other = reg();
            }),
            1u);
  ASSERT_NE(one, nullptr);
  ASSERT_NE(other, nullptr);
  EXPECT_NE(one, other);
  EXPECT_EQ(one->lkey, other->lkey);
  EXPECT_EQ(one->rkey, other->rkey);
  for (const ibv_mr* region : {one, other}) {
    EXPECT_EQ(region->addr, memory);
    EXPECT_EQ(region->length, kBytes);
    EXPECT_EQ(region->pd, domain);
    EXPECT_EQ(region->context, &device);
  }
  EXPECT_EQ(ibv_dereg_mr(one), 0);
  EXPECT_EQ(ibv_dereg_mr(other), 0);
}

TEST_F(PinrunCalls, a_range_is_registered_once_until_its_memory_goes) {
  EXPECT_EQ(made_by_regs(100), 1u);
  ibv_mr* region = reg();
  const uint32_t key = region->rkey;
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  replace_memory();
  EXPECT_EQ(made_by([&] { region = reg(); }), 1u);
  EXPECT_NE(region->rkey, key);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_key_exposes_no_more_than_was_asked_for) {
  ibv_mr* whole = reg(kRemote);
  ibv_mr* part = ibv_reg_mr(domain, memory + 4096, 4096, kLocal);
  EXPECT_NE(whole->rkey, part->rkey);
  EXPECT_EQ(part->addr, memory + 4096);
  EXPECT_EQ(part->length, 4096u);
  EXPECT_EQ(ibv_dereg_mr(whole), 0);
  EXPECT_EQ(ibv_dereg_mr(part), 0);
}

TEST_F(PinrunCalls, a_domain_with_regions_is_busy_and_without_them_leaves_none_at_the_device) {
  const uint64_t before = verbs_double_live();
  ibv_pd* other = ibv_alloc_pd(&device);
  ibv_mr* region = ibv_reg_mr(other, memory, kBytes, kLocal);
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(verbs_double_live(), before + 1) << "it is kept";
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
  EXPECT_EQ(verbs_double_live(), before);
}

TEST_F(PinrunCalls, closing_a_device_and_the_end_of_an_imported_domain_deregister_what_is_kept) {
  const uint64_t before = verbs_double_live();
  ibv_context other_device{};
  ibv_pd *other = ibv_alloc_pd(&other_device), *imported = ibv_alloc_pd(&other_device);
  for (ibv_pd* each : {other, imported}) EXPECT_EQ(ibv_dereg_mr(ibv_reg_mr(each, memory, kBytes, kLocal)), 0);
  ibv_unimport_pd(imported);
  EXPECT_EQ(verbs_double_live(), before + 1);
  EXPECT_EQ(ibv_close_device(&other_device), 0) << "it looks at no domain that is gone";
  EXPECT_EQ(verbs_double_live(), before);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(PinrunCalls, a_device_may_be_closed_and_a_domain_unimported_while_regions_exist) {
  ibv_context other_device{};
  for (ibv_pd* other : {ibv_alloc_pd(&other_device), ibv_alloc_pd(&other_device)}) {
    ASSERT_NE(ibv_reg_mr(other, memory, kBytes, kLocal), nullptr);
    ASSERT_NE(ibv_reg_mr(other, memory, 4096, kLocal), nullptr);
  }
  ibv_pd* imported = ibv_alloc_pd(&device);
  ASSERT_NE(ibv_reg_mr(imported, memory, kBytes, kLocal), nullptr);
  EXPECT_EQ(ibv_close_device(&other_device), 0);
  ibv_unimport_pd(imported);
}

TEST_F(PinrunCalls, memory_that_is_unmapped_while_it_is_registered_can_be_registered_again) {
  ibv_mr* old = reg();
  replace_memory();
  ibv_mr* next = reg();
  ASSERT_NE(next, nullptr);
  EXPECT_NE(next->rkey, old->rkey);
  EXPECT_EQ(ibv_dereg_mr(old), 0);
  EXPECT_TRUE(verbs_double_allows(next->rkey, domain, memory, kLocal));
  EXPECT_EQ(ibv_dereg_mr(next), 0);
}

TEST_F(PinrunCalls, a_new_domain_at_an_old_address_has_a_pool_of_its_own) {
  for (int i = 0; i < 100; ++i) {
    ibv_pd* other = ibv_alloc_pd(&device);
    ibv_mr* region = nullptr;
    EXPECT_EQ(made_by([&] { region = ibv_reg_mr(other, memory, kBytes, kLocal); }), 1u);
    EXPECT_EQ(region->pd, other);
    EXPECT_EQ(ibv_dereg_mr(region), 0);
    EXPECT_EQ(ibv_dealloc_pd(other), 0);
  }
}

TEST_F(PinrunCalls, a_region_has_the_handle_by_which_another_process_imports_it) {
  ibv_mr *one = reg(), *other = reg(), *real = reg(kLocal | IBV_ACCESS_MW_BIND);
  EXPECT_EQ(one->handle - one->lkey, real->handle - real->lkey);
  EXPECT_EQ(one->handle, other->handle);
  for (ibv_mr* region : {one, other, real}) EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, regions_for_windows_are_libibverbs_own) {
  EXPECT_EQ(made_by_regs(2, kLocal | IBV_ACCESS_MW_BIND), 2u);
}

// Without pinrun nothing would be registered at that time.
TEST_F(PinrunCalls, what_is_kept_leaves_room_for_regions_that_are_libibverbs_own) {
  constexpr size_t kKept = 3;
  for (size_t i = 0; i < kKept; ++i) EXPECT_EQ(ibv_dereg_mr(ibv_reg_mr(domain, memory + i * 4096, 4096, kLocal)), 0);
  verbs_double_most_live(verbs_double_live());
  ibv_mr* window = reg(kLocal | IBV_ACCESS_MW_BIND);
  ibv_mr* changed = reg();
  ASSERT_NE(window, nullptr);
  ASSERT_NE(changed, nullptr);
  EXPECT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal | IBV_ACCESS_MW_BIND), 0);
  verbs_double_most_live(1);  // two are in use
  errno = 0;
  EXPECT_EQ(reg(kLocal | IBV_ACCESS_MW_BIND), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  EXPECT_EQ(ibv_dereg_mr(window), 0);
  EXPECT_EQ(ibv_dereg_mr(changed), 0);
}

// Without pinrun it would have been deregistered before.
TEST_F(PinrunCalls, what_a_thread_of_pinrail_deregisters_now_leaves_room) {
  char* other = map(nullptr);
  EXPECT_EQ(ibv_dereg_mr(reg()), 0);
  verbs_double_most_live(verbs_double_live());
  verbs_double_slow(300);
  replace_memory();
  for (int i = 0; verbs_double_leaving() == 0 && i < 10000; ++i) usleep(1000);
  ibv_mr* window = ibv_reg_mr(domain, other, kBytes, kLocal | IBV_ACCESS_MW_BIND);
  verbs_double_slow(0);
  ASSERT_NE(window, nullptr);
  EXPECT_EQ(ibv_dereg_mr(window), 0);
  munmap(other, kBytes);
}

TEST_F(PinrunCalls, an_iova_that_is_the_address_is_none_of_its_own) {
  const auto iova = reinterpret_cast<uintptr_t>(memory);
  EXPECT_EQ(made_by([&] {
              EXPECT_EQ(ibv_dereg_mr(reg()), 0);
              EXPECT_EQ(ibv_dereg_mr(ibv_reg_mr_iova(domain, memory, kBytes, iova, kLocal)), 0);
              EXPECT_EQ(ibv_dereg_mr(ibv_reg_mr_iova2(domain, memory, kBytes, iova, IBV_ACCESS_LOCAL_WRITE)), 0);
            }),
            1u);
}

TEST_F(PinrunCalls, a_buffer_has_one_registration_for_each_iova) {
  constexpr unsigned kIovas = 4;
  std::vector<uint32_t> keys;
  EXPECT_EQ(made_by([&] {
              for (uint64_t i = 0; i < 40; ++i) {
                const uint64_t iova = i % kIovas * 0x100000;
                ibv_mr* region = ibv_reg_mr_iova2(domain, memory, kBytes, iova, IBV_ACCESS_LOCAL_WRITE);
                ASSERT_NE(region, nullptr);
                EXPECT_EQ(region->addr, memory);
                if (i < kIovas) {
                  EXPECT_EQ(verbs_double_iova(), iova);
                  keys.push_back(region->rkey);
                }
                EXPECT_EQ(region->rkey, keys[i % kIovas]);
                EXPECT_EQ(ibv_dereg_mr(region), 0);
              }
            }),
            kIovas);
  ibv_mr* plain = reg();
  for (const uint32_t key : keys) EXPECT_NE(plain->rkey, key);
  EXPECT_EQ(ibv_dereg_mr(plain), 0);
}

TEST_F(PinrunCalls, an_iova_for_which_there_is_no_pool_is_libibverbs_own) {
  std::vector<ibv_mr*> regions;
  EXPECT_EQ(made_by([&] {
              for (uint64_t i = 0; i < 20; ++i) {
                regions.push_back(ibv_reg_mr_iova(domain, memory, kBytes, i % 10 * 0x100000, kLocal));
                ASSERT_NE(regions.back(), nullptr);
              }
            }),
            4u + 2 * 6u);
  for (ibv_mr* region : regions) EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, unmapping_a_buffer_ends_its_regions_at_all_iovas) {
  const auto reg_at = [&](uint64_t iova) {
    ibv_mr* region = ibv_reg_mr_iova(domain, memory, kBytes, iova, kLocal);
    EXPECT_EQ(ibv_dereg_mr(region), 0);
  };
  const auto reg_both = [&] {
    reg_at(0);
    reg_at(0x100000);
  };
  EXPECT_EQ(made_by(reg_both), 2u);
  EXPECT_EQ(made_by(reg_both), 0u);
  replace_memory();
  EXPECT_EQ(made_by(reg_both), 2u);
}

TEST_F(PinrunCalls, a_region_that_is_moved_loses_its_iova) {
  ibv_mr* region = ibv_reg_mr_iova(domain, memory, kBytes, 0, kLocal);
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kRemote), 0);
  EXPECT_EQ(verbs_double_iova(), 0u);
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory + 4096, 4096, 0), 0);
  EXPECT_EQ(verbs_double_iova(), reinterpret_cast<uintptr_t>(memory) + 4096);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_length_that_no_pool_takes_is_the_devices_alone_and_nothing_is_said_of_it) {
  testing::internal::CaptureStderr();
  ibv_mr* const region = ibv_reg_mr(domain, memory, SIZE_MAX / 4 + 1, kLocal);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_call_fails_as_it_does_without_pinrun) {
  const struct {
    void* addr;
    size_t length;
    int access, error;
  } calls[] = {{memory, 0, kLocal, EINVAL},
               {memory, kBytes, IBV_ACCESS_REMOTE_WRITE, EINVAL},
               {nullptr, 8192, kLocal, EFAULT},
               {reinterpret_cast<void*>(-4096L), 8192, kLocal, EFAULT},
               {memory, SIZE_MAX, kLocal, EFAULT}};
  for (const auto& call : calls) {
    errno = 0;
    EXPECT_EQ(ibv_reg_mr(domain, call.addr, call.length, call.access), nullptr);
    EXPECT_EQ(errno, call.error);
  }
  verbs_double_fail_from(1);
  errno = 0;
  EXPECT_EQ(reg(), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  verbs_double_fail_from(0);
  ibv_mr* region = reg();
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dereg_mr(region), EINVAL) << "the second time";
}

TEST_F(PinrunCalls, a_region_can_be_changed) {
  ibv_mr* region = reg();
  const uint32_t key = region->rkey;
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory + 4096, 8192, 0), 0);
  EXPECT_EQ(region->addr, memory + 4096);
  EXPECT_EQ(region->length, 8192u);
  EXPECT_NE(region->rkey, key);
  ibv_pd* other = ibv_alloc_pd(&device);
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS, other, nullptr, 0,
                         kLocal | IBV_ACCESS_MW_BIND),
            0);
  EXPECT_EQ(region->pd, other);
  EXPECT_EQ(region->length, 8192u);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(PinrunCalls, a_change_that_fails_leaves_the_region_as_it_was) {
  ibv_mr *region = reg(), *other = reg();
  for (ibv_mr* each : {region, other}) {
    const ibv_mr before = *each;
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(each, 1 << 20, nullptr, nullptr, 0, 0), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(ibv_rereg_mr(each, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory, 0, 0), IBV_REREG_MR_ERR_INPUT);
    EXPECT_EQ(ibv_rereg_mr(each, IBV_REREG_MR_CHANGE_PD, domain, nullptr, 0, kLocal), IBV_REREG_MR_ERR_INPUT);
    verbs_double_fail_from(1);
    errno = 0;
    EXPECT_EQ(ibv_rereg_mr(each, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory, 4096, 0), IBV_REREG_MR_ERR_CMD);
    EXPECT_EQ(errno, ENOMEM);
    verbs_double_fail_from(0);
    EXPECT_EQ(each->rkey, before.rkey);
    EXPECT_EQ(each->addr, before.addr);
    EXPECT_EQ(each->length, before.length);
    EXPECT_TRUE(verbs_double_allows(each->rkey, domain, memory, kLocal));
  }
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dereg_mr(other), 0);
}

TEST_F(PinrunCalls, a_change_of_access_keeps_the_keys_and_takes_the_right) {
  ibv_mr* region = reg(kRemote);
  const uint32_t key = region->rkey;
  EXPECT_TRUE(verbs_double_allows(key, domain, memory, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
  EXPECT_FALSE(verbs_double_allows(key, domain, memory, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(region->rkey, key);
  EXPECT_TRUE(verbs_double_allows(region->rkey, domain, memory, kLocal));
  ibv_mr* next = reg(kRemote);
  EXPECT_NE(next->rkey, key) << "what was changed serves no other request";
  EXPECT_EQ(ibv_dereg_mr(next), 0);
  EXPECT_EQ(made_by_regs(1, kRemote), 0u) << "the range is cached as before";
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_FALSE(verbs_double_allows(key, domain, memory, kLocal));
}

TEST_F(PinrunCalls, a_change_of_the_domain_leaves_no_key_in_the_old_one) {
  ibv_pd* other = ibv_alloc_pd(&device);
  ibv_mr* region = reg(kRemote);
  const uint32_t key = region->rkey;
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, other, nullptr, 0, 0), 0);
  EXPECT_FALSE(verbs_double_allows(key, domain, memory, kLocal));
  EXPECT_TRUE(verbs_double_allows(region->lkey, other, memory, kLocal));
  EXPECT_EQ(ibv_dealloc_pd(other), EBUSY);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
  EXPECT_EQ(ibv_dealloc_pd(other), 0);
}

TEST_F(PinrunCalls, a_change_of_the_range_leaves_no_key_of_the_old_one) {
  ibv_mr* region = ibv_reg_mr(domain, memory, 4096, kRemote);
  const uint32_t key = region->lkey;
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr, memory + 8192, 4096, 0), 0);
  EXPECT_FALSE(verbs_double_allows(key, domain, memory, kLocal));
  EXPECT_TRUE(verbs_double_allows(region->lkey, domain, memory + 8192, kLocal));
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_change_leaves_other_regions_of_the_range_alone) {
  ibv_mr *changed = reg(kRemote), *other = reg(kRemote);
  const uint32_t key = other->rkey;
  EXPECT_EQ(ibv_rereg_mr(changed, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
  EXPECT_NE(changed->rkey, key);
  EXPECT_TRUE(verbs_double_allows(changed->rkey, domain, memory, kLocal));
  EXPECT_FALSE(verbs_double_allows(changed->rkey, domain, memory, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_TRUE(verbs_double_allows(key, domain, memory, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(ibv_dereg_mr(changed), 0);
  EXPECT_EQ(ibv_rereg_mr(other, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
  EXPECT_FALSE(verbs_double_allows(key, domain, memory, IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(ibv_dereg_mr(other), 0);
}

TEST_F(PinrunCalls, a_region_that_one_thread_changes_serves_no_other_thread) {
  constexpr int kThreads = 4, kRounds = 150000;
  on_threads(kThreads, [this] {
    for (int round = 0; round < kRounds; ++round) {
      ibv_mr* region = reg(kRemote);
      ASSERT_NE(region, nullptr);
      ASSERT_TRUE(verbs_double_allows(region->rkey, domain, memory, IBV_ACCESS_REMOTE_WRITE));
      if (round % 4 == 0) {
        ASSERT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
        ASSERT_FALSE(verbs_double_allows(region->rkey, domain, memory, IBV_ACCESS_REMOTE_WRITE));
      }
      ASSERT_EQ(ibv_dereg_mr(region), 0);
    }
  });
}

// The address of the GPU memory is the one on the wire, and each registration has an export of its own, as GPU programs
// do it.
ibv_mr* reg_dmabuf(ibv_pd* domain, const GpuMemory& memory) {
  int fd = -1;
  EXPECT_EQ(cuMemGetHandleForAddressRange(&fd, memory.at(), GpuMemory::kBytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
            CUDA_SUCCESS);
  ibv_mr* region = ibv_reg_dmabuf_mr(domain, 0, GpuMemory::kBytes, memory.at(), fd, kRemote);
  close(fd);
  return region;
}

TEST_F(PinrunCalls, gpu_memory_is_registered_once_until_it_is_freed) {
  if (getenv("PINRUN_SHARE") == nullptr) GTEST_SKIP() << "run with --share";
  const CurrentContext context;
  GpuMemory gpu(PINRAIL_GPU_IPC);
  EXPECT_EQ(made_by([&] {
              for (int i = 0; i < 10; ++i) EXPECT_EQ(ibv_dereg_mr(reg_dmabuf(domain, gpu)), 0);
            }),
            1u);
  gpu.replace();
  ibv_mr* region = nullptr;
  EXPECT_EQ(made_by([&] { region = reg_dmabuf(domain, gpu); }), 1u);
  EXPECT_EQ(region->length, GpuMemory::kBytes);
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_region_of_gpu_memory_is_changed_at_the_device) {
  if (getenv("PINRUN_SHARE") == nullptr) GTEST_SKIP() << "run with --share";
  const CurrentContext context;
  GpuMemory gpu(PINRAIL_GPU_IPC);
  ibv_mr *region = reg_dmabuf(domain, gpu), *other = reg_dmabuf(domain, gpu);
  const uint32_t key = region->rkey;
  EXPECT_EQ(other->rkey, key);
  errno = 0;
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), IBV_REREG_MR_ERR_CMD);
  EXPECT_EQ(errno, EOPNOTSUPP) << "its dmabuf is not known any more";
  EXPECT_EQ(ibv_dereg_mr(other), 0);
  EXPECT_EQ(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0, kLocal), 0);
  EXPECT_EQ(region->rkey, key);
  EXPECT_FALSE(verbs_double_allows(key, domain, region->addr, kRemote));
  EXPECT_EQ(ibv_dereg_mr(region), 0);
}

TEST_F(PinrunCalls, a_dmabuf_at_addresses_of_host_memory_is_libibverbs_own) {
  const auto iova = reinterpret_cast<uintptr_t>(memory);
  for (int i = 0; i < 2; ++i) {
    ibv_mr* region = nullptr;
    EXPECT_GE(made_by([&] { region = ibv_reg_dmabuf_mr(domain, 0, kBytes, iova, 1, kRemote); }), 1u);
    ASSERT_NE(region, nullptr);
    EXPECT_EQ(ibv_dereg_mr(region), 0);
  }
}

TEST_F(PinrunCalls, a_forked_child_has_a_cache_of_its_own) {
  ibv_mr* held = reg();
  expect_success_in_child([&] {
    ibv_pd* own = ibv_alloc_pd(&device);
    const uint64_t before = verbs_double_registered();
    for (int i = 0; i < 10; ++i) {
      if (ibv_dereg_mr(ibv_reg_mr(own, memory, kBytes, kLocal)) != 0) return 1;
    }
    if (verbs_double_registered() - before != 1) return 2;
    return ibv_dealloc_pd(own) == 0 ? 0 : 3;
  });
  EXPECT_EQ(ibv_dereg_mr(held), 0);
}

// With --record its trace is one that pinrail_perf reads: test/pinrun_test.sh looks.
TEST_F(PinrunCalls, a_forked_child_gives_back_what_it_inherited) {
  ibv_mr* held = reg();
  expect_success_in_child([&] {
    ibv_mr* own = reg();
    const bool good = own != nullptr && ibv_dereg_mr(own) == 0 && ibv_dereg_mr(held) == 0;
    munmap(memory, kBytes);
    exit(good ? 0 : 1);
    return 0;
  });
  EXPECT_EQ(ibv_dereg_mr(held), 0);
}

TEST_F(PinrunCalls, a_call_that_unmaps_no_range_does_no_harm) {
  EXPECT_EQ(ibv_dereg_mr(reg()), 0);
  EXPECT_EQ(munmap(memory, SIZE_MAX / 4096 * 4096), -1);
  EXPECT_EQ(ibv_dereg_mr(reg()), 0);
}

TEST_F(PinrunCalls, many_threads_leave_nothing) {
  constexpr int kThreads = 8, kRounds = 5000;
  on_threads(kThreads, [this](int i) {
    for (int round = 0; round < kRounds; ++round) {
      ibv_mr* region = ibv_reg_mr(domain, memory + (round + i) % 16 * 4096, 4096, kLocal);
      ASSERT_NE(region, nullptr);
      ASSERT_EQ(ibv_dereg_mr(region), 0);
    }
  });
}

}  // namespace
}  // namespace pinrail::test
