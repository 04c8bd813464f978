// SPDX-License-Identifier: BSD-3-Clause
// The allocator of forked children, whose parent has one thread of its own: a registrar frees memory on threads of
// Pinrail, and the pages of the heap are pinned, so that fork() copies each of them at a moment of its own.
#include <gtest/gtest.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "test/support/host_table.h"
#include "test/support/library.h"
#include "test/support/pinned_heap.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

constexpr size_t kBlocks = 24;  // more blocks of one size than a thread keeps for itself

// A registrar that allocates and frees blocks in each call, as libibverbs does.
class AllocatingRegistrar {
 public:
  AllocatingRegistrar() {
    table_ = host_table("allocating");
    table_.tail_size = sizeof(Tail);
    table_.register_mem = register_mem;
    table_.deregister_mem = deregister_mem;
  }
  pinrail_mpool_t* make_pool() const { return make_grdma(table_, -1, nullptr); }

 private:
  struct Tail {
    void* blocks[kBlocks];
  };
  static pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t* reg) {
    for (void*& block : static_cast<Tail*>(pinrail_registration_tail(reg))->blocks) block = std::malloc(kBlock);
    return PINRAIL_SUCCESS;
  }
  static pinrail_status_t deregister_mem(void*, pinrail_registration_t* reg, pinrail_reason_t) {
    for (void* block : static_cast<Tail*>(pinrail_registration_tail(reg))->blocks) std::free(block);
    return PINRAIL_SUCCESS;
  }

  pinrail_registrar_t table_{};
};

int children() { return short_or_long(800, 20000); }

class ForkAllocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { is_pinned_ = pin_heap(); }
  void SetUp() override {
    if (!is_pinned_)
      GTEST_SKIP() << "the kernel does not pin the heap here: no io_uring, or too little lockable memory";
  }
  static bool is_pinned_;
};
bool ForkAllocator::is_pinned_ = false;

// work: what the parent's one thread does before each fork. Returns how many children did not end in order.
template <typename Work>
int dead_children(Work&& work) {
  int dead = 0;
  for (int round = 0; round < children(); ++round) {
    work(round);
    const pid_t child = fork();
    if (child == 0) allocate_and_end();
    int how = -1;
    EXPECT_EQ(waitpid(child, &how, 0), child);
    if (how != 0) ++dead;
  }
  return dead;
}

TEST_F(ForkAllocator, is_whole_though_the_gc_thread_frees) {
  Library library({{"mpool_grdma_gc_thread", "always"}, {"mpool_grdma_gc_limit", "1"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  const AllocatingRegistrar device;
  pinrail_mpool_t* const pool = device.make_pool();
  ASSERT_NE(pool, nullptr);
  constexpr size_t kCount = 64;
  void* const memory = mmap(nullptr, kCount * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  const int dead = dead_children([&](int round) {
    for (size_t i = 0; i < kCount; ++i) {
      pinrail_handle_t handle{};
      void* const page = static_cast<char*>(memory) + i * kPage;
      ASSERT_EQ(pinrail_mpool_register(pool, page, kPage, 1, 0, &handle), PINRAIL_SUCCESS);
      ASSERT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
    }
    pinrail_monitor_report(memory, kCount * kPage);
    usleep(round % 16 * 20);
  });
  EXPECT_EQ(dead, 0) << "of " << children();
  EXPECT_EQ(pinrail_mpool_destroy(pool, 0), PINRAIL_SUCCESS);
}

}  // namespace
}  // namespace pinrail::test
