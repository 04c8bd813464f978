// SPDX-License-Identifier: BSD-3-Clause
// worker.h - one thread that allocates, frees, maps and unmaps at random, and lets a device see its memory.
//
// Each buffer is full of bytes that can be computed again from its seed and the place in it. What the device reads
// through a registration must be those bytes, and what it writes must be seen by the processor: a registration of pages
// that are no longer there shows itself.
//
// Threads  a Worker is one thread's; what they have in common is Shared.
#ifndef PINRAIL_TEST_INTERPOSE_WORKER_H
#define PINRAIL_TEST_INTERPOSE_WORKER_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

#include "test/interpose/watchdog.h"

namespace pinrail::interpose {

struct Tally {
  std::atomic<uint64_t> operations{0}, bytes_verified{0};
  std::atomic<uint64_t> differences{0};            // transfers with a wrong byte
  std::atomic<uint64_t> differences_in_window{0};  // the same, while another runtime's patches may lie over ours
  std::atomic<uint64_t> failures{0};               // calls that failed
  std::atomic<uint64_t> events_missed{0};          // munmap calls that the peer was not told of
};

// Memory on its way from one thread to another, which frees it.
struct Block {
  unsigned char* base = nullptr;
  size_t length = 0;
  uint64_t seed = 0;
  bool is_mapped = false;  // by mmap; else by malloc
};

struct Shared {
  pinrail_mpool_t* pool = nullptr;
  Tally tally;
  std::atomic<bool> stop{false};
  std::atomic<bool> peer_is_there{false};  // and must see every munmap
  std::atomic<bool> in_window{false};
  bool device_writes = true;
  bool hangs = false;  // shows the watchdog
  static constexpr size_t kExchange = 16;
  std::atomic<Block*> exchange[kExchange] = {};
};

class Worker {
 public:
  Worker(Shared* shared, Beat* beat, uint64_t seed) : shared_(*shared), beat_(*beat), random_(seed) {}
  void run();

 private:
  void step();
  Block* new_block();
  void end(Block* block);
  void reallocate(Block* block);
  void drop_pages(Block* block);
  void let_device_read(const Block& block);
  void let_device_write(Block* block);
  bool enter(const Block& block, pinrail_handle_t* handle_out, size_t* offset_out);
  void fail(const char* what, pinrail_status_t status);
  void count_difference();
  size_t random_length();

  Shared& shared_;
  Beat& beat_;
  std::mt19937_64 random_;
  static constexpr size_t kBlocks = 24;
  Block* blocks_[kBlocks] = {};
  std::vector<unsigned char> scratch_;
};

}  // namespace pinrail::interpose

#endif
