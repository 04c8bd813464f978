// SPDX-License-Identifier: BSD-3-Clause
// forever.h - an object with static storage duration that is made on first use and never destroyed.
//
// exit() destroys objects with static storage duration while other threads still use them. So no such object of Pinrail
// has a destructor (R10): data that owns memory is kept in a Forever, which is one pointer that is initialised at
// compile time. Clang's -Wexit-time-destructors and -Wglobal-constructors are errors in the library and in the
// components.
//
// Threads  get() may be called by any thread. The object has the thread rules of T.
// Context  start-up or API; get() may allocate.
// Fork     If two threads make the object at once, one of the two is kept. So a forked child finds the whole object or
//          none, and replace_in_child() (fork_reinit.h) gives it a new one.
#ifndef PINRAIL_BASE_CORE_FOREVER_H
#define PINRAIL_BASE_CORE_FOREVER_H

#include <atomic>
#include <type_traits>

namespace pinrail {

template <typename T>
class Forever {
 public:
  constexpr Forever() = default;

  // Throws bad_alloc if the object cannot be made.
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
    // release: the object is complete before other threads see it; pairs with the acquire in get(). acquire, if the
    // exchange fails: the other thread's object is complete.
    if (object_.compare_exchange_strong(first, made, std::memory_order_acq_rel)) return *made;
    delete made;
    return *first;
  }

  std::atomic<T*> object_{nullptr};
  static_assert(std::is_trivially_destructible_v<std::atomic<T*>>, "that is what it is for");
};

}  // namespace pinrail

#endif
