// SPDX-License-Identifier: BSD-3-Clause
// forever.h - an object with static storage duration that is made on first use and never destroyed.
//
// exit() destroys objects with static storage duration while other threads still use them. So none of ours has a
// destructor (R10): what owns memory stands in a Forever, which is one pointer, initialised at compile time. Clang's
// -Wexit-time-destructors and -Wglobal-constructors are errors in the library and in the components.
//
// Threads  get() any. What it returns has the thread rules of T.
// Fork     Two threads may both make the object; one of them keeps it. So a forked child finds all of it or nothing,
//          and replace_in_child() (fork_reinit.h) gives it a new one.
#ifndef PINRAIL_BASE_CORE_FOREVER_H
#define PINRAIL_BASE_CORE_FOREVER_H

#include <atomic>
#include <type_traits>

namespace pinrail {

template <typename T>
class Forever {
 public:
  constexpr Forever() = default;

  // Throws bad_alloc if there is no memory to make it.
  T& get() {
    // acquire: pairs with the release in make().
    T* const object = object_.load(std::memory_order_acquire);
    return object != nullptr ? *object : make();
  }
  T* operator->() { return &get(); }
  T& operator*() { return get(); }

 private:
  __attribute__((noinline, cold)) T& make() {
    T* const made = new T();
    T* first = nullptr;
    // release: the object is whole before others see it.
    if (object_.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *first;
  }

  std::atomic<T*> object_{nullptr};
  static_assert(std::is_trivially_destructible_v<std::atomic<T*>>, "that is what it is for");
};

}  // namespace pinrail

#endif
