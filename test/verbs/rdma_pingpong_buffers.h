// SPDX-License-Identifier: BSD-3-Clause
// rdma_pingpong_buffers.h - the memory of the messages of one length, and what stands in it.
//
// Owns     the memory that is kept; of fresh memory, what was taken and not released.
// Threads  one at a time.
#ifndef PINRAIL_TEST_VERBS_RDMA_PINGPONG_BUFFERS_H
#define PINRAIL_TEST_VERBS_RDMA_PINGPONG_BUFFERS_H

#include <cstddef>
#include <cstdint>
#include <random>

namespace pinrail::pingpong {

enum class Kind : uint8_t { fresh, reused, shuffled };

const char* kind_name(Kind kind);

class Buffers {
 public:
  // bytes: of one buffer, a multiple of the page size.
  Buffers(Kind kind, size_t bytes);
  ~Buffers();
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  Kind kind() const { return kind_; }
  size_t bytes() const { return bytes_; }
  bool good() const;  // there was memory for what is kept

  size_t kept() const { return 2 * per_side_; }
  unsigned char* kept_at(size_t index) const { return memory_ + index * bytes_; }

  // From here on the same buffers are drawn as after the last call with that seed.
  void deal(uint64_t seed) { random_.seed(seed); }
  // side: 0 or 1; the two never share memory. NULL: there is none to be had.
  unsigned char* take(unsigned side);
  void release(unsigned char* buffer) const;

 private:
  const Kind kind_;
  const size_t bytes_;
  const size_t per_side_;
  unsigned char* memory_ = nullptr;
  std::mt19937_64 random_;
};

// A message's bytes follow from its number: no 8 bytes of two messages that follow one another are alike at one place.
void fill(unsigned char* buffer, size_t bytes, uint64_t number);
// The first byte that is another than fill() writes; bytes if there is none.
size_t first_difference(const unsigned char* buffer, size_t bytes, uint64_t number);

}  // namespace pinrail::pingpong

#endif
