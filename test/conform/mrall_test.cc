// SPDX-License-Identifier: BSD-3-Clause
// mpool/mrall: everything that is mapped and can be registered is, and follows the mappings.
#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <random>
#include <thread>

#include "base/registration/registration.h"
#include "components/mpool/mrall/mrall_maps.h"
#include "test/support/library.h"
#include "test/support/mapping.h"
#include "test/support/tasks.h"

namespace pinrail::test {
namespace {

constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ;
constexpr uint32_t kWrite = PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_LOCAL_WRITE;

void* map(size_t length, int protection = PROT_READ | PROT_WRITE) {
  void* const at = mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(at, MAP_FAILED);
  return at;
}

class MrallPool : public AnyPool {
 public:
  explicit MrallPool(const pinrail_registrar_choice_t& registrar, PoolOptions options = {}) {
    options.leave_pinned = PINRAIL_UNSET;
    make("mrall", registrar, options);
  }
  ~MrallPool() { close(PINRAIL_DESTROY_FORCE); }

  pinrail_status_t reg(const void* at, size_t length, uint32_t access, pinrail_handle_t* handle_out) const {
    return pinrail_mpool_register(pool_, const_cast<void*>(at), length, access, 0, handle_out);
  }
  pinrail_status_t use(const void* at, size_t length, uint32_t access = kRead) const {
    pinrail_handle_t handle;
    const pinrail_status_t answer = reg(at, length, access, &handle);
    return answer == PINRAIL_SUCCESS ? pinrail_mpool_deregister(handle) : answer;
  }
  pinrail_status_t find(const void* at, size_t length, uint32_t access = kRead) const {
    pinrail_handle_t handle;
    const pinrail_status_t answer = pinrail_mpool_find(pool_, const_cast<void*>(at), length, access, &handle);
    return answer == PINRAIL_SUCCESS ? pinrail_mpool_deregister(handle) : answer;
  }
  // Without a call that the maker would answer.
  pinrail_pinned_t pinned(const void* at, size_t length, uint32_t access = kRead) const {
    pinrail_pinned_t pinned = PINRAIL_PINNED_NONE;
    EXPECT_EQ(pinrail_mpool_query(pool_, at, length, access, &pinned, nullptr, 0, nullptr), PINRAIL_SUCCESS);
    return pinned;
  }
  std::vector<pinrail_left_out_t> left_out() const {
    std::vector<pinrail_left_out_t> entries(4096);
    size_t count = 0;
    EXPECT_EQ(pinrail_mpool_left_out(pool_, entries.data(), entries.size(), &count), PINRAIL_SUCCESS);
    EXPECT_LE(count, entries.size());
    entries.resize(count);
    return entries;
  }
  bool leaves_out(const void* at, pinrail_left_out_reason_t reason) const {
    for (const pinrail_left_out_t& entry : left_out()) {
      const Span span = Span::of(entry.addr, entry.length);
      if (span.contains(Span::of(at, 1))) return entry.reason == reason;
    }
    return false;
  }
  void catch_up() const { EXPECT_EQ(pinrail_mpool_progress(pool_), PINRAIL_SUCCESS); }
};

// What /proc/self/maps says, beside what the pool says. Both allocate, so only two equal readings around the pool's
// count.
struct Oracle {
  mrall::Maps before, after;
  std::string why;

  bool agrees(const MrallPool& pool) {
    for (int i = 0; i < 50; ++i) {
      pool.catch_up();
      EXPECT_TRUE(before.read().ok());
      const std::vector<pinrail_left_out_t> left_out = pool.left_out();
      const pinrail_mpool_stats_t stats = pool.stats();
      EXPECT_TRUE(after.read().ok());
      if (is_stable() && is_equal(stats.pinned_bytes, left_out)) return true;
    }
    return false;
  }

 private:
  bool is_stable() const {
    const auto &a = before.lines(), &b = after.lines();
    const auto same = [](const mrall::Line& x, const mrall::Line& y) {
      return x.span.base == y.span.base && x.span.end == y.span.end && x.rights == y.rights;
    };
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), same);
  }
  // All that is registrable is registered, but for what the registrar refused; nothing else is.
  bool is_equal(uint64_t pinned, const std::vector<pinrail_left_out_t>& left_out) {
    uint64_t registrable = 0, refused = 0, rest = 0, listed = 0;
    for (const mrall::Line& line : after.lines()) (line.is_registrable ? registrable : rest) += line.span.length();
    for (const pinrail_left_out_t& entry : left_out) {
      (entry.reason >= PINRAIL_LEFT_OUT_UNSEEN ? refused : listed) += entry.length;
    }
    why = "registrable " + std::to_string(registrable) + ", registered " + std::to_string(pinned) + ", refused " +
          std::to_string(refused) + "; others " + std::to_string(rest) + ", listed " + std::to_string(listed);
    return registrable == pinned + refused && rest == listed;
  }
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kUnderSanitizer = true;
#else
constexpr bool kUnderSanitizer = false;
#endif

class Mrall : public testing::Test {
 protected:
  void SetUp() override {
    if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
  }
  void start(const Settings& settings = {}, const fake::FakeOptions& fake = {}, const PoolOptions& options = {}) {
    Settings all = {{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}};
    all.insert(all.end(), settings.begin(), settings.end());
    library_ = std::make_unique<Library>(all);
    ASSERT_EQ(library_->status, PINRAIL_SUCCESS);
    device_ = std::make_unique<fake::FakeRegistrar>(fake);
    pool_ = std::make_unique<MrallPool>(lend(*device_), options);
    ASSERT_EQ(pool_->status, PINRAIL_SUCCESS);
  }
  void TearDown() override {
    if (pool_ == nullptr) return;
    EXPECT_TRUE(pool_->invariants_hold());
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    EXPECT_EQ(device_->live_count(), 0u) << "destroy leaves nothing at the device";
    EXPECT_EQ(device_->violations(), std::vector<std::string>{});
  }
  bool becomes_registered(const void* at, size_t length, uint32_t access = kRead) const {
    return comes_true([&] { return pool_->pinned(at, length, access) == PINRAIL_PINNED_WHOLLY; });
  }

  std::unique_ptr<Library> library_;
  std::unique_ptr<fake::FakeRegistrar> device_;
  std::unique_ptr<MrallPool> pool_;
};

int global_in_data = 1;
const int global_in_text = 1;

TEST_F(Mrall, a_new_pool_has_everything_registered_that_the_mappings_permit) {
  start();
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
  start();
  for (int i = 0; i < 20; ++i) {
    void* const at = map(16 * kPage);
    EXPECT_TRUE(becomes_registered(at, 16 * kPage, kWrite));
    EXPECT_EQ(munmap(at, 16 * kPage), 0);
    EXPECT_EQ(pool_->pinned(at, 16 * kPage), PINRAIL_PINNED_NONE) << "at once";
    EXPECT_EQ(pool_->find(at, kPage), PINRAIL_ERR_NOT_FOUND);
    EXPECT_EQ(pool_->use(at, kPage), PINRAIL_ERR_NOT_FOUND);
  }
}

TEST_F(Mrall, a_hole_leaves_both_sides_registered) {
  start();
  auto* const at = static_cast<char*>(map(16 * kPage));
  EXPECT_TRUE(becomes_registered(at, 16 * kPage));
  EXPECT_EQ(munmap(at + 4 * kPage, kPage), 0);
  EXPECT_EQ(pool_->find(at + 4 * kPage, kPage), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pool_->find(at, 16 * kPage), PINRAIL_ERR_NOT_FOUND);
  EXPECT_TRUE(becomes_registered(at, 4 * kPage));
  EXPECT_TRUE(becomes_registered(at + 5 * kPage, 11 * kPage));
  munmap(at, 16 * kPage);
}

TEST_F(Mrall, mapping_over_and_moving_and_resizing_are_followed) {
  start();
  auto* const at = static_cast<char*>(map(8 * kPage));
  pinrail_handle_t before;
  ASSERT_EQ(pool_->reg(at, 8 * kPage, kWrite, &before), PINRAIL_SUCCESS);
  ASSERT_EQ(mmap(at, 8 * kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
  pinrail_handle_t after;
  ASSERT_EQ(pool_->reg(at, 8 * kPage, kRead, &after), PINRAIL_SUCCESS);
  EXPECT_NE(after.reg, before.reg) << "the old pages' registration is no answer";
  EXPECT_TRUE(device_->is_live(before.reg)) << "held";
  EXPECT_EQ(pinrail_mpool_deregister(before), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(after), PINRAIL_SUCCESS);
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
  start();
  auto* const old_break = static_cast<char*>(sbrk(0));
  ASSERT_NE(sbrk(64 * kPage), reinterpret_cast<void*>(-1));
  auto* const first = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(old_break) + kPage - 1) & ~(kPage - 1));
  EXPECT_EQ(pool_->find(first, 60 * kPage, kWrite), PINRAIL_SUCCESS);
  ASSERT_EQ(brk(old_break), 0);
  EXPECT_EQ(pool_->find(first + 8 * kPage, kPage), PINRAIL_ERR_NOT_FOUND);
}

TEST_F(Mrall, protection_is_followed_by_requests) {
  start();
  auto* const at = static_cast<char*>(map(8 * kPage, PROT_NONE));
  EXPECT_EQ(pool_->use(at, kPage), PINRAIL_ERR_PERM);
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(at, PINRAIL_LEFT_OUT_PROTECTED));
  mprotect(at, 8 * kPage, PROT_READ);
  EXPECT_EQ(pool_->find(at, 8 * kPage, kRead), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(at, 8 * kPage, kWrite), PINRAIL_ERR_PERM);
  mprotect(at + kPage, 7 * kPage, PROT_READ | PROT_WRITE);
  EXPECT_EQ(pool_->use(at + kPage, 7 * kPage, kWrite), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(at, 8 * kPage, kRead), PINRAIL_SUCCESS) << "across both";
  mprotect(at, 8 * kPage, PROT_NONE);
  pool_->catch_up();
  EXPECT_EQ(pool_->pinned(at, 8 * kPage), PINRAIL_PINNED_NONE);
  EXPECT_TRUE(pool_->leaves_out(at + 4 * kPage, PINRAIL_LEFT_OUT_PROTECTED));
  munmap(at, 8 * kPage);
}

TEST_F(Mrall, a_rescan_finds_what_no_monitor_reports) {
  start({{"mpool_mrall_rescan", "20"}});
  auto* const at = static_cast<char*>(map(8 * kPage, PROT_NONE));
  pool_->catch_up();
  mprotect(at, 8 * kPage, PROT_READ | PROT_WRITE);
  EXPECT_TRUE(becomes_registered(at, 8 * kPage, kWrite));
  mprotect(at, 8 * kPage, PROT_READ);
  EXPECT_TRUE(comes_true([&] { return pool_->pinned(at, kPage, kWrite) == PINRAIL_PINNED_NONE; }));
  EXPECT_TRUE(becomes_registered(at, 8 * kPage, kRead));
  munmap(at, 8 * kPage);
}

TEST_F(Mrall, a_report_of_a_part_of_a_page_is_one_of_the_page) {
  start();
  auto* const at = static_cast<char*>(map(2 * kPage, PROT_NONE));
  pool_->catch_up();
  mprotect(at, 2 * kPage, PROT_READ | PROT_WRITE);
  pinrail_monitor_report(at + 100, 50);
  EXPECT_TRUE(becomes_registered(at, kPage, kWrite));
  for (const fake::FakeRecord& record : device_->live()) EXPECT_EQ((record.base | record.length) % kPage, 0u);
  munmap(at, 2 * kPage);
}

TEST_F(Mrall, stacks_of_threads_are_registered) {
  start();
  std::thread([&] {
    int local = 0;
    EXPECT_EQ(pool_->find(&local, sizeof(local), kWrite), PINRAIL_SUCCESS);
  }).join();
}

TEST_F(Mrall, no_caller_calls_the_registrar) {
  start();
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
  start();
  auto* const ready = static_cast<char*>(map(4 * kPage));
  ASSERT_EQ(pool_->find(ready, kPage), PINRAIL_SUCCESS);
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
  EXPECT_EQ(pool_->find(ready, kPage), PINRAIL_SUCCESS);
  may_go = true;
  waiter.join();
  device_->on_register(nullptr);
  munmap(slow, 512 * kPage);
  munmap(ready, 4 * kPage);
}

TEST_F(Mrall, what_is_unmapped_while_the_registrar_runs_is_not_kept) {
  start();
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
  fake::FakeOptions fake;
  fake.refused_rights = PINRAIL_ACCESS_LOCAL_WRITE;
  start({}, fake);
  void* const none = map(kPage, PROT_NONE);
  pool_->catch_up();
  int local = 0;
  EXPECT_TRUE(pool_->leaves_out(none, PINRAIL_LEFT_OUT_PROTECTED));
  EXPECT_TRUE(pool_->leaves_out(&local, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_EQ(pool_->use(&local, sizeof(local)), PINRAIL_ERR_NOT_SUPPORTED) << "the registrar's answer";
  size_t devices = 0;
  for (const pinrail_left_out_t& entry : pool_->left_out()) devices += entry.reason == PINRAIL_LEFT_OUT_DEVICE ? 1 : 0;
  EXPECT_GE(devices, 1u) << "the vdso";
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  munmap(none, kPage);
}

TEST_F(Mrall, a_device_without_atomics_gets_everything_else) {
  fake::FakeOptions fake;
  fake.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  start({}, fake);
  void* const at = map(kPage);
  EXPECT_EQ(pool_->use(at, kPage, kWrite), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(at, kPage, PINRAIL_ACCESS_REMOTE_ATOMIC), PINRAIL_ERR_PERM);
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  munmap(at, kPage);
}

TEST_F(Mrall, a_failure_of_another_kind_costs_no_atomics) {
  start();
  void* const at = map(kPage, PROT_NONE);
  device_->fail_register(1, PINRAIL_ERR_BAD_PARAM);
  mprotect(at, kPage, PROT_READ | PROT_WRITE);
  pool_->catch_up();
  EXPECT_EQ(pool_->use(at, kPage, PINRAIL_RIGHTS_MASK), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(&global_in_data, sizeof(int), PINRAIL_RIGHTS_MASK), PINRAIL_SUCCESS);
  munmap(at, kPage);
}

// The question whether the device has atomics may itself lack resources.
TEST_F(Mrall, a_lack_of_resources_costs_no_atomics) {
  start();
  void* const at = map(kPage, PROT_NONE);
  device_->fail_register(1, PINRAIL_ERR_BAD_PARAM);        // the memory itself
  device_->fail_register(3, PINRAIL_ERR_OUT_OF_RESOURCE);  // a page of the pool's own, with atomics
  mprotect(at, kPage, PROT_READ | PROT_WRITE);
  pool_->catch_up();
  EXPECT_EQ(pool_->use(at, kPage, PINRAIL_RIGHTS_MASK), PINRAIL_SUCCESS);
  munmap(at, kPage);
}

// A process may have as many mappings as vm.max_map_count says, which is 65,530.
TEST(MrallMaps, are_read_in_a_time_that_grows_with_their_number) {
  std::string text;
  for (uint64_t i = 1; i <= 65530; ++i) {
    char line[128];
    std::snprintf(line, sizeof(line), "%lx-%lx rw-p 00000000 00:00 0                   /some/path/%lu\n", i * 0x2000,
                  i * 0x2000 + 0x1000, i);
    text += line;
  }
  mrall::Maps maps;
  const clock_t before = clock();
  maps.parse(text.c_str());
  const double seconds = static_cast<double>(clock() - before) / CLOCKS_PER_SEC;
  ASSERT_EQ(maps.lines().size(), 65530u);
  EXPECT_EQ(maps.lines().back().span.end, uintptr_t{65530} * 0x2000 + 0x1000);
  EXPECT_EQ(maps.lines().back().rights, uint32_t{PINRAIL_RIGHTS_MASK});
  EXPECT_LT(seconds, 0.7) << "sscanf() took 1.7 s, because it measures the rest of the text";
}

TEST_F(Mrall, requests_across_pieces_get_one_registration) {
  start({{"mpool_mrall_largest_piece", "64K"}, {"mpool_mrall_max_reg_size", "64K"}});
  auto* const at = static_cast<char*>(map(1024 * kPage));
  EXPECT_TRUE(becomes_registered(at, 1024 * kPage));
  pinrail_handle_t handle;
  ASSERT_EQ(pool_->reg(at + 100, 1000 * kPage, kWrite, &handle), PINRAIL_SUCCESS);
  EXPECT_TRUE(span_of(handle.reg).contains(Span::of(at + 100, 1000 * kPage)));
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  munmap(at, 1024 * kPage);
}

TEST_F(Mrall, limits_hold_and_what_does_not_fit_is_left_out) {
  PoolOptions options;
  options.size_limit = 1 << 20;
  start({}, {}, options);
  const pinrail_mpool_stats_t stats = pool_->stats();
  EXPECT_LE(stats.registered_bytes, 1u << 20);
  EXPECT_LE(device_->peak_live_bytes(), 1u << 20);
  void* const at = map(2 << 20);
  pinrail_handle_t handle;
  EXPECT_EQ(pool_->reg(at, 2 << 20, kRead, &handle), PINRAIL_ERR_OUT_OF_RESOURCE);
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(at, PINRAIL_LEFT_OUT_LIMIT));
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  munmap(at, 2 << 20);
}

TEST_F(Mrall, a_mapping_that_is_longer_than_the_memory_is_registered_where_it_is_asked_for) {
  start();
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
  munmap(at, 2 * memory);
}

TEST_F(Mrall, what_it_cannot_do_is_refused) {
  start();
  void* const at = map(kPage);
  pinrail_handle_t handle;
  EXPECT_EQ(pinrail_mpool_register(pool_->get(), at, kPage, kRead, PINRAIL_FLAG_CACHE_BYPASS, &handle),
            PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pool_->use(at, kPage, kRead | PINRAIL_TRAIT_RELAXED_ORDERING), PINRAIL_ERR_NOT_SUPPORTED);
  EXPECT_EQ(pinrail_mpool_evict(pool_->get()), PINRAIL_ERR_NOT_FOUND);
  EXPECT_EQ(pinrail_mpool_ft_event(pool_->get(), PINRAIL_FT_CHECKPOINT), PINRAIL_ERR_NOT_SUPPORTED);
  fake::FakeOptions caller_only;
  caller_only.thread_mode = PINRAIL_THREAD_CALLER;
  const fake::FakeRegistrar device(caller_only);
  EXPECT_EQ(MrallPool(lend(device)).status, PINRAIL_ERR_NOT_SUPPORTED);
  PoolOptions exact;
  exact.flags = PINRAIL_POOL_EXACT;
  EXPECT_EQ(MrallPool(lend(*device_), exact).status, PINRAIL_ERR_NOT_SUPPORTED);
  munmap(at, kPage);
}

TEST_F(Mrall, destroy_is_busy_while_something_is_held) {
  start();
  void* const at = map(kPage);
  pinrail_handle_t handle;
  ASSERT_EQ(pool_->reg(at, kPage, kRead, &handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY);
  EXPECT_EQ(pool_->find(at, kPage), PINRAIL_SUCCESS) << "nothing has changed";
  munmap(at, kPage);
  EXPECT_EQ(pool_->close(), PINRAIL_ERR_BUSY) << "dead and held";
  EXPECT_EQ(pool_->close(PINRAIL_DESTROY_FORCE), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_ERR_BAD_PARAM);
  EXPECT_EQ(device_->live_count(), 0u);
  pool_.reset();
}

// One of eight threads that map, remap and unmap at random. Each of its mappings is found at any time.
class Mapper {
 public:
  Mapper(const MrallPool* pool, unsigned seed) : pool_(pool), random_(seed) {}
  void run(std::chrono::steady_clock::time_point end) {
    while (std::chrono::steady_clock::now() < end) {
      step();
      look();
      ++steps;
    }
    for (const Live& live : live_) munmap(live.at, live.length);
  }

  uint64_t steps = 0, missing = 0, refused = 0;

 private:
  struct Live {
    char* at;
    size_t length;
  };
  size_t any_length() { return (1 + random_() % 64) * kPage; }
  void step() {
    const unsigned what = random_() % 4;
    if (live_.empty() || (what == 0 && live_.size() < 16)) {
      const size_t length = any_length();
      live_.push_back({static_cast<char*>(map(length)), length});
      return;
    }
    Live& one = live_[random_() % live_.size()];
    if (what == 1) {
      const size_t length = any_length();
      one = {static_cast<char*>(mremap(one.at, one.length, length, MREMAP_MAYMOVE)), length};
    } else if (what == 2) {
      EXPECT_EQ(mmap(one.at, one.length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                one.at);
    } else {
      munmap(one.at, one.length);
      one = live_.back();
      live_.pop_back();
    }
  }
  void look() {
    if (live_.empty()) return;
    const Live& one = live_[random_() % live_.size()];
    const size_t offset = random_() % one.length, length = 1 + random_() % (one.length - offset);
    if (pool_->find(one.at + offset, length, kWrite) != PINRAIL_SUCCESS) ++missing;
    if (pool_->use(one.at, one.length, kWrite) != PINRAIL_SUCCESS) ++refused;
  }

  const MrallPool* const pool_;
  std::mt19937 random_;
  std::vector<Live> live_;
};

TEST_F(Mrall, every_live_address_is_found_while_eight_threads_map_and_unmap) {
  start();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  std::vector<std::unique_ptr<Mapper>> mappers;
  for (unsigned i = 0; i < 8; ++i) mappers.push_back(std::make_unique<Mapper>(pool_.get(), i));
  std::vector<std::thread> threads;
  for (const auto& mapper : mappers) threads.emplace_back([&] { mapper->run(end); });
  for (std::thread& thread : threads) thread.join();
  uint64_t steps = 0;
  for (const auto& mapper : mappers) {
    EXPECT_EQ(mapper->missing, 0u);
    EXPECT_EQ(mapper->refused, 0u);
    steps += mapper->steps;
  }
  EXPECT_GT(steps, 100u);
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
}

// Maps and uses memory; whatever the registrar refused, a later request gets.
void use_memory(const MrallPool& pool) {
  void* const at = map(4 * kPage);
  Status(pool.use(at, 4 * kPage)).ignore();
  EXPECT_EQ(pool.use(at, 4 * kPage), PINRAIL_SUCCESS);
  munmap(at, 4 * kPage);
}

TEST_F(Mrall, each_call_of_the_registrar_may_fail) {
  start();
  pool_.reset();
  uint64_t calls = UINT64_MAX;
  for (const pinrail_status_t failure : {PINRAIL_ERR_OUT_OF_RESOURCE, PINRAIL_ERR_ERROR}) {
    for (uint64_t nth = 1; nth <= calls; ++nth) {
      const uint64_t before = device_->register_calls();
      device_->fail_register(nth, failure);
      MrallPool pool(lend(*device_));
      ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
      use_memory(pool);
      EXPECT_TRUE(pool.invariants_hold());
      calls = device_->register_calls() - before;
      device_->clear_script();
      EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
      ASSERT_EQ(device_->live_count(), 0u) << nth;
    }
  }
}

TEST_F(Mrall, a_forked_child_finds_nothing_and_makes_its_own) {
  start();
  void* const at = map(kPage);
  ASSERT_EQ(pool_->find(at, kPage), PINRAIL_SUCCESS);
  const uint64_t calls = device_->register_calls();
  const pid_t child = fork();
  if (child == 0) {
    bool is_right = pool_->find(at, kPage) == PINRAIL_ERR_NOT_AVAILABLE;
    is_right = is_right && device_->register_calls() == calls;
    Library again(Settings{{"monitor", "patcher"}});
    fake::FakeRegistrar device;
    {
      MrallPool own(lend(device));
      is_right = is_right && own.status == PINRAIL_SUCCESS && own.find(at, kPage) == PINRAIL_SUCCESS;
    }
    _exit(is_right && device.live_count() == 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(pool_->find(at, kPage), PINRAIL_SUCCESS);
  munmap(at, kPage);
}

TEST_F(Mrall, the_process_may_exit_while_it_works) {
  EXPECT_EXIT(
      {
        start();
        for (unsigned i = 0; i < 4; ++i) {
          std::thread([this, i] { Mapper(pool_.get(), i).run(std::chrono::steady_clock::time_point::max()); }).detach();
        }
        usleep(50000);
        exit(0);
      },
      testing::ExitedWithCode(0), "");
}

// Whether the pool refuses writing within some rescans. mprotect is no event: what was registered before it stays so
// until then.
bool is_refused_in_time(const MrallPool& pool, void* at) {
  for (int i = 0; i < 200; ++i) {
    if (pool.use(at, kPage, kWrite) == PINRAIL_ERR_PERM) return true;
    usleep(50000);
  }
  return false;
}

// A device may read what the process may only read, and not write it.
void expect_read_only(const MrallPool& pool) {
  auto* const at = static_cast<unsigned char*>(map(kPage));
  at[100] = 77;
  mprotect(at, kPage, PROT_READ);
  EXPECT_TRUE(is_refused_in_time(pool, at));
  pinrail_handle_t handle;
  ASSERT_EQ(pool.reg(at, kPage, kRead, &handle), PINRAIL_SUCCESS);
  const size_t offset = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(handle.reg->base) + 100;
  unsigned char seen = 0;
  EXPECT_EQ(pinrail_mpool_device_read(handle, offset, &seen, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(seen, 77);
  EXPECT_EQ(handle.reg->rights, kRead);
  EXPECT_NE(pinrail_mpool_device_write(handle, offset, &seen, 1), PINRAIL_SUCCESS);
  EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
  munmap(at, kPage);
}

// Real pins. The device sees what the process has written, whatever was mapped there before.
class MrallDevice : public testing::TestWithParam<const char*> {};

TEST_P(MrallDevice, sees_the_bytes_of_every_live_mapping) {
  if (kUnderSanitizer) GTEST_SKIP() << "would pin all memory of the sanitizer";
  Library library(Settings{{"monitor", "patcher"}});
  ASSERT_EQ(library.status, PINRAIL_SUCCESS);
  MrallPool pool({GetParam(), nullptr, nullptr});
  if (pool.status == PINRAIL_ERR_NOT_AVAILABLE || pool.status == PINRAIL_ERR_NOT_FOUND) {
    GTEST_SKIP() << "no registrar " << GetParam() << " here";
  }
  ASSERT_EQ(pool.status, PINRAIL_SUCCESS);
  std::atomic<uint64_t> wrong{0}, steps{0}, failed{0};
  constexpr uint64_t kSteps = 400;  // an emulated machine takes longer
  const auto run = [&](unsigned seed) {
    std::mt19937 random(seed);
    while (steps < kSteps && failed == 0) {
      const size_t length = (1 + random() % 32) * kPage;
      auto* const at = static_cast<unsigned char*>(map(length));
      for (int round = 0; round < 2; ++round) {
        for (size_t i = 0; i < length; i += 512) at[i] = stamp(seed + steps, i);
        pinrail_handle_t handle;
        if (pool.reg(at, length, kWrite, &handle) != PINRAIL_SUCCESS) {
          ++failed;
          break;
        }
        unsigned char seen = 0;
        const size_t offset = random() % (length / 512) * 512;
        const size_t within = reinterpret_cast<uintptr_t>(at) - reinterpret_cast<uintptr_t>(handle.reg->base) + offset;
        const pinrail_status_t read = pinrail_mpool_device_read(handle, within, &seen, 1);
        if (read == PINRAIL_SUCCESS && seen != at[offset]) ++wrong;
        if (read != PINRAIL_SUCCESS && read != PINRAIL_ERR_NOT_SUPPORTED) ++failed;
        EXPECT_EQ(pinrail_mpool_deregister(handle), PINRAIL_SUCCESS);
        ++steps;
        EXPECT_EQ(mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
      }
      munmap(at, length);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 8; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0u);
  EXPECT_EQ(failed.load(), 0u);
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(pool)) << oracle.why;
  if (std::strcmp(GetParam(), "verbs") == 0) expect_read_only(pool);
  EXPECT_EQ(pool.close(), PINRAIL_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Registrars, MrallDevice, testing::Values("iouring", "mlock", "verbs"),
                         [](const auto& one) { return std::string(one.param); });

TEST(MrallMaps, reads_rights_and_what_cannot_be_registered) {
  mrall::Maps maps;
  maps.parse(
      "1000-3000 rw-p 00000000 00:00 0 \n"
      "3000-4000 r--p 00001000 fe:01 77                         /lib/x y.so\n"
      "5000-6000 ---p 00000000 00:00 0 \n"
      "6000-7000 rw-s 00000000 00:0e 5                          /dev/uverbs0\n"
      "7000-8000 rw-s 00000000 00:01 9                          /dev/shm/a\n"
      "8000-9000 r-xp 00000000 00:00 0                          [vdso]\n");
  ASSERT_EQ(maps.lines().size(), 6u);
  const bool expected[] = {true, true, false, false, true, false};
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(maps.lines()[i].is_registrable, expected[i]) << i;
  EXPECT_EQ(maps.lines()[1].rights, kRead);
  uint32_t rights = 0;
  pinrail_left_out_reason_t reason;
  EXPECT_TRUE(maps.is_registrable({0x1000, 0x4000}, &rights, &reason));
  EXPECT_EQ(rights, kRead) << "what both lines permit";
  EXPECT_FALSE(maps.is_registrable({0x3000, 0x5000}, &rights, &reason));
  EXPECT_EQ(reason, PINRAIL_LEFT_OUT_NONE) << "a gap";
  EXPECT_FALSE(maps.is_registrable({0x5000, 0x6000}, &rights, &reason));
  EXPECT_EQ(reason, PINRAIL_LEFT_OUT_PROTECTED);
  const Span wider = maps.extend({0x1000, 0x2000}, kRead, 0x10000);
  EXPECT_EQ(wider.base, 0x1000u);
  EXPECT_EQ(wider.end, 0x4000u);
  EXPECT_EQ(maps.extend({0x1000, 0x2000}, kWrite, 0x10000).end, 0x3000u);
  EXPECT_EQ(maps.extend({0x3000, 0x4000}, kRead, 0x2000).base, 0x2000u) << "multiples of the step";
}

}  // namespace
}  // namespace pinrail::test
