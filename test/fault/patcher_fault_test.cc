// SPDX-License-Identifier: BSD-3-Clause
// E6, R9: another library patches over monitor/patcher until that gives up, and an allocation fails meanwhile.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/patch/system_call.h"
#include "test/monitor/foreign_patches.h"
#include "test/support/answer_of.h"
#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

#if PINRAIL_CAN_PATCH

uintptr_t map_page() {
  void* const got = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return reinterpret_cast<uintptr_t>(got);
}

int bare_madvise(void* base, size_t length, int advice) {
  return static_cast<int>(
      patch::system_call_hook(SYS_madvise, reinterpret_cast<long>(base), static_cast<long>(length), advice));
}

// A miss finds the patch over ours. Not every miss looks, if the last one did.
void miss(const Pool& pool, uintptr_t page) {
  usleep(1000);
  pinrail_handle_t handle{};
  if (pool.reg(page, kPage, &handle) == PINRAIL_SUCCESS) Status(pinrail_mpool_deregister(handle)).ignore();
}

// Whether what was cached is returned after the monitor has given up, whether anything may still be kept, and whether
// it came to the n-th allocation of the miss in which it gave up.
ChildAnswer give_up_without_memory(long n) {
  const Library library(Settings{{"monitor", "patcher"}, {"monitor_patcher_check_interval", "3600000"}});
  fake::FakeOptions options;
  options.zero_cost = true;  // the fake's own allocations are not under test
  fake::FakeRegistrar fake(options);
  const Pool pool(fake);
  const uintptr_t early = map_page(), later = map_page();
  pool.use(early, kPage);
  const int64_t before = pool.has(early, kPage) ? 1 : 0;
  patch_as_open_mpi("madvise", reinterpret_cast<uintptr_t>(bare_madvise));
  const bool failed = with_nth_allocation_failing(n, [&] {
    miss(pool, later);
    for (int i = 0; i < 1000 && pinrail_monitor_works() != 0; ++i) usleep(1000);  // its own thread may be at it
  });
  return {before, pool.has(early, kPage) ? 1 : 0, pinrail_monitor_works(), failed ? 1 : 0};
}

TEST(PatcherFault, what_is_cached_dies_with_it_without_memory_too) {
  NEED_GLIBC("the library brings its own operator new");
  for (long n = 1;; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    const ChildAnswer answer = answer_of([n] { return give_up_without_memory(n); });
    EXPECT_EQ(answer[0], 1);
    EXPECT_EQ(answer[1], 0);
    EXPECT_EQ(answer[2], 0);
    if (answer[3] == 0) break;
  }
}

#else

TEST(PatcherFault, is_for_machines_where_code_can_be_patched) {
  GTEST_SKIP() << "code is patched on Linux, x86-64 or 64-bit Arm, without ThreadSanitizer";
}

#endif

}  // namespace
}  // namespace pinrail::test
