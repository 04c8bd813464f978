// SPDX-License-Identifier: BSD-3-Clause
// judge.h - compares what the device saw with what the processor sees, and keeps the counts of a run.
//
// Threads  all functions together.
#ifndef PINRAIL_TEST_ORACLE_JUDGE_H
#define PINRAIL_TEST_ORACLE_JUDGE_H

#include <atomic>
#include <cstdint>
#include <string>

#include "test/oracle/buffers.h"

namespace pinrail::oracle {

enum class Direction : uint8_t { device_reads, device_writes };

class Judge {
 public:
  // One more operation, through which length bytes were compared. Prints the first few differences. True: the bytes
  // are the same.
  bool compare(Buffer* buffer, const Piece& piece, const unsigned char* device, const unsigned char* processor,
               Direction direction);
  void failed(const char* what, const std::string& why);                               // a call that must not fail
  void compared(size_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }  // relaxed: a count
  void differed(const char* what, const std::string& how);                             // outside of the buffers
  void refused() { ++refused_; }  // TEMP_OUT_OF_RESOURCE: others hold what is needed
  // A range was pinned; whether all of it was registered then.
  void pinned(bool is_registered) {
    pins_.fetch_add(1, std::memory_order_relaxed);  // relaxed: counts
    if (is_registered) registered_pins_.fetch_add(1, std::memory_order_relaxed);
  }
  void did_something() { operations_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: a count

  uint64_t operations() const { return operations_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t differences() const { return differences_; }
  uint64_t failures() const { return failures_; }
  uint64_t refusals() const { return refused_; }
  uint64_t pins() const { return pins_; }
  uint64_t registered_pins() const { return registered_pins_; }

 private:
  std::atomic<uint64_t> operations_{0}, bytes_{0}, differences_{0}, failures_{0}, refused_{0}, pins_{0},
      registered_pins_{0};
};

}  // namespace pinrail::oracle

#endif
