// SPDX-License-Identifier: BSD-3-Clause
// mrall_and_odp.h - pools of mpool/mrall and mpool/odp on a registrar of our own, and what /proc/self/maps says beside
// them.
#ifndef PINRAIL_TEST_MPOOL_MRALL_AND_ODP_H
#define PINRAIL_TEST_MPOOL_MRALL_AND_ODP_H

#include <pinrail/listing.h>
#include <pinrail/pin.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/registration/registration.h"
#include "components/mpool/mrall/mrall.h"
#include "test/support/library.h"
#include "test/support/threads.h"

namespace pinrail::test {

constexpr uint32_t kRead = PINRAIL_ACCESS_REMOTE_READ;
constexpr uint32_t kWrite = PINRAIL_ACCESS_REMOTE_WRITE | PINRAIL_ACCESS_LOCAL_WRITE;

inline void* map(size_t length, int protection = PROT_READ | PROT_WRITE) {
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
  explicit MrallPool(const fake::FakeRegistrar& device, const PoolOptions& options = {})
      : MrallPool(lend(device), options) {}
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

class Mrall : public OnePool<MrallPool> {
 protected:
  void SetUp() override {
    if (kUnderSanitizer) GTEST_SKIP() << "the patcher alone does not see what a sanitizer unmaps";
    start();
  }
  void start(const Settings& settings = {}, const fake::FakeOptions& fake = {}, const PoolOptions& options = {}) {
    make(with({{"monitor", "patcher"}, {"mpool_mrall_rescan", "0"}}, settings), fake, options);
  }
  bool becomes_registered(const void* at, size_t length, uint32_t access = kRead) const {
    return comes_true([&] { return pool_->pinned(at, length, access) == PINRAIL_PINNED_WHOLLY; });
  }
};

// A pool of mpool/odp on a registrar of our own.

constexpr size_t kTile = size_t{1} << 20;
constexpr uintptr_t kBase = uintptr_t{1} << 40;  // nothing is mapped there, which does not matter

inline fake::FakeOptions paging(uint64_t how = PINRAIL_ON_DEMAND_EXPLICIT) {
  fake::FakeOptions options;
  options.on_demand = how;
  return options;
}

class OdpPool : public Pool {
 public:
  explicit OdpPool(const pinrail_registrar_t& table, const PoolOptions& options = {})
      : Pool(lend(table), {PINRAIL_UNSET, options.size_limit, options.count_limit, options.flags, options.cache_name},
             "odp", kRead) {}
  explicit OdpPool(const fake::FakeRegistrar& device, const PoolOptions& options = {})
      : OdpPool(*device.table(), options) {}
};

class Odp : public OnePool<OdpPool> {
 protected:
  void SetUp() override { start(); }
  void start(const fake::FakeOptions& fake = paging(), const PoolOptions& options = {}, const Settings& settings = {}) {
    make(with({{"monitor", "none"}, {"mpool_odp_tile_size", "1M"}}, settings), fake, options);
  }
};

}  // namespace pinrail::test

#endif
