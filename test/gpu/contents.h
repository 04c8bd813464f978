// SPDX-License-Identifier: BSD-3-Clause
// contents.h - what stands in an allocation of that round: every 8 bytes are another number in every other round.
#ifndef PINRAIL_TEST_GPU_CONTENTS_H
#define PINRAIL_TEST_GPU_CONTENTS_H

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pinrail::gpu_test {

inline uint64_t word_of(uint64_t round, size_t index) { return (round << 32 | index) * 0x9E3779B97F4A7C15u; }

// bytes is a multiple of 8.
inline void fill(std::vector<uint64_t>* words, uint64_t round, size_t bytes) {
  words->resize(bytes / sizeof(uint64_t));
  for (size_t i = 0; i < words->size(); ++i) (*words)[i] = word_of(round, i);
}

// How many of the words, which begin at that index of the allocation, are not that round's.
inline size_t strangers(const std::vector<uint64_t>& words, uint64_t round, size_t first) {
  size_t count = 0;
  for (size_t i = 0; i < words.size(); ++i) count += words[i] != word_of(round, first + i) ? 1 : 0;
  return count;
}

}  // namespace pinrail::gpu_test

#endif
