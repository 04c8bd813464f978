// SPDX-License-Identifier: BSD-3-Clause
// integrity.h - does the device always see the memory that the process has? Random work over a pool, every byte
// compared with a shadow that no device knows.
//
// Owns     the memory, in regions side by side, and the shadow of each.
// Threads  run() starts its own and waits for them.
//
// Work is: registering a random range of a region, moving bytes through it in either direction, writing with the
// processor, and freeing a region (reported first, unless the plan says not to) and mapping it again at the same
// address with other contents. Some handles are held while their region is freed. Readers of a region run together;
// what changes it excludes them.
#ifndef PINRAIL_TEST_INTEGRITY_INTEGRITY_H
#define PINRAIL_TEST_INTEGRITY_INTEGRITY_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <shared_mutex>
#include <vector>

namespace pinrail::test {

// Moves bytes between a registration, as the device sees it, and ordinary memory. Offsets from the registration's
// base. Called by several threads at once.
class Mover {
 public:
  virtual ~Mover() = default;
  virtual pinrail_status_t read(pinrail_handle_t handle, size_t offset, void* into, size_t length) = 0;
  virtual pinrail_status_t write(pinrail_handle_t handle, size_t offset, const void* from, size_t length) = 0;
};

struct Plan {
  size_t regions = 64;
  size_t region_bytes = size_t{256} << 10;  // multiple of the page size
  size_t threads = 4;
  double seconds = 2;
  uint64_t seed = 1;
  unsigned free_percent = 4;  // of the operations
  size_t held = 2;            // handles that a thread keeps for a while, at most
  bool reports = true;        // false: freed memory is not reported, so a cache must go wrong
};

// All counts of one run. A wrong byte ends its operation; the shadow is then made equal to the memory.
struct Tally {
  std::atomic<uint64_t> operations{0};
  std::atomic<uint64_t> bytes_verified{0};
  std::atomic<uint64_t> frees{0};
  std::atomic<uint64_t> differences{0};  // operations through which wrong bytes were seen
  std::atomic<uint64_t> failures{0};     // calls that failed, or registrations that do not cover what was asked
};

class Integrity {
 public:
  Integrity(pinrail_mpool_t* pool, Mover* mover, const Plan& plan);
  ~Integrity();
  Integrity(const Integrity&) = delete;
  Integrity& operator=(const Integrity&) = delete;

  void run(Tally* tally);

 private:
  struct Region;
  class Worker;

  pinrail_mpool_t* const pool_;
  Mover* const mover_;
  const Plan plan_;
  unsigned char* memory_ = nullptr;
  std::vector<std::unique_ptr<Region>> regions_;
};

}  // namespace pinrail::test

#endif
