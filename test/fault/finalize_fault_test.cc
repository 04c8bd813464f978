// SPDX-License-Identifier: BSD-3-Clause
// R10: an allocation fails in finalize. It ends everything, or nothing; no monitor goes on without its component.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "test/support/child.h"
#include "test/support/library.h"
#include "test/support/need_glibc.h"
#include "test/support/nth_allocation.h"

namespace pinrail::test {
namespace {

// Whether it came to the n-th allocation, and how often finalize failed.
ChildAnswer finalize_without_memory(long n) {
  Library library(Settings{{"monitor", ""}, {"monitor_patcher_check_interval", "1"}});
  fake::FakeRegistrar fake;
  Pool pool(fake, {PINRAIL_UNSET});
  pool.close();
  pinrail_status_t status = PINRAIL_ERR_ERROR;
  const bool failed = with_nth_allocation_failing(n, [&] { status = pinrail_finalize(); });
  const int64_t refused = status == PINRAIL_SUCCESS ? 0 : 1;
  if (status != PINRAIL_SUCCESS) status = pinrail_finalize();
  library.status = PINRAIL_ERR_BUSY;  // finalized already
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  usleep(5000);  // what a thread of the monitor would need to notice that its context is gone
  munmap(page, kPage);
  const Library again(Settings{{"monitor", ""}});
  return {failed ? 1 : 0, refused, status, again.status};
}

TEST(FinalizeFault, the_nth_allocation_fails_and_nothing_goes_on) {
  NEED_GLIBC("the library brings its own operator new");
  for (long n = 1;; ++n) {
    SCOPED_TRACE("the " + std::to_string(n) + "th allocation fails");
    ChildAnswer answer{};
    ASSERT_TRUE(in_child([n] { return finalize_without_memory(n); }, &answer));
    EXPECT_EQ(answer[2], PINRAIL_SUCCESS);
    EXPECT_EQ(answer[3], PINRAIL_SUCCESS);
    if (answer[0] == 0) break;
  }
}

}  // namespace
}  // namespace pinrail::test
