// SPDX-License-Identifier: BSD-3-Clause
// compiler.h - what the compiler is told beside the code: likely branches, sanitizers, classes without copies.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_CORE_COMPILER_H
#define PINRAIL_BASE_CORE_COMPILER_H

// For functions that catch abi::__forced_unwind: the runtime binds that reference to no object, and
// UndefinedBehaviorSanitizer would report it.
#define PINRAIL_CATCHES_FORCED_UNWIND __attribute__((no_sanitize("undefined")))

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

// Tells the compiler which way a condition usually goes. The usual way then has no taken branch. A hit has some twenty
// conditions, and a processor takes about one branch in a cycle, so this counts on the hit path.
__attribute__((always_inline)) constexpr bool likely(bool condition) { return __builtin_expect(condition, true) != 0; }
__attribute__((always_inline)) constexpr bool unlikely(bool condition) {
  return __builtin_expect(condition, false) != 0;
}

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

#endif
