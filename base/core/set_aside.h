// SPDX-License-Identifier: BSD-3-Clause
// set_aside.h - a new object in the place of one that is not to be trusted: in a forked child another thread of the
// parent may have been in the middle of it, so nothing of it is looked at, and nothing that it owns is given back.
//
// Threads  none but the caller knows the object. In a child, once, between gate::claim_child() and gate::open().
#ifndef PINRAIL_BASE_CORE_SET_ASIDE_H
#define PINRAIL_BASE_CORE_SET_ASIDE_H

#include <cstring>
#include <new>
#include <utility>

namespace pinrail {

// The old one's bytes, kept where tools that look for leaks find what it owned.
struct Remains {
  Remains* next;
};
inline Remains* remains = nullptr;

template <typename T, typename... Arguments>
void make_anew(T* object, Arguments&&... arguments) {
  // NOLINTNEXTLINE(bugprone-sizeof-expression): of structs, which may hold one pointer
  constexpr size_t kHead = sizeof(Remains), kObject = sizeof(T);
  if (void* memory = ::operator new(kHead + kObject, std::nothrow)) {
    remains = new (memory) Remains{remains};
    std::memcpy(static_cast<char*>(memory) + kHead, static_cast<const void*>(object), kObject);
  }
  new (object) T(std::forward<Arguments>(arguments)...);
}

}  // namespace pinrail

#endif
