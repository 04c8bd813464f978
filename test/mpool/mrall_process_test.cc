// SPDX-License-Identifier: BSD-3-Clause
// mpool/mrall in threads, failures, forks and exits, and on real registrars; how it reads the mappings.
#include <sys/wait.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>

#include "test/mpool/mrall_under_test.h"
#include "test/support/mapping.h"
#include "test/support/tasks.h"
#include "test/support/team.h"

namespace pinrail::test {
namespace {

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
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(short_or_long(1, 2));
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
  expect_success_of(child);
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
