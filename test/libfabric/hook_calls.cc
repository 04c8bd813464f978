// SPDX-License-Identifier: BSD-3-Clause
// hook_calls.cc - what a program of libfabric sees under FI_HOOK=pinrail, beside a double of a provider. Run by
// test/libfabric_hook_test.sh.
#include <gtest/gtest.h>
#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "test/libfabric/provider_double.h"

namespace pinrail::test {
namespace {

constexpr size_t kBytes = size_t{1} << 16, kPage = 4096;

struct Domain {
  explicit Domain(uint64_t caps = 0, fi_threading threading = FI_THREAD_SAFE) {
    fi_info* hints = fi_allocinfo();
    hints->caps = caps;
    hints->ep_attr->type = FI_EP_RDM;
    hints->fabric_attr->prov_name = strdup(PROVIDER_DOUBLE);
    hints->domain_attr->mr_mode = FI_MR_PROV_KEY | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED;
    EXPECT_EQ(fi_getinfo(FI_VERSION(1, 14), nullptr, nullptr, 0, hints, &info), 0);
    info->domain_attr->threading = threading;
    EXPECT_EQ(fi_fabric(info->fabric_attr, &fabric, nullptr), 0);
    EXPECT_EQ(fi_domain(fabric, info, &domain, nullptr), 0);
    fi_freeinfo(hints);
  }
  fi_info* info = nullptr;
  fid_fabric* fabric = nullptr;
  fid_domain* domain = nullptr;
};

class HookCalls : public ::testing::Test {
 protected:
  HookCalls()
      : memory(static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~HookCalls() override {
    provider_double_most_live(UINT64_MAX);
    EXPECT_EQ(fi_close(&opened.domain->fid), 0);
    EXPECT_EQ(fi_close(&opened.fabric->fid), 0);
    fi_freeinfo(opened.info);
    munmap(memory, kBytes);
  }

  int reg(void* addr, size_t length, fid_mr** mr_out) const {
    return fi_mr_reg(opened.domain, addr, length, FI_REMOTE_WRITE, 0, 0, 0, mr_out, nullptr);
  }
  void reg_and_close(void* addr) const {
    fid_mr* mr = nullptr;
    ASSERT_EQ(reg(addr, kPage, &mr), 0);
    EXPECT_EQ(fi_close(&mr->fid), 0);
  }

  Domain opened;
  char* memory;
};

TEST_F(HookCalls, a_range_is_registered_once) {
  const uint64_t before = provider_double_made();
  for (int i = 0; i < 10; ++i) reg_and_close(memory);
  EXPECT_EQ(provider_double_made(), before + 1);
}

// What a peer may reach by the key of a region that was asked for 4 KiB of remote read, after a larger one with more
// rights was closed. The test runs this again with FI_PINRAIL_SHARE=1.
TEST_F(HookCalls, a_key_exposes_what_was_asked_for_unless_sharing_is_on) {
  const char* share = getenv("FI_PINRAIL_SHARE");
  const bool shares = share != nullptr && strcmp(share, "1") == 0;
  fid_mr *large = nullptr, *small = nullptr;
  ASSERT_EQ(fi_mr_reg(opened.domain, memory, kBytes, FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &large, nullptr), 0);
  const uint64_t large_key = fi_mr_key(large);
  ASSERT_EQ(fi_close(&large->fid), 0);
  ASSERT_EQ(fi_mr_reg(opened.domain, memory, kPage, FI_REMOTE_READ, 0, 0, 0, &small, nullptr), 0);
  const uint64_t key = fi_mr_key(small), remote = provider_double_access(key) & (FI_REMOTE_READ | FI_REMOTE_WRITE);
  EXPECT_EQ(key == large_key, shares);
  EXPECT_EQ(provider_double_length(key), shares ? kBytes : kPage);
  EXPECT_EQ(remote, shares ? uint64_t{FI_REMOTE_READ | FI_REMOTE_WRITE} : uint64_t{FI_REMOTE_READ});
  EXPECT_EQ(fi_close(&small->fid), 0);
}

TEST_F(HookCalls, what_the_pool_refuses_is_up_to_the_provider) {
  fid_mr* mr = nullptr;
  EXPECT_EQ(reg(reinterpret_cast<void*>(UINTPTR_MAX - kPage), 2 * kPage, &mr), -FI_EFAULT);
  ASSERT_EQ(reg(memory, SIZE_MAX / 4 + 1, &mr), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

// The capability says that programs name the kind of memory; the mode FI_MR_HMEM is about transfers.
TEST_F(HookCalls, gpu_memory_of_a_domain_without_its_mode_is_not_kept) {
  const Domain gpu(FI_HMEM);
  const iovec range = {memory, kPage};
  fi_mr_attr attr = {};
  attr.mr_iov = &range;
  attr.iov_count = 1;
  attr.access = FI_REMOTE_WRITE;
  for (const auto& [iface, regions] : {std::pair{FI_HMEM_SYSTEM, 1}, std::pair{FI_HMEM_CUDA, 2}}) {
    const uint64_t before = provider_double_made();
    attr.iface = iface;
    for (int i = 0; i < 2; ++i) {
      fid_mr* mr = nullptr;
      ASSERT_EQ(fi_mr_regattr(gpu.domain, &attr, 0, &mr), 0);
      EXPECT_EQ(fi_close(&mr->fid), 0);
    }
    EXPECT_EQ(provider_double_made(), before + regions);
  }
  EXPECT_EQ(fi_close(&gpu.domain->fid), 0);
  EXPECT_EQ(fi_close(&gpu.fabric->fid), 0);
  fi_freeinfo(gpu.info);
}

// As a provider answers: in silence.
TEST_F(HookCalls, a_domain_with_an_open_region_is_busy) {
  fid_mr* mr = nullptr;
  ASSERT_EQ(reg(memory, kPage, &mr), 0);
  EXPECT_EQ(fi_close(&opened.domain->fid), -FI_EBUSY);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

TEST_F(HookCalls, a_forked_child_registers_with_the_provider) {
  reg_and_close(memory);
  const pid_t child = fork();
  if (child == 0) {
    fid_mr* mr = nullptr;
    _exit(reg(memory, kPage, &mr) != 0 ? 1 : fi_close(&mr->fid) != 0 ? 2 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

// And as without the hook, it may close what it has inherited.
TEST_F(HookCalls, a_domain_that_a_forked_child_opens_is_cached) {
  const pid_t child = fork();
  if (child == 0) {
    fid_domain* own = nullptr;
    if (fi_domain(opened.fabric, opened.info, &own, nullptr) != 0) _exit(1);
    const uint64_t before = provider_double_made();
    for (int i = 0; i < 10; ++i) {
      fid_mr* mr = nullptr;
      if (fi_mr_reg(own, memory, kPage, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr) != 0) _exit(2);
      if (fi_close(&mr->fid) != 0) _exit(3);
    }
    if (provider_double_made() != before + 1) _exit(4);
    if (fi_close(&opened.domain->fid) != 0) _exit(5);
    _exit(fi_close(&own->fid) == 0 ? 0 : 6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Several ranges in a region are passed through. Without the hook nothing would be registered at that time.
TEST_F(HookCalls, what_is_kept_leaves_room_for_what_is_passed_through) {
  for (size_t i = 0; i < 3; ++i) reg_and_close(memory + i * kPage);
  provider_double_most_live(3);
  const iovec ranges[] = {{memory, kPage}, {memory + 2 * kPage, kPage}};
  fid_mr *mr = nullptr, *other = nullptr;
  ASSERT_EQ(fi_mr_regv(opened.domain, ranges, 2, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr), 0);
  provider_double_most_live(1);  // nothing is unused
  EXPECT_EQ(fi_mr_regv(opened.domain, ranges, 2, FI_REMOTE_WRITE, 0, 0, 0, &other, nullptr), -FI_ENOMEM);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

// Without the hook it would have ended before.
TEST_F(HookCalls, what_a_thread_of_pinrail_gives_back_now_leaves_room) {
  auto* other = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  reg_and_close(other);
  provider_double_most_live(1);
  provider_double_slow(300);
  munmap(other, kBytes);
  for (int i = 0; provider_double_leaving() == 0 && i < 10000; ++i) usleep(1000);
  const iovec ranges[] = {{memory, kPage}, {memory + 2 * kPage, kPage}};
  fid_mr* mr = nullptr;
  const int result = fi_mr_regv(opened.domain, ranges, 2, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr);
  provider_double_slow(0);
  ASSERT_EQ(result, 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

// As those of efa do.
TEST_F(HookCalls, functions_of_the_provider_get_its_own_regions) {
  provider_double_functions* functions = nullptr;
  void** const out = reinterpret_cast<void**>(&functions);
  EXPECT_EQ(fi_open_ops(&opened.domain->fid, "none", 0, out, nullptr), -FI_ENOSYS);
  const uint64_t before = provider_double_made();
  for (int i = 0; i < 2; ++i) reg_and_close(memory);
  EXPECT_EQ(provider_double_made(), before + 1);
  ASSERT_EQ(fi_open_ops(&opened.domain->fid, PROVIDER_DOUBLE_FUNCTIONS, 0, out, nullptr), 0);
  fid_mr* mr = nullptr;
  ASSERT_EQ(reg(memory, kPage, &mr), 0);
  EXPECT_EQ(functions->is_own(mr), 1);
  EXPECT_EQ(fi_close(&mr->fid), 0);
}

// What a peer writes to a bound region is counted, until the region is closed.
TEST_F(HookCalls, a_bound_region_ends_when_it_is_closed) {
  fid_mr* mr = nullptr;
  fid counter = {};
  ASSERT_EQ(reg(memory, kPage, &mr), 0);
  ASSERT_EQ(fi_mr_bind(mr, &counter, FI_REMOTE_WRITE), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  EXPECT_EQ(provider_double_live(), 0U);
  const uint64_t before = provider_double_made();
  for (int i = 0; i < 2; ++i) reg_and_close(memory);
  EXPECT_EQ(provider_double_made(), before + 2);
}

// The thread that registers may not call the other domain's provider.
TEST(HookDomains, one_that_fills_the_device_is_not_reported) {
  const Domain full(0, FI_THREAD_DOMAIN), other(0, FI_THREAD_DOMAIN);
  std::vector<char> memory(kPage);
  fid_mr* mr = nullptr;
  ASSERT_EQ(fi_mr_reg(full.domain, memory.data(), kPage, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr), 0);
  EXPECT_EQ(fi_close(&mr->fid), 0);
  provider_double_most_live(1);
  EXPECT_EQ(fi_mr_reg(other.domain, memory.data(), kPage, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr), -FI_ENOMEM);
  provider_double_most_live(UINT64_MAX);
  for (const Domain* each : {&full, &other}) {
    EXPECT_EQ(fi_close(&each->domain->fid), 0);
    EXPECT_EQ(fi_close(&each->fabric->fid), 0);
    fi_freeinfo(each->info);
  }
}

// Registers new memory; ends the process if that fails.
fid_mr* register_new(const Domain& opened) {
  void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  fid_mr* mr = nullptr;
  if (fi_mr_reg(opened.domain, memory, kBytes, FI_REMOTE_WRITE, 0, 0, 0, &mr, nullptr) != 0) _exit(1);
  return mr;
}

[[noreturn]] void exit_with_a_domain_open() {
  const Domain opened;
  fi_close(&register_new(opened)->fid);
  exit(0);
}

// libfabric cleans its providers up before the hook. The test runs this in a process of its own.
TEST(HookExit, a_program_may_exit_with_a_domain_open) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_domain_open(), ::testing::ExitedWithCode(0), "");
}

TEST(HookExit, the_pool_of_an_open_domain_prints_its_statistics_if_it_is_not_in_use) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("PINRAIL_MCA_mpool_grdma_print_stats", "yes", 1);
        exit_with_a_domain_open();
      },
      ::testing::ExitedWithCode(0), "\\[pinrail:grdma\\] stats: 0 hits, 1 misses");
}

// As a plug-in's destructor may: the C library writes streams out after all destructors, libfabric's among them.
TEST(HookExit, a_domain_may_be_used_and_closed_after_libfabric_is_gone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static const Domain opened;
        fi_close(&register_new(opened)->fid);
        cookie_io_functions_t at_the_end = {};
        at_the_end.write = [](void*, const char*, size_t length) {
          register_new(opened);
          if (fi_close(&opened.domain->fid) != 0) _exit(1);
          return static_cast<ssize_t>(length);
        };
        fputc('x', fopencookie(nullptr, "w", at_the_end));
        exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

// And nothing else. The test sets FI_PINRAIL_STATS=1.
TEST(HookExit, a_program_that_exits_with_a_region_open_sees_its_figures) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const Domain opened;
        register_new(opened);
        exit(fi_close(&opened.domain->fid) == -FI_EBUSY ? 0 : 2);
      },
      ::testing::ExitedWithCode(0),
      "^pinrail: " PROVIDER_DOUBLE ": 0 hits, 1 misses, 1 registrations by the provider, 0 invalidated\n$");
}

}  // namespace
}  // namespace pinrail::test
