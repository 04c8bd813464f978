// SPDX-License-Identifier: BSD-3-Clause
// R5: a call that waits for another one is woken however that one ends, whatever the index.
#include "components/mpool/grdma/grdma_pending.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

// An index that has announced the first call, which others wait for, and then finds a registration for it.
struct FindingIndex {
  std::atomic<pinrail_announcement_t*> first{nullptr};
  std::atomic<int> asked{0};  // by others
  std::atomic<bool> may_find{false}, has_found{false};

  static pinrail_status_t find_or_announce(void* module, pinrail_thread_t*, pinrail_announcement_t* announcement,
                                           pinrail_registration_t**) {
    auto* const index = static_cast<FindingIndex*>(module);
    pinrail_announcement_t* none = nullptr;
    if (index->first.compare_exchange_strong(none, announcement)) {
      while (!index->may_find) std::this_thread::yield();
      index->has_found = true;
      return PINRAIL_SUCCESS;
    }
    ++index->asked;
    return index->has_found ? PINRAIL_SUCCESS : PINRAIL_ERR_WOULD_BLOCK;
  }
};

TEST(PendingCalls, one_that_was_announced_for_a_moment_wakes_those_that_wait_for_it) {
  FindingIndex index;
  pinrail_rcache_t rcache{};
  rcache.module = &index;
  rcache.ops.find_or_announce = FindingIndex::find_or_announce;
  grdma::PendingCalls calls(rcache);
  const grdma::Request request{{0x10000, 0x11000}, 1};
  grdma::Pending own[2];
  std::atomic<int> ended{0};
  const auto call = [&](int i) {
    pinrail_registration_t* reg = nullptr;
    EXPECT_EQ(calls.announce(nullptr, request, &own[i], &reg), PINRAIL_SUCCESS);
    ++ended;
  };
  std::thread first(call, 0);
  while (index.first == nullptr) std::this_thread::yield();
  std::thread waits(call, 1);
  for (int before = -1; before != index.asked || before == 0;) {  // until it sleeps
    before = index.asked;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  index.may_find = true;
  first.join();
  EXPECT_TRUE(comes_true([&] { return ended == 2; }));
  calls.end(&own[0]);  // wakes it in any case
  waits.join();
}

}  // namespace
}  // namespace pinrail::test
