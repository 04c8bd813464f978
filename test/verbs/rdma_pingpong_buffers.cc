// SPDX-License-Identifier: BSD-3-Clause
#include "test/verbs/rdma_pingpong_buffers.h"

#include <sys/mman.h>

#include <cstring>

namespace pinrail::pingpong {
namespace {

constexpr size_t kShuffled = 64;

unsigned char* map(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
}

size_t kept_per_side(Kind kind) {
  switch (kind) {
    case Kind::reused: return 1;
    case Kind::shuffled: return kShuffled;
    default: return 0;
  }
}

// Odd factors: a step in either number changes the low bits, so a message is never like its neighbour, nor a word.
uint64_t word(uint64_t number, size_t index) {
  const uint64_t mixed = number * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u;
  return mixed ^ (mixed >> 29);
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::fresh: return "fresh";
    case Kind::reused: return "reused";
    default: return "shuffled";
  }
}

Buffers::Buffers(Kind kind, size_t bytes) : kind_(kind), bytes_(bytes), per_side_(kept_per_side(kind)) {
  if (per_side_ != 0) memory_ = map(kept() * bytes_);
}

Buffers::~Buffers() {
  if (memory_ != nullptr) munmap(memory_, kept() * bytes_);
}

bool Buffers::good() const { return per_side_ == 0 || memory_ != nullptr; }

unsigned char* Buffers::take(unsigned side) {
  if (kind_ == Kind::fresh) return map(bytes_);
  return kept_at(side * per_side_ + random_() % per_side_);
}

void Buffers::release(unsigned char* buffer) const {
  if (kind_ == Kind::fresh) munmap(buffer, bytes_);
}

void fill(unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t value = word(number, i);
    std::memcpy(buffer + i * sizeof(value), &value, sizeof(value));
  }
}

size_t first_difference(const unsigned char* buffer, size_t bytes, uint64_t number) {
  for (size_t i = 0; i < bytes / sizeof(uint64_t); ++i) {
    const uint64_t value = word(number, i);
    const unsigned char* const at = buffer + i * sizeof(value);
    if (std::memcmp(at, &value, sizeof(value)) == 0) continue;
    unsigned char expected[sizeof(value)];
    std::memcpy(expected, &value, sizeof(value));
    size_t byte = 0;
    while (at[byte] == expected[byte]) ++byte;
    return i * sizeof(value) + byte;
  }
  return bytes;
}

}  // namespace pinrail::pingpong
