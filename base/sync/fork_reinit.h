// SPDX-License-Identifier: BSD-3-Clause
// fork_reinit.h - a new object in the place of one that is not to be trusted: in a forked child another thread of the
// parent may have been in the middle of it, so nothing of it is looked at, and nothing that it owns is given back.
//
// Threads  none but the caller knows the object. In a child, once, between gate::claim_child() and gate::open().
#ifndef PINRAIL_BASE_SYNC_FORK_REINIT_H
#define PINRAIL_BASE_SYNC_FORK_REINIT_H

#include <cstring>
#include <new>
#include <utility>

namespace pinrail {

// The old one's bytes, kept where tools that look for leaks find what it owned.
struct AbandonedCopy {
  AbandonedCopy* next;
};
inline AbandonedCopy* abandoned_copies = nullptr;

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
