// SPDX-License-Identifier: BSD-3-Clause
// select.h - branchless selects between two candidates: entries of a hash table, halves of a sorted node.
//
// Which of the two it is cannot be predicted, and a mispredicted branch would cost as much as the rest of a hit.
//
// Threads  Any; the word may change meanwhile.
// Hook     May be called in a hook.
#ifndef PINRAIL_BASE_CORE_SELECT_H
#define PINRAIL_BASE_CORE_SELECT_H

#include <cstdint>
#include <type_traits>

#include "base/core/sanitizer.h"

namespace pinrail {

// Returns `other` if *others_word equals `wanted`, else `entry`. acquire: pairs with the store of the word by the
// table's writer.
template <typename Entry, typename Word>
__attribute__((always_inline)) inline Entry* select_if_equal(Entry* entry, Entry* other, const Word* others_word,
                                                             Word wanted) {
  static_assert(std::is_same_v<Word, uint32_t> || std::is_same_v<Word, uint64_t>, "what one instruction compares");
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  // Two fixed instructions: from C++ code compilers load the atomic word separately, or branch. On x86 an aligned load
  // is atomic, and loads are not reordered with later loads. The register operand sets the width of the comparison.
  asm("cmp %1, %2\n\tcmove %3, %0" : "+r"(entry) : "m"(*others_word), "r"(wanted), "r"(other) : "cc");
  return entry;
#else
  return __atomic_load_n(others_word, __ATOMIC_ACQUIRE) == wanted ? other : entry;
#endif
}

// Returns `other` if *word is at most `key`, else `entry`. acquire: pairs with the store of the word by its writer;
// what comes after it is not read before.
template <typename Entry>
__attribute__((always_inline)) inline Entry* select_if_at_most(Entry* entry, Entry* other, const uint64_t* word,
                                                               uint64_t key) {
#if defined(__x86_64__) && !defined(PINRAIL_UNDER_THREAD_SANITIZER)
  asm("cmp %1, %2\n\tcmovae %3, %0" : "+r"(entry) : "m"(*word), "r"(key), "r"(other) : "cc", "memory");
  return entry;
#else
  return __atomic_load_n(word, __ATOMIC_ACQUIRE) <= key ? other : entry;
#endif
}

}  // namespace pinrail

#endif
