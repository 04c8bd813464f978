// SPDX-License-Identifier: BSD-3-Clause
// mpool/mrall in threads, failures, forks and exits, and on real registrars; how it reads the mappings.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "test/mpool/mrall_and_odp.h"
#include "test/support/memory.h"
#include "test/support/threads.h"

namespace pinrail::test {
namespace {

// Maps, moves, replaces and unmaps at random until it is over. Each of its mappings is found at any time.
void map_and_look(const MrallPool& pool, unsigned seed, const std::function<bool()>& is_over) {
  std::mt19937 random(seed);
  while (!is_over()) {
    size_t length = (1 + random() % 64) * kPage;
    auto* at = static_cast<char*>(map(length));
    for (size_t changes = random() % 4;; --changes) {
      const size_t offset = random() % length;
      EXPECT_EQ(pool.find(at + offset, 1 + random() % (length - offset), kWrite), PINRAIL_SUCCESS);
      EXPECT_EQ(pool.use(at, length, kWrite), PINRAIL_SUCCESS);
      if (changes == 0) break;
      if (random() % 2 == 0) {
        EXPECT_EQ(mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
        continue;
      }
      const size_t resized = (1 + random() % 64) * kPage;
      at = static_cast<char*>(mremap(at, length, resized, MREMAP_MAYMOVE));
      length = resized;
    }
    munmap(at, length);
  }
}

TEST_F(Mrall, every_live_address_is_found_while_eight_threads_map_and_unmap) {
  constexpr uint64_t kLeastHits = 100;  // however little of the time is ours
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(short_or_long(1, 2));
  const auto is_over = [&] { return std::chrono::steady_clock::now() > end && pool_->stats().hits > kLeastHits; };
  on_threads(8u, [&](unsigned i) { map_and_look(*pool_, i, is_over); });
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
  const Mapping memory(kPage);
  ASSERT_EQ(pool_->find(memory.base(), kPage), PINRAIL_SUCCESS);
  const uint64_t calls = device_->register_calls();
  expect_success_in_child([&] {
    bool is_right = pool_->find(memory.base(), kPage) == PINRAIL_ERR_NOT_AVAILABLE;
    is_right = is_right && device_->register_calls() == calls;
    Library again(Settings{{"monitor", "patcher"}});
    fake::FakeRegistrar device;
    {
      MrallPool own(lend(device));
      is_right = is_right && own.status == PINRAIL_SUCCESS && own.find(memory.base(), kPage) == PINRAIL_SUCCESS;
    }
    return is_right && device.live_count() == 0 ? 0 : 1;
  });
  EXPECT_EQ(pool_->find(memory.base(), kPage), PINRAIL_SUCCESS);
}

// own_threads/S1. The round has 5 s of work.
TEST_F(Mrall, a_fork_waits_for_a_call_of_the_registrar_and_not_for_a_round) {
  std::atomic<bool> is_slow{false};
  std::atomic<int> calls{0};
  start({}, fake::options_with(&fake::FakeOptions::max_length, 16 * kPage));
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!is_slow) return;
    usleep(5000);
    ++calls;
  });
  bool is_short = false;
  for (int tries = 0; tries < 5 && !is_short; ++tries) {
    calls = 0;
    is_slow = true;
    const Mapping memory(size_t{1000} * 16 * kPage);
    EXPECT_TRUE(comes_true([&] { return calls > 0; }));
    const auto began = std::chrono::steady_clock::now();
    const pid_t child = fork();
    if (child == 0) _exit(0);
    is_short = std::chrono::steady_clock::now() - began < std::chrono::milliseconds(900);
    expect_success_of(child);
    is_slow = false;
    pool_->catch_up();
  }
  EXPECT_TRUE(is_short);
  pool_.reset();  // before what its registrar uses
}

// Of the program, registered before Pinrail's: in the parent it runs when the fork has stopped the maker.
std::function<void()> in_prepare_handler;
const int prepare_handler = pthread_atfork(
    [] {
      if (in_prepare_handler) in_prepare_handler();
    },
    nullptr, nullptr);

TEST_F(Mrall, what_would_wait_for_the_maker_is_busy_inside_fork) {
  ASSERT_EQ(prepare_handler, 0);
  void* const at = map(kPage, PROT_NONE);  // what is asked for cannot be registered already
  std::vector<pinrail_status_t> statuses;
  in_prepare_handler = [&] {
    statuses = {pool_->use(at, kPage), pool_->find(at, kPage), pinrail_mpool_progress(pool_->get()),
                pinrail_mpool_destroy(pool_->get(), PINRAIL_DESTROY_FORCE)};
  };
  EXPECT_EQ(exit_status_of([] { return 0; }), 0);
  in_prepare_handler = nullptr;
  EXPECT_EQ(statuses, std::vector<pinrail_status_t>(4, PINRAIL_ERR_BUSY));
  EXPECT_EQ(pool_->use(at, kPage), PINRAIL_ERR_PERM);
  munmap(at, kPage);
}

TEST_F(Mrall, the_process_may_exit_while_it_works) {
  pool_.reset();
  library_.reset();
  EXPECT_EXIT(
      {
        start();
        for (unsigned i = 0; i < 4; ++i) {
          std::thread([this, i] { map_and_look(*pool_, i, [] { return false; }); }).detach();
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
  drop(handle);
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
        drop(handle);
        ++steps;
        EXPECT_EQ(mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), at);
      }
      munmap(at, length);
    }
  };
  on_threads(8u, run);
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
  constexpr int kBoth = PROT_READ | PROT_WRITE;
  for (const patch::Mapping& mapping : {patch::Mapping{0x1000, 0x3000, 0, 0, 0, kBoth, false, ""},
                                        {0x3000, 0x4000, 0, 0, 77, PROT_READ, false, "/lib/x y.so"},
                                        {0x5000, 0x6000, 0, 0, 0, PROT_NONE, false, ""},
                                        {0x6000, 0x7000, 0, 0, 5, kBoth, true, "/dev/uverbs0"},
                                        {0x7000, 0x8000, 0, 0, 9, kBoth, true, "/dev/shm/a"},
                                        {0x8000, 0x9000, 0, 0, 0, PROT_READ | PROT_EXEC, false, "[vdso]"}}) {
    maps.add(mapping);
  }
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

// The maker of mpool/mrall beside other work of its thread, and on registrars that register more than a page at a time.

constexpr size_t kGranule = 16 * kPage;
constexpr size_t kLong = size_t{64} << 20;

// A hang is a failure.
class MrallMaker : public Mrall {
 protected:
  void SetUp() override {
    Mrall::SetUp();
    alarm(120);
  }
  void TearDown() override {
    if (device_ != nullptr) device_->on_register(nullptr);
    Mrall::TearDown();
    alarm(0);
  }
  // From now on the page is mapped anew whenever it is registered, until is_restless_ is false: each round makes the
  // next one necessary. Returns when there were some.
  void make_restless(void* page) {
    const auto map_anew = [page] {
      EXPECT_EQ(mmap(page, kPage, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), page);
    };
    is_restless_ = true;
    device_->on_register([this, page, map_anew](const pinrail_register_request_t& request, pinrail_registration_t*) {
      if (!is_restless_ || !Span::of(request.addr, request.length).contains(Span::of(page, 1))) return;
      ++rounds_;
      map_anew();
    });
    map_anew();
    EXPECT_TRUE(comes_true([this] { return rounds_ > 3; }));
  }

  // Maps so many bytes for a new pool, whose limit is what all else takes, and that room.
  char* map_within(size_t length, size_t room, const Settings& settings) {
    start(settings);
    const uint64_t others = pool_->stats().registered_bytes;
    EXPECT_EQ(pool_->close(), PINRAIL_SUCCESS);
    void* const at = map(length);
    pool_ = std::make_unique<MrallPool>(*device_, at_most_bytes(static_cast<int64_t>(others + room)));
    EXPECT_EQ(pool_->status, PINRAIL_SUCCESS);
    return static_cast<char*>(at);
  }

  std::atomic<bool> is_restless_{false};
  std::atomic<int> rounds_{0};
};

// The maker itself runs the function: what waits for a round would wait for its own thread.
TEST_F(MrallMaker, a_registrar_may_make_a_pool_in_which_everything_is_registered) {
  const fake::FakeRegistrar device;
  std::atomic<bool> is_wanted{false};
  std::unique_ptr<MrallPool> inner;
  device_->on_register([&](const pinrail_register_request_t&, pinrail_registration_t*) {
    if (!is_wanted.exchange(false)) return;
    inner = std::make_unique<MrallPool>(device);
    EXPECT_EQ(inner->find(&is_wanted, 1), PINRAIL_ERR_BUSY) << "not from here";
  });
  is_wanted = true;
  const Mapping memory(kPage);
  EXPECT_EQ(pool_->use(memory.base(), kPage), PINRAIL_SUCCESS);
  pool_->catch_up();
  ASSERT_NE(inner, nullptr);
  ASSERT_EQ(inner->status, PINRAIL_SUCCESS);
  EXPECT_EQ(inner->use(memory.base(), kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(inner->close(), PINRAIL_SUCCESS);
}

// E4: each round makes the next one necessary.
TEST_F(MrallMaker, a_pool_that_is_never_done_leaves_the_thread_to_others) {
  start({{"mpool_grdma_gc_thread", "auto"}});
  fake::FakeRegistrar other_device;
  Pool other(other_device, {1, PINRAIL_UNSET, PINRAIL_UNSET, 0, "other"});
  auto* const at = static_cast<char*>(map(2 * kPage));
  make_restless(at);
  other.use(reinterpret_cast<uintptr_t>(at) + kPage, kPage);
  munmap(at + kPage, kPage);
  EXPECT_TRUE(comes_true([&] { return other_device.live_count() == 0; }));
  is_restless_ = false;
  pool_->catch_up();
  munmap(at, kPage);
}

// What no monitor reports is found as long as events go on, too.
TEST_F(MrallMaker, a_pool_that_is_never_done_looks_for_what_no_monitor_reports) {
  start({{"mpool_mrall_rescan", "20"}});
  const Mapping memory(4 * kPage);
  auto* const other = static_cast<char*>(map(4 * kPage));
  ASSERT_TRUE(becomes_registered(other, 4 * kPage, kWrite));
  make_restless(memory.base());
  mprotect(other, 4 * kPage, PROT_READ);
  EXPECT_TRUE(comes_true([&] { return pool_->pinned(other, 4 * kPage, kWrite) == PINRAIL_PINNED_NONE; }));
  is_restless_ = false;
  pool_->catch_up();
  munmap(other, 4 * kPage);
}

// Without a request for it: the limit is asked again, the device is not.
TEST_F(MrallMaker, what_a_limit_kept_out_is_registered_when_there_is_room) {
  void* const first = map_within(kLong, kLong + kLong / 2, {{"mpool_mrall_rescan", "20"}});
  EXPECT_EQ(pool_->pinned(first, kLong), PINRAIL_PINNED_WHOLLY);
  const Mapping second(kLong);
  pool_->catch_up();
  EXPECT_NE(pool_->pinned(second.base(), kLong), PINRAIL_PINNED_WHOLLY);
  munmap(first, kLong);
  EXPECT_TRUE(becomes_registered(second.base(), kLong));
}

const Settings kSmallPieces = {{"mpool_mrall_largest_piece", "1M"}, {"mpool_mrall_max_reg_size", "4K"}};

// R8: each request lies across pieces and gets a registration of its own, of which none is held.
TEST_F(MrallMaker, windows_over_a_buffer_do_not_use_up_the_limit) {
  constexpr size_t kWindow = kLong / 4;
  char* const at = map_within(kLong, 2 * kLong, kSmallPieces);
  for (size_t offset = kPage; offset + kWindow < kLong; offset += kLong / 64 + kPage) {
    ASSERT_EQ(pool_->use(at + offset, kWindow, kWrite), PINRAIL_SUCCESS) << offset;
  }
  EXPECT_TRUE(becomes_registered(at, kLong, kWrite)) << "what made room is registered again";
  munmap(at, kLong);
}

// What is held makes no room.
TEST_F(MrallMaker, what_is_held_stays_although_a_request_lacks_room) {
  char* const at = map_within(kLong, kLong + kLong / 4, kSmallPieces);
  pinrail_handle_t held[2], refused;
  ASSERT_EQ(pool_->reg(at + kPage, kLong / 5, kWrite, &held[0]), PINRAIL_SUCCESS);
  ASSERT_EQ(pool_->reg(at + kLong / 2 + kPage, kLong / 5, kWrite, &held[1]), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->reg(at, kLong, kWrite, &refused), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_TRUE(becomes_registered(at, kLong, kWrite)) << "what was to make room is registered again";
  for (const pinrail_handle_t& each : held) {
    EXPECT_TRUE(is_indexed(each.reg));
    drop(each);
  }
  EXPECT_EQ(pool_->use(at, kLong, kWrite), PINRAIL_SUCCESS);
  munmap(at, kLong);
}

// R7: a part of it is registered, and that is less than what it lacks.
TEST_F(MrallMaker, a_request_that_cannot_be_met_costs_no_registration) {
  constexpr size_t kMuch = size_t{1} << 30;  // more than all else that is mapped
  char* const at = map_within(kMuch, kMuch / 2, {{"mpool_mrall_largest_piece", "1M"}});
  EXPECT_EQ(pool_->pinned(at, kMuch), PINRAIL_PINNED_PARTLY);
  EXPECT_EQ(pool_->use(at + kMuch / 16 * 7, kMuch / 2), PINRAIL_ERR_TEMP_OUT_OF_RESOURCE);
  EXPECT_EQ(pool_->stats().evictions, 0u);
  munmap(at, kMuch);
}

// A registrar may add rights to those that it is asked for.
TEST_F(MrallMaker, rights_that_a_device_adds_are_not_those_of_the_mapping) {
  device_->on_register([](const pinrail_register_request_t&, pinrail_registration_t* reg) { reg->rights |= kWrite; });
  const Mapping memory(kPage, PROT_READ);
  EXPECT_EQ(pool_->use(memory.base(), kPage), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(memory.base(), kPage, kWrite), PINRAIL_ERR_PERM);
  EXPECT_TRUE(comes_true([&] {
    const uint64_t calls = device_->register_calls();
    pool_->catch_up();
    return device_->register_calls() == calls;
  })) << "it registers for ever";
  EXPECT_EQ(pool_->pinned(memory.base(), kPage), PINRAIL_PINNED_WHOLLY);
}

// Maps so many whole granules and a page before and behind them, with nothing mapped beside. Returns the first granule.
char* map_beside_granules(size_t granules, size_t granule = kGranule) {
  auto* const room = static_cast<char*>(map((granules + 4) * granule, PROT_NONE));
  const uintptr_t second = (reinterpret_cast<uintptr_t>(room) / granule + 2) * granule;
  char* const first = room + (second - reinterpret_cast<uintptr_t>(room));
  munmap(room, (granules + 4) * granule);
  void* const at = mmap(first - kPage, granules * granule + 2 * kPage, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  EXPECT_EQ(at, first - kPage);
  return first;
}

TEST_F(MrallMaker, whole_granules_are_registered_where_the_registrar_takes_no_less) {
  start({}, fake::options_with(&fake::FakeOptions::granularity, kGranule));
  char* const first = map_beside_granules(4);
  EXPECT_TRUE(becomes_registered(first, 4 * kGranule, kWrite));
  EXPECT_EQ(pool_->use(first + 100, 3 * kGranule, kWrite), PINRAIL_SUCCESS);
  EXPECT_NE(pool_->use(first - kPage, kPage), PINRAIL_SUCCESS) << "its granule is mapped in part";
  pool_->catch_up();
  EXPECT_TRUE(pool_->leaves_out(first - kPage, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_FALSE(pool_->leaves_out(first, PINRAIL_LEFT_OUT_REFUSED));
  EXPECT_TRUE(pool_->leaves_out(first + 4 * kGranule, PINRAIL_LEFT_OUT_REFUSED));
  Oracle oracle;
  EXPECT_TRUE(oracle.agrees(*pool_)) << oracle.why;
  munmap(first - kPage, 4 * kGranule + 2 * kPage);
}

// Two mappings of different rights share a granule, which is registered when it is asked for.
TEST_F(MrallMaker, a_granule_of_two_mappings_has_what_both_permit) {
  start({}, fake::options_with(&fake::FakeOptions::granularity, kGranule));
  char* const first = map_beside_granules(4);
  mprotect(first, kGranule + kPage, PROT_READ);
  EXPECT_EQ(pool_->use(first + kGranule, kGranule), PINRAIL_SUCCESS);
  EXPECT_EQ(pool_->use(first + kGranule + kPage, kPage, kWrite), PINRAIL_ERR_PERM);
  EXPECT_EQ(pool_->use(first + 2 * kGranule, kGranule, kWrite), PINRAIL_SUCCESS);
  munmap(first - kPage, 4 * kGranule + 2 * kPage);
}

TEST_F(MrallMaker, a_device_without_atomics_is_known_by_whole_granules) {
  fake::FakeOptions fake;
  constexpr size_t kLarge = 128 * kPage;  // what the system maps is seldom aligned so by chance
  fake.granularity = kLarge;
  fake.refused_rights = PINRAIL_ACCESS_REMOTE_ATOMIC;
  start({}, fake);
  char* const first = map_beside_granules(2, kLarge);
  EXPECT_EQ(pool_->use(first, kLarge, kWrite), PINRAIL_SUCCESS);
  munmap(first - kPage, 2 * kLarge + 2 * kPage);
}

// A device that takes any range gets whole pages all the same, because events are about pages.
TEST_F(MrallMaker, requests_across_pieces_are_registered_in_whole_pages) {
  start({{"mpool_mrall_largest_piece", "64K"}, {"mpool_mrall_max_reg_size", "5000"}},
        fake::options_with(&fake::FakeOptions::granularity, 1));
  const Mapping memory(64 * kPage);
  EXPECT_TRUE(becomes_registered(memory.base(), 64 * kPage));
  pinrail_handle_t handle;
  ASSERT_EQ(pool_->reg(memory.base() + 10 * kPage + 100, 40 * kPage, kWrite, &handle), PINRAIL_SUCCESS);
  EXPECT_TRUE(span_of(handle.reg).contains(Span::of(memory.base() + 10 * kPage + 100, 40 * kPage)))
      << "one registration";
  drop(handle);
  for (const fake::FakeRecord& record : device_->live()) EXPECT_EQ((record.base | record.length) % kPage, 0u);
}

}  // namespace
}  // namespace pinrail::test
