// SPDX-License-Identifier: BSD-3-Clause
// pool_counts.h - what a pool counts in API context. Each of the first 511 threads has a line of its own, which no
// other thread writes; those that come after them share one.
//
// Owns     nothing: the memory is the pool's recorder's (framework/mpool/recorder.h).
// Threads  all functions at any time, after use(). API context.
#ifndef PINRAIL_BASE_HIT_POOL_COUNTS_H
#define PINRAIL_BASE_HIT_POOL_COUNTS_H

#include <pinrail/figures.h>

#include <cstddef>
#include <cstdint>

#include "base/core/compiler.h"
#include "base/registration/thread.h"

namespace pinrail {

class PoolCounts {
 public:
  using Line = pinrail_figures_counts_t;
  // Threads with a lower index have a line of their own; the others share the last one.
  static constexpr uint32_t kAlone = thread::kThreadsWithOwnCounters;
  static constexpr size_t kBytes = (kAlone + 1) * sizeof(Line);

  // Counts in this memory: kBytes that are 0.
  void use(void* memory) { lines_ = static_cast<Line*>(memory); }

  void add_hit(const pinrail_thread_t* thread) {
    add(thread, [](Line* line, auto&& count) { count(&line->hits, 1); });
  }
  void add_miss(const pinrail_thread_t* thread, uint32_t reason) {
    add(thread, [reason](Line* line, auto&& count) { count(&line->misses[reason % 16], 1); });
  }
  // A registrar's call took so long; what it has registered.
  void add_registered(const pinrail_thread_t* thread, uint64_t bytes, uint64_t ns) {
    add(thread, [bytes, ns](Line* line, auto&& count) {
      count(&line->registered, 1);
      count(&line->registered_bytes, bytes);
      count(&line->registrar_ns, ns);
    });
  }
  void add_refused(const pinrail_thread_t* thread, uint64_t ns) {
    add(thread, [ns](Line* line, auto&& count) { count(&line->registrar_ns, ns); });
  }
  void add_released(const pinrail_thread_t* thread, uint32_t reason, uint64_t bytes, uint64_t ns) {
    add(thread, [reason, bytes, ns](Line* line, auto&& count) {
      count(&line->released[reason % 4], 1);
      count(&line->released_bytes, bytes);
      count(&line->registrar_ns, ns);
    });
  }

  // Each number is right by itself.
  Line sum() const {
    Line all{};
    auto* const words = reinterpret_cast<uint64_t*>(&all);
    for (uint32_t i = 0; i <= kAlone; ++i) {
      const auto* const line = reinterpret_cast<const uint64_t*>(&lines_[i]);
      for (size_t word = 0; word < sizeof(Line) / sizeof(uint64_t); ++word) {
        words[word] += __atomic_load_n(&line[word], __ATOMIC_RELAXED);
      }
    }
    return all;
  }

 private:
  // Called by the one thread that writes the number. relaxed, without a read-modify-write: no decision depends on it.
  __attribute__((always_inline)) static void raise_alone(uint64_t* number, uint64_t amount) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
    // The same as below, which compilers make three instructions of.
    asm("addq %1, %0" : "+m"(*number) : "er"(amount) : "cc");
#else
    __atomic_store_n(number, __atomic_load_n(number, __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
#endif
  }

  // Passes the thread's line, and how one of its numbers is raised, to what counts.
  template <typename Counting>
  void add(const pinrail_thread_t* thread, Counting&& counting) {
    if (likely(thread->index < kAlone)) {
      counting(&lines_[thread->index], [](uint64_t* number, uint64_t amount) { raise_alone(number, amount); });
    } else {
      counting(&lines_[kAlone],
               [](uint64_t* number, uint64_t amount) { __atomic_fetch_add(number, amount, __ATOMIC_RELAXED); });
    }
  }

  Line* lines_ = nullptr;
};

}  // namespace pinrail

#endif
