// SPDX-License-Identifier: BSD-3-Clause
// watchdog.h - threads that get no further: where they stand is printed, and the program fails.
//
// Threads  each working thread has a Beat of its own and writes it; one thread calls look().
#ifndef PINRAIL_TEST_INTERPOSE_WATCHDOG_H
#define PINRAIL_TEST_INTERPOSE_WATCHDOG_H

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <vector>

namespace pinrail::interpose {

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

}  // namespace pinrail::interpose

#endif
