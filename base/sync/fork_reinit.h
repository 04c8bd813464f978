// SPDX-License-Identifier: BSD-3-Clause
// fork_reinit.h - constructs a new object over one that a forked child inherited. Another thread of the parent may have
// been changing the old object, so its members are not read and what it owns is not freed.
//
// Threads  Only the caller may know the object.
// Context  in a forked child, once, between gate::claim_child() and gate::open().
#ifndef PINRAIL_BASE_SYNC_FORK_REINIT_H
#define PINRAIL_BASE_SYNC_FORK_REINIT_H

#include <cstring>
#include <new>
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

}  // namespace pinrail

#endif
