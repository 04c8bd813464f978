// SPDX-License-Identifier: BSD-3-Clause
// fork_reinit.h - objects with static storage duration: made on first use, and made again in a forked child.
//
// replace_in_child() constructs a new object over one that a forked child inherited. Another thread of the parent may
// have been changing the old object, so its members are not read and what it owns is not freed. Only the caller may
// know the object. It is called once, between gate::claim_child() and gate::open().
#ifndef PINRAIL_BASE_SYNC_FORK_REINIT_H
#define PINRAIL_BASE_SYNC_FORK_REINIT_H

#include <atomic>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

namespace pinrail {

// A copy of the old object's bytes, in which leak checkers find the pointers to what it owned.
struct AbandonedCopy {
  AbandonedCopy* next;
};
inline AbandonedCopy* abandoned_copies = nullptr;

// Keeps a copy of the old object and constructs a T over it. If there is no memory, the copy is left out, and a leak
// checker may report what the old object owned.
template <typename T, typename... Arguments>
void replace_in_child(T* object, Arguments&&... arguments) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): of structs, which may hold one pointer
  constexpr size_t kHead = sizeof(AbandonedCopy), kObject = sizeof(T);
  if (void* memory = ::operator new(kHead + kObject, std::nothrow)) {
    abandoned_copies = new (memory) AbandonedCopy{abandoned_copies};
    std::memcpy(static_cast<char*>(memory) + kHead, static_cast<const void*>(object), kObject);
  }
  new (object) T(std::forward<Arguments>(arguments)...);
}

// An object with static storage duration that is made on first use and never destroyed.
//
// exit() destroys objects with static storage duration while other threads still use them. So no such object of Pinrail
// has a destructor (R10): data that owns memory is kept in a Forever, which is one pointer that is initialised at
// compile time. Clang's -Wexit-time-destructors and -Wglobal-constructors are errors in the library and in the
// components.
//
// Threads  get() may be called by any thread. The object has the thread rules of T.
// Context  start-up or API; get() may allocate.
// Fork     If two threads make the object at once, one of the two is kept. So a forked child finds the whole object or
//          none, and replace_in_child() gives it a new one.

template <typename T>
class Forever {
 public:
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
