// SPDX-License-Identifier: BSD-3-Clause
// worker.h - one thread that allocates, frees, maps and unmaps at random, and lets a device see its memory;
// the watchdog of such threads, and other runtimes with hooks.
//
// Each buffer is full of bytes that can be computed again from its seed and the place in it. What the device reads
// through a registration must be those bytes, and what it writes must be seen by the processor: a registration of pages
// that are no longer there shows itself.
//
// Threads  a Worker is one thread's; what they have in common is Shared.
#ifndef PINRAIL_TEST_INTERPOSE_WORKER_H
#define PINRAIL_TEST_INTERPOSE_WORKER_H

#include <pinrail/pinrail.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace pinrail::interpose {

// Threads that get no further: where they stand is printed, and the program fails.
//
// Threads  each working thread has a Beat of its own and writes it; one thread calls look().

struct alignas(128) Beat {
  std::atomic<uint64_t> count{0};
  std::atomic<const char*> doing{"starting"};
  std::atomic<pid_t> thread{0};
  std::atomic<bool> done{false};
};

constexpr int kStuckStatus = 3;

class Watchdog {
 public:
  // patience_s: a thread whose count stands still for so long is stuck.
  Watchdog(std::vector<Beat>* beats, unsigned patience_s);
  // Once a second. Does not return if a thread is stuck: the program ends with kStuckStatus.
  void look();

 private:
  [[noreturn]] void give_up(size_t stuck);

  std::vector<Beat>& beats_;
  const unsigned patience_s_;
  std::vector<uint64_t> last_;
  std::vector<unsigned> still_s_;
};

// Another runtime with memory hooks in the same process: Debian's UCX or Open MPI, loaded when asked.
//
// Threads  load_peer() once, while others work. expect() and missed() are each thread's own.

enum class Peer : uint8_t { none, ucx, openmpi };

// Loads it, installs its hooks and asks it for events. False and the reason.
bool load_peer(Peer peer, std::string* why_out);
// From where munmap() leads to it: it has patched.
uint64_t peer_events();

// Between the two the peer must have told of all of the range, on this thread.
void expect_event(const void* base, size_t length);
bool event_came();

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
