// SPDX-License-Identifier: BSD-3-Clause
#include "test/integrity/integrity.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>

namespace pinrail::test {
namespace {

using Clock = std::chrono::steady_clock;
using Random = std::mt19937_64;

constexpr uint32_t kAccess[] = {
    PINRAIL_ACCESS_LOCAL_WRITE | PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE,
    PINRAIL_RIGHTS_MASK,
    PINRAIL_ACCESS_REMOTE_READ | PINRAIL_ACCESS_REMOTE_WRITE,
};

struct Piece {
  size_t offset;
  size_t length;
};

// Mostly short, sometimes all of it.
Piece random_piece(Random* random, size_t bytes) {
  size_t most = bytes;
  for (uint64_t halvings = (*random)() % 8; halvings > 0 && most > 1; --halvings) most /= 2;
  const size_t length = 1 + (*random)() % most;
  return {(*random)() % (bytes - length + 1), length};
}

void randomise(Random* random, unsigned char* bytes, size_t length) {
  uint64_t word = 0;
  for (size_t i = 0; i < length; ++i) {
    if (i % 8 == 0) word = (*random)();
    bytes[i] = static_cast<unsigned char>(word >> (8 * (i % 8)));
  }
}

void map_at(unsigned char* at, size_t length) {
  void* mapped = mmap(at, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (mapped != at) std::abort();
  madvise(at, length, MADV_NOHUGEPAGE);
}

}  // namespace

struct Integrity::Region {
  std::shared_mutex mutex;  // shared: reading through the device; exclusive: everything that changes bytes
  unsigned char* memory = nullptr;
  std::vector<unsigned char> shadow;
};

// One thread's work.
class Integrity::Worker {
 public:
  Worker(Integrity* test, Tally* tally, uint64_t seed) : test_(*test), tally_(*tally), random_(seed) {
    scratch_.resize(test->plan_.region_bytes);
  }

  void work_until(Clock::time_point end) {
    while (Clock::now() < end) step();
    while (!held_.empty()) drop_oldest();
  }

 private:
  void step() {
    Region& region = *test_.regions_[random_() % test_.regions_.size()];
    const unsigned die = random_() % 100;
    const unsigned frees = test_.plan_.free_percent;
    if (die < frees) {
      free_and_map_again(&region);
    } else if (die < frees + 8) {
      write_with_processor(&region);
    } else if (die < frees + 36) {
      write_with_device(&region);
    } else {
      read_with_device(&region);
    }
    ++tally_.operations;
  }

  bool enter(const Region& region, const Piece& piece, pinrail_handle_t* handle_out, size_t* offset_out) {
    const uint32_t access = kAccess[random_() % (sizeof(kAccess) / sizeof(kAccess[0]))];
    unsigned char* const addr = region.memory + piece.offset;
    const pinrail_status_t status = pinrail_mpool_register(test_.pool_, addr, piece.length, access, 0, handle_out);
    if (status != PINRAIL_SUCCESS) return fail("register", status);
    const pinrail_registration_t& reg = *handle_out->reg;
    auto* const base = static_cast<unsigned char*>(reg.base);
    const bool covers = base <= addr && addr + piece.length <= base + reg.length && (reg.rights & access) == access;
    *offset_out = static_cast<size_t>(addr - base);
    if (covers) return true;
    leave(*handle_out);
    return fail("register: a registration that does not cover the request", PINRAIL_ERR_ERROR);
  }

  void leave(pinrail_handle_t handle) {
    const pinrail_status_t status = pinrail_mpool_deregister(handle);
    if (status != PINRAIL_SUCCESS) fail("deregister", status);
  }

  // Keeps some handles for a while, so that their memory may go under them.
  void leave_now_or_later(pinrail_handle_t handle) {
    if (test_.plan_.held == 0 || random_() % 16 != 0) return leave(handle);
    held_.push_back(handle);
    if (held_.size() > test_.plan_.held) drop_oldest();
  }

  void drop_oldest() {
    leave(held_.front());
    held_.pop_front();
  }

  void read_with_device(Region* region) {
    const std::shared_lock<std::shared_mutex> lock(region->mutex);
    const Piece piece = random_piece(&random_, test_.plan_.region_bytes);
    pinrail_handle_t handle{};
    size_t offset = 0;
    if (!enter(*region, piece, &handle, &offset)) return;
    const pinrail_status_t status = test_.mover_->read(handle, offset, scratch_.data(), piece.length);
    leave_now_or_later(handle);
    if (status != PINRAIL_SUCCESS) {
      fail("device read", status);
      return;
    }
    compare(scratch_.data(), region->shadow.data() + piece.offset, piece.length);
  }

  void write_with_device(Region* region) {
    const std::unique_lock<std::shared_mutex> lock(region->mutex);
    const Piece piece = random_piece(&random_, test_.plan_.region_bytes);
    pinrail_handle_t handle{};
    size_t offset = 0;
    if (!enter(*region, piece, &handle, &offset)) return;
    unsigned char* const shadow = region->shadow.data();
    randomise(&random_, shadow + piece.offset, piece.length);
    const pinrail_status_t status = test_.mover_->write(handle, offset, shadow + piece.offset, piece.length);
    leave_now_or_later(handle);
    if (status != PINRAIL_SUCCESS) fail("device write", status);
    // The whole region: nothing beside the piece may have changed either.
    if (!compare(region->memory, shadow, test_.plan_.region_bytes)) {
      std::memcpy(shadow, region->memory, test_.plan_.region_bytes);
    }
  }

  void write_with_processor(Region* region) {
    const std::unique_lock<std::shared_mutex> lock(region->mutex);
    const Piece piece = random_piece(&random_, test_.plan_.region_bytes);
    randomise(&random_, region->shadow.data() + piece.offset, piece.length);
    std::memcpy(region->memory + piece.offset, region->shadow.data() + piece.offset, piece.length);
  }

  // All of a region, or some pages of it.
  void free_and_map_again(Region* region) {
    const std::unique_lock<std::shared_mutex> lock(region->mutex);
    const size_t page = 4096;
    Piece piece{0, test_.plan_.region_bytes};
    if (random_() % 2 == 0) {
      piece = random_piece(&random_, test_.plan_.region_bytes / page);
      piece = {piece.offset * page, piece.length * page};
    }
    unsigned char* const at = region->memory + piece.offset;
    if (test_.plan_.reports) pinrail_monitor_report(at, piece.length);
    if (munmap(at, piece.length) != 0) std::abort();
    map_at(at, piece.length);
    randomise(&random_, region->shadow.data() + piece.offset, piece.length);
    std::memcpy(at, region->shadow.data() + piece.offset, piece.length);
    ++tally_.frees;
  }

  bool compare(const unsigned char* got, const unsigned char* want, size_t length) {
    tally_.bytes_verified += length;
    const bool equal = std::memcmp(got, want, length) == 0;
    if (!equal) ++tally_.differences;
    return equal;
  }

  bool fail(const char* what, pinrail_status_t status) {
    constexpr uint64_t kShown = 5;
    if (tally_.failures++ < kShown) std::fprintf(stderr, "%s: %s\n", what, pinrail_status_name(status));
    return false;
  }

  Integrity& test_;
  Tally& tally_;
  Random random_;
  std::vector<unsigned char> scratch_;
  std::deque<pinrail_handle_t> held_;
};

Integrity::Integrity(pinrail_mpool_t* pool, Mover* mover, const Plan& plan) : pool_(pool), mover_(mover), plan_(plan) {
  const size_t bytes = plan.regions * plan.region_bytes;
  void* reserved = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) std::abort();
  memory_ = static_cast<unsigned char*>(reserved);
  munmap(memory_, bytes);
  map_at(memory_, bytes);
  Random random(plan.seed);
  for (size_t i = 0; i < plan.regions; ++i) {
    auto region = std::make_unique<Region>();
    region->memory = memory_ + i * plan.region_bytes;
    region->shadow.resize(plan.region_bytes);
    randomise(&random, region->shadow.data(), plan.region_bytes);
    std::memcpy(region->memory, region->shadow.data(), plan.region_bytes);
    regions_.push_back(std::move(region));
  }
}

Integrity::~Integrity() {
  const size_t bytes = plan_.regions * plan_.region_bytes;
  if (plan_.reports) pinrail_monitor_report(memory_, bytes);
  munmap(memory_, bytes);
}

void Integrity::run(Tally* tally) {
  const auto end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(plan_.seconds));
  std::vector<std::thread> threads;
  for (size_t i = 0; i < plan_.threads; ++i) {
    threads.emplace_back([this, tally, end, i] { Worker(this, tally, plan_.seed + 1000 * (i + 1)).work_until(end); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace pinrail::test
