// SPDX-License-Identifier: BSD-3-Clause
// select_if_equal.h - which of two entries of a hash table is the wanted one, when nobody can predict that? Chosen
// without a branch, for a wrong guess would cost as much as all the rest of a hit.
//
// Threads  at any time; the word may change meanwhile.
#ifndef PINRAIL_BASE_CORE_SELECT_IF_EQUAL_H
#define PINRAIL_BASE_CORE_SELECT_IF_EQUAL_H

#include <cstdint>
#include <type_traits>

#include "base/core/sanitizer.h"

namespace pinrail {

// The other one, if its word is the wanted one; else entry. acquire: pairs with whoever stored the word.
template <typename Entry, typename Word>
__attribute__((always_inline)) inline Entry* select_if_equal(Entry* entry, Entry* other, const Word* others_word,
                                                             Word wanted) {
  static_assert(std::is_same_v<Word, uint32_t> || std::is_same_v<Word, uint64_t>, "what one instruction compares");
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  // The very two instructions: compilers load what is atomic on its own first, or branch. An aligned read is whole, and
  // reads stay in order here. The register says how wide it is.
  asm("cmp %1, %2\n\tcmove %3, %0" : "+r"(entry) : "m"(*others_word), "r"(wanted), "r"(other) : "cc");
  return entry;
#else
  return __atomic_load_n(others_word, __ATOMIC_ACQUIRE) == wanted ? other : entry;
#endif
}

}  // namespace pinrail

#endif
