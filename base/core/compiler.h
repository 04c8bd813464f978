// SPDX-License-Identifier: BSD-3-Clause
// compiler.h - what the compiler is told beside the code: likely branches, sanitizers, classes without copies; counters
// for statistics.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_COMPILER_H
#define PINRAIL_BASE_CORE_COMPILER_H

#include <cstdint>

namespace pinrail {

// Tells the compiler which way a condition usually goes. The usual way then has no taken branch. A hit has some twenty
// conditions, and a processor takes about one branch in a cycle, so this counts on the hit path.
__attribute__((always_inline)) constexpr bool likely(bool condition) { return __builtin_expect(condition, true) != 0; }
__attribute__((always_inline)) constexpr bool unlikely(bool condition) {
  return __builtin_expect(condition, false) != 0;
}

}  // namespace pinrail

// For functions that catch abi::__forced_unwind: the runtime binds that reference to no object, and
// UndefinedBehaviorSanitizer would report it.
#if defined(__clang__) || defined(__GNUC__)
#define PINRAIL_CATCHES_FORCED_UNWIND __attribute__((no_sanitize("undefined")))
#else
#define PINRAIL_CATCHES_FORCED_UNWIND
#endif

// Defined under ThreadSanitizer, which must see each access: code with accesses in inline assembly has a plain variant
// then.
#if defined(__SANITIZE_THREAD__)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PINRAIL_UNDER_THREAD_SANITIZER 1
#endif
#endif

namespace pinrail {

// A base of classes whose objects are not copied, such as those that undo something at a scope's end.
// A class with a member that cannot be copied needs it not.
class NonCopyable {
 public:
  NonCopyable(const NonCopyable&) = delete;
  NonCopyable& operator=(const NonCopyable&) = delete;

 protected:
  NonCopyable() = default;
  ~NonCopyable() = default;
};

}  // namespace pinrail

namespace pinrail::stat_counter {

// Counters for statistics. No decision depends on them.
//
// Threads  One thread increments a counter; any thread may read it.
// Context  any; no lock.

// Called by the one thread that writes the counter. relaxed, without a read-modify-write: no other data depends on it.
__attribute__((always_inline)) inline void add(uint64_t* counter, uint64_t amount) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  // The same as below, which compilers make three instructions of.
  asm("addq %1, %0" : "+m"(*counter) : "er"(amount) : "cc");
#else
  __atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + amount, __ATOMIC_RELAXED);
#endif
}

}  // namespace pinrail::stat_counter

#endif
