// SPDX-License-Identifier: BSD-3-Clause
// mpool/mrall: everything that is mapped and can be registered is, and follows the mappings.
#include <pinrail/listing.h>
#include <sys/prctl.h>

#include <atomic>
#include <thread>

#include "test/mpool/mrall_and_odp.h"
#include "test/support/cases.h"
#include "test/support/memory.h"

namespace pinrail::test {
namespace {

int global_in_data = 1;
const int global_in_text = 1;

TEST_F(Mrall, a_new_pool_has_everything_registered_that_the_mappings_permit) {
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  int local = 0;
  const auto heap = std::make_unique<int>(0);
  for (const int* at : std::vector<const int*>{&local, &global_in_data, heap.get()}) {
    EXPECT_EQ(pool_->pinned(at, sizeof(*at), kWrite), PINRAIL_PINNED_WHOLLY);
  }
  EXPECT_EQ(pool_->pinned(&global_in_text, sizeof(int), kRead), PINRAIL_PINNED_WHOLLY);
  EXPECT_EQ(pool_->use(&global_in_text, sizeof(int), kWrite), PINRAIL_ERR_PERM) << "read-only: remote read only";
}

TEST_F(Mrall, what_is_mapped_is_registered_without_a_call_and_hidden_when_it_goes) {
  for (int i = 0; i < 20; ++i) {
    void* const at = map(16 * kPage);
    EXPECT_TRUE(becomes_registered(at, 16 * kPage, kWrite));
    EXPECT_EQ(munmap(at, 16 * kPage), 0);
    EXPECT_EQ(pool_->pinned(at, 16 * kPage), PINRAIL_PINNED_NONE) << "at once";
    EXPECT_EQ(pool_->find(at, kPage), PINRAIL_ERR_NOT_FOUND);
    EXPECT_EQ(pool_->use(at, kPage), PINRAIL_ERR_NOT_FOUND);
  }
}

TEST_F(Mrall, a_process_that_has_no_descriptor_left_may_ask_again) {
  void* at = nullptr;
  {
    const FewDescriptors none;
    at = map(16 * kPage);
    EXPECT_EQ(pool_->use(at, kPage), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  }
  EXPECT_EQ(pool_->use(at, kPage), PINRAIL_SUCCESS);
  munmap(at, 16 * kPage);
}

TEST_F(Mrall, mapping_over_and_moving_and_resizing_are_followed) {
  auto* const at = static_cast<char*>(map(8 * kPage));
  pinrail_handle_t before;
  ASSERT_EQ(pool_->reg(at, 8 * kPage, kWrite, &before), PINRAIL_SUCCESS);
  ASSERT_EQ(mmap(at, 8 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
  pinrail_handle_t after;
  ASSERT_EQ(pool_->reg(at, 8 * kPage, kRead, &after), PINRAIL_SUCCESS);
  EXPECT_NE(after.reg, before.reg) << "the old pages' registration is no answer";
  EXPECT_TRUE(device_->is_live(before.reg)) << "held";
  drop(before);
  drop(after);
  auto* const larger = static_cast<char*>(mremap(at, 8 * kPage, 64 * kPage, MREMAP_MAYMOVE));
  EXPECT_EQ(pool_->find(larger, 64 * kPage), PINRAIL_SUCCESS);
  auto* const room = static_cast<char*>(map(64 * kPage));
  ASSERT_EQ(mremap(larger, 64 * kPage, 64 * kPage, MREMAP_MAYMOVE | MREMAP_FIXED, room), room);
  EXPECT_EQ(pool_->find(larger, kPage), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pool_->find(room, 64 * kPage), PINRAIL_SUCCESS);
  ASSERT_EQ(mremap(room, 64 * kPage, 4 * kPage, 0), room);
  EXPECT_EQ(pool_->find(room + 4 * kPage, kPage), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pool_->find(room, 4 * kPage), PINRAIL_SUCCESS);
  munmap(room, 4 * kPage);
}

TEST_F(Mrall, the_break_is_followed_up_and_down) {
  auto* const old_break = static_cast<char*>(sbrk(0));
  ASSERT_NE(sbrk(64 * kPage), reinterpret_cast<void*>(-1));
  auto* const first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(old_break) + kPage - 1) & ~(kPage - 1));
  EXPECT_EQ(pool_->find(first, 60 * kPage, kWrite), PINRAIL_SUCCESS);
  ASSERT_EQ(brk(old_break), 0);
  EXPECT_EQ(pool_->find(first + 8 * kPage, kPage), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(Mrall, protection_is_followed_by_requests) {
  const Mapping memory(8 * kPage, PROT_NONE);
  EXPECT_EQ(pool_->use(memory.base(), kPage), PINRAIL_ERR_PERM);
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(memory.base(), PINRAIL_LEFT_OUT_PROTECTED));
  mprotect(memory.base(), 8 * kPage, PROT_READ);
  EXPECT_EQ(pool_->find(memory.base(), 8 * kPage, kRead), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(memory.base(), 8 * kPage, kWrite), PINRAIL_ERR_PERM);
  mprotect(memory.base() + kPage, 7 * kPage, PROT_READ | PROT_WRITE);
  EXPECT_EQ(pool_->use(memory.base() + kPage, 7 * kPage, kWrite), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(memory.base(), 8 * kPage, kRead), PINRAIL_SUCCESS) << "across both";
  std::vector<pinrail_reason_t> reasons;
  device_->on_deregister([&](const pinrail_registration_t* reg, pinrail_reason_t reason) {
    if (reg->base >= memory.base() && reg->base < memory.base() + 8 * kPage) reasons.push_back(reason);
  });
  mprotect(memory.base(), 8 * kPage, PROT_NONE);
  pool_->catch_up();
  EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
  device_->on_deregister(nullptr);
  EXPECT_EQ(pool_->pinned(memory.base(), 8 * kPage), PINRAIL_PINNED_NONE);
  // Otherwise registrar mlock would leave the memory locked, which is the process's still.
  EXPECT_GT(reasons.size(), size_t{0});
  EXPECT_EQ(std::count(reasons.begin(), reasons.end(), PINRAIL_REASON_INVALIDATED), 0);
  EXPECT_TRUE(pool_->leaves_out(memory.base() + 4 * kPage, PINRAIL_LEFT_OUT_PROTECTED));
}

// R12: what a request across two pieces displaces is found by no event any more.
TEST_F(Mrall, what_is_displaced_counts_as_ended_by_an_event_while_it_is_held) {
  const Mapping memories[] = {Mapping(4 * kPage, PROT_NONE), Mapping(4 * kPage, PROT_NONE)};
  for (const bool is_held : {false, true}) {
    const Mapping& memory = memories[is_held ? 1 : 0];
    const auto map_over = [&](size_t page) {
      void* const at = memory.base() + page * kPage;
      EXPECT_EQ(mmap(at, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
      pool_->catch_up();
    };
    std::vector<pinrail_reason_t> reasons;
    device_->on_deregister([&](const pinrail_registration_t* reg, pinrail_reason_t reason) {
      if (reg->base == memory.base()) reasons.push_back(reason);
    });
    map_over(0);
    pinrail_handle_t held{};
    ASSERT_EQ(pool_->reg(memory.base(), 2 * kPage, kRead, &held), PINRAIL_SUCCESS);
    if (!is_held) drop(held);
    map_over(2);
    EXPECT_EQ(pool_->use(memory.base(), 4 * kPage), PINRAIL_SUCCESS);
    EXPECT_EQ(pinrail_mpool_progress(pool_->get()), PINRAIL_SUCCESS);
    if (is_held) drop(held);
    device_->on_deregister(nullptr);
    EXPECT_GT(reasons.size(), size_t{0});
    EXPECT_EQ(std::count(reasons.begin(), reasons.end(), PINRAIL_REASON_RELEASED) != 0, !is_held);
  }
}

TEST_F(Mrall, a_rescan_finds_what_no_monitor_reports) {
  start({{"mpool_mrall_rescan", "20"}});
  const Mapping memory(8 * kPage, PROT_NONE);
  pool_->catch_up();
  mprotect(memory.base(), 8 * kPage, PROT_READ | PROT_WRITE);
  EXPECT_TRUE(becomes_registered(memory.base(), 8 * kPage, kWrite));
  mprotect(memory.base(), 8 * kPage, PROT_READ);
  EXPECT_TRUE(comes_true([&] { return pool_->pinned(memory.base(), kPage, kWrite) == PINRAIL_PINNED_NONE; }));
  EXPECT_TRUE(becomes_registered(memory.base(), 8 * kPage, kRead));
}

TEST_F(Mrall, a_report_of_a_part_of_a_page_is_one_of_the_page) {
  const Mapping memory(2 * kPage, PROT_NONE);
  pool_->catch_up();
  mprotect(memory.base(), 2 * kPage, PROT_READ | PROT_WRITE);
  pinrail_monitor_report(memory.base() + 100, 50);
  EXPECT_TRUE(becomes_registered(memory.base(), kPage, kWrite));
  for (const fake::FakeRecord& record : device_->live()) EXPECT_EQ((record.base | record.length) % kPage, 0u);
}

TEST_F(Mrall, no_caller_calls_the_registrar) {
  const auto own = std::this_thread::get_id();
  std::atomic<int> mine{0}, others{0};
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    ++(std::this_thread::get_id() == own ? mine : others);
  });
  for (int i = 0; i < 100; ++i) {
    void* const at = map(kPage);
    EXPECT_EQ(pool_->use(at, kPage, kWrite), PINRAIL_SUCCESS);
    munmap(at, kPage);
  }
  device_->on_register(nullptr);
  EXPECT_EQ(mine.load(), 0);
  EXPECT_GT(others.load(), 0);
}

TEST_F(Mrall, a_request_waits_for_a_slow_registrar_and_a_hit_does_not) {
  const Mapping ready(4 * kPage);
  ASSERT_EQ(pool_->find(ready.base(), kPage), PINRAIL_SUCCESS);
  std::atomic<bool> may_go{false}, is_in{false};
  std::atomic<void*> slow{nullptr};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    if (!Span::of(request.addr, request.length).contains(Span::of(slow.load(), 1))) return;
    is_in = true;
    while (!may_go) std::this_thread::yield();
  });
  slow = map(512 * kPage, PROT_NONE);
  mprotect(slow, 512 * kPage, PROT_READ | PROT_WRITE);
  std::thread waiter([&] { EXPECT_EQ(pool_->find(slow, kPage), PINRAIL_SUCCESS); });
  EXPECT_TRUE(comes_true([&] { return is_in.load(); }));
  EXPECT_EQ(pool_->find(ready.base(), kPage), PINRAIL_SUCCESS);
  may_go = true;
  waiter.join();
  device_->on_register(nullptr);
  munmap(slow, 512 * kPage);
}

TEST_F(Mrall, what_is_unmapped_while_the_registrar_runs_is_not_kept) {
  std::atomic<void*> victim{nullptr};
  device_->on_register([&](const pinrail_register_request_t& request, pinrail_registration_t*) {
    void* const at = victim.load();
    if (at == nullptr || !Span::of(request.addr, request.length).contains(Span::of(at, 1))) return;
    victim = nullptr;
    munmap(at, 4 * kPage);
  });
  const uint64_t races = pool_->stats().races;
  void* const at = map(4 * kPage, PROT_NONE);
  victim = at;
  mprotect(at, 4 * kPage, PROT_READ | PROT_WRITE);
  EXPECT_EQ(pool_->find(at, kPage), PINRAIL_ERR_NOT_FOUND);
  device_->on_register(nullptr);
  EXPECT_GT(pool_->stats().races, races);
  EXPECT_EQ(pool_->pinned(at, kPage), PINRAIL_PINNED_NONE);
}

TEST_F(Mrall, what_is_left_out_is_listed_with_the_reason) {
  start({}, fake::options_with(&fake::FakeOptions::refused_rights, PINRAIL_ACCESS_LOCAL_WRITE));
  const Mapping none(kPage, PROT_NONE);
  pool_->catch_up();
  int local = 0;
  EXPECT_TRUE(pool_->leaves_out(none.base(), PINRAIL_LEFT_OUT_PROTECTED));
  EXPECT_TRUE(pool_->leaves_out(&local, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_EQ(pool_->use(&local, sizeof(local)), PINRAIL_ERR_NOT_SUPPORTED) << "the registrar's answer";
  size_t devices = 0;
  for (const pinrail_left_out_t& entry : pool_->left_out()) devices += entry.reason == PINRAIL_LEFT_OUT_DEVICE ? 1 : 0;
  EXPECT_GE(devices, 1u) << "the vdso";
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
}

TEST_F(Mrall, a_device_without_atomics_gets_everything_else) {
  start({}, fake::options_with(&fake::FakeOptions::refused_rights, PINRAIL_ACCESS_REMOTE_ATOMIC));
  const Mapping memory(kPage);
  EXPECT_EQ(pool_->use(memory.base(), kPage, kWrite), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(memory.base(), kPage, PINRAIL_ACCESS_REMOTE_ATOMIC), PINRAIL_ERR_PERM);
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
}

// The question whether the device has atomics may itself lack resources.
TEST_F(Mrall, a_failure_of_another_kind_costs_no_atomics) {
  for (const pinrail_status_t answer : {PINRAIL_SUCCESS, PINRAIL_ERR_OUT_OF_RESOURCE}) {
    start();
    void* const at = map(kPage, PROT_NONE);
    device_->fail_register(1, PINRAIL_ERR_BAD_PARAM);  // the memory itself
    device_->fail_register(3, answer);                 // a page of the pool's own, with atomics
    mprotect(at, kPage, PROT_READ | PROT_WRITE);
    pool_->catch_up();
    EXPECT_EQ(pool_->use(at, kPage, PINRAIL_RIGHTS_MASK), PINRAIL_SUCCESS) << answer;
    munmap(at, kPage);
  }
}

TEST_F(Mrall, limits_hold_and_what_does_not_fit_is_left_out) {
  start({}, {}, at_most_bytes(1 << 20));
  const pinrail_mpool_stats_t stats = pool_->stats();
  EXPECT_LE(stats.registered_bytes, 1u << 20);
  EXPECT_LE(device_->peak_live_bytes(), 1u << 20);
  const Mapping memory(2 << 20);
  EXPECT_EQ(pool_->use(memory.base(), 2 << 20), PINRAIL_ERR_OUT_OF_RESOURCE);
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(memory.base(), PINRAIL_LEFT_OUT_LIMIT));
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
}

TEST_F(Mrall, a_mapping_that_is_longer_than_the_memory_is_registered_where_it_is_asked_for) {
  start({{"mpool_mrall_rescan", "50"}});
  const size_t memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * kPage;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const at = mmap(nullptr, 2 * memory, PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (at == MAP_FAILED) GTEST_SKIP() << "this system does not map more than it has";
  pool_->catch_up();
  auto* const middle = static_cast<char*>(at) + memory;
  EXPECT_TRUE(pool_->leaves_out(middle, PINRAIL_LEFT_OUT_LIMIT));
  EXPECT_LT(pool_->stats().registered_bytes, memory);
  EXPECT_EQ(pool_->use(middle, 3 * kPage, kWrite), PINRAIL_SUCCESS);
  EXPECT_LT(pool_->stats().registered_bytes, memory);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // some rescans
  EXPECT_EQ(pool_->pinned(middle, kPage), PINRAIL_PINNED_WHOLLY);
  EXPECT_FALSE(pool_->leaves_out(middle, PINRAIL_LEFT_OUT_LIMIT)) << "it is registered";
  munmap(at, 2 * memory);
}

TEST_F(Mrall, what_it_cannot_do_is_refused) {
  const Mapping memory(kPage);
  pinrail_handle_t handle;
  EXPECT_EQ(pinrail_mpool_register(pool_->get(), memory.base(), kPage, kRead, PINRAIL_FLAG_CACHE_BYPASS, &handle),
            PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pool_->use(memory.base(), kPage, kRead | PINRAIL_TRAIT_RELAXED_ORDERING), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_ERR_NOT_SUPPORTED);
  const fake::FakeRegistrar device(fake::options_with(&fake::FakeOptions::thread_mode, PINRAIL_THREAD_CALLER));
  EXPECT_EQ(MrallPool(lend(device)).status, PINRAIL_ERR_NOT_SUPPORTED);
  PoolOptions exact;
  exact.flags = PINRAIL_POOL_EXACT;
  EXPECT_EQ(MrallPool(lend(*device_), exact).status, PINRAIL_ERR_NOT_SUPPORTED);
}

Settings under(const char* monitors) {
  return {{"monitor", monitors}, {"monitor_never", "guard_install,shmat_over,remove,remap_file_pages"}};
}

// What the program reports is mapped still: the maker would register it again before it is gone.
TEST_F(Mrall, a_monitor_that_is_told_before_memory_goes_alone_is_refused) {
  pool_.reset();
  for (const char* const monitors : {"external", "patcher,external", "^patcher"}) {
    library_.reset();
    library_ = std::make_unique<Library>(under(monitors));
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    EXPECT_EQ(MrallPool(lend(*device_)).status, PINRAIL_ERR_NOT_SUPPORTED) << monitors;
  }
  library_.reset();
  library_ = std::make_unique<Library>(Settings{{"monitor", "^external"}});
  EXPECT_EQ(MrallPool(lend(*device_)).status, PINRAIL_SUCCESS);
}

TEST_F(Mrall, uffd_alone_is_refused) {
  pool_.reset();
  library_.reset();
  library_ = std::make_unique<Library>(under("uffd"));
  if (library_->status != PINRAIL_SUCCESS) GTEST_SKIP() << "this process may have no userfaultfd";
  EXPECT_EQ(MrallPool(lend(*device_)).status, PINRAIL_ERR_NOT_SUPPORTED);
}

// Where the system lets no program change its code, patcher does not start, and uffd takes its place by itself.
TEST_F(Mrall, uffd_alone_is_refused_where_patcher_was_not_left_out_and_does_not_work) {
  constexpr int kNotHere = 77;
  const int status = exit_status_of([] {
    constexpr int kSetMdwe = 65, kRefuseExecGain = 1;  // since Linux 6.3
    if (prctl(kSetMdwe, kRefuseExecGain, 0, 0, 0) != 0) return kNotHere;
    const Library library(Settings{{"monitor", "^external"}, {"monitor_never", "guard_install,shmat_over"}});
    if (std::string_view(pinrail_monitors_at_work()) != "uffd") return kNotHere;
    const fake::FakeRegistrar device;
    return MrallPool(lend(device)).status == PINRAIL_ERR_NOT_SUPPORTED ? 0 : 1;
  });
  if (status == kNotHere) GTEST_SKIP() << "this kernel has no such rule, or lets this process have no userfaultfd";
  EXPECT_EQ(status, 0);
}

TEST_F(Mrall, destroy_is_busy_while_something_is_held) {
  void* const at = map(kPage);
  pinrail_handle_t handle;
  ASSERT_EQ(pool_->reg(at, kPage, kRead, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pool_->find(at, kPage), PINRAIL_SUCCESS) << "nothing has changed";
  void* const later = map(kPage);
  EXPECT_TRUE(becomes_registered(later, kPage)) << "the maker goes on";
  munmap(later, kPage);
  munmap(at, kPage);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY) << "dead and held";
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  drop(handle);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->live_count(), 0u);
  pool_.reset();
}

}  // namespace
}  // namespace pinrail::test
