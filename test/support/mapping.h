// SPDX-License-Identifier: BSD-3-Clause
// mapping.h - anonymous memory for tests: small pages, known contents.
//
// Threads  one at a time per mapping.
#ifndef PINRAIL_TEST_SUPPORT_MAPPING_H
#define PINRAIL_TEST_SUPPORT_MAPPING_H

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace pinrail::test {

inline size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// The byte that belongs at this place in contents of that seed.
inline unsigned char stamp(uint64_t seed, size_t offset) {
  uint64_t word = (seed * 0x9e3779b97f4a7c15u) ^ ((offset / 8) * 0xff51afd7ed558ccdu);
  word ^= word >> 29;
  word *= 0xc4ceb9fe1a85ec53u;
  return static_cast<unsigned char>(word >> (8 * (offset % 8)));
}

inline std::vector<unsigned char> stamped(uint64_t seed, size_t offset, size_t length) {
  std::vector<unsigned char> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = stamp(seed, offset + i);
  return bytes;
}

// mlock also where a sanitizer makes libc's do nothing.
inline bool lock_pages(void* addr, size_t length) { return syscall(SYS_mlock, addr, length) == 0; }

class Mapping {
 public:
  explicit Mapping(size_t length, int protection = PROT_READ | PROT_WRITE) : length_(length) {
    void* at = mmap(nullptr, length, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    base_ = static_cast<unsigned char*>(at);
    madvise(base_, length, MADV_NOHUGEPAGE);
  }
  ~Mapping() { munmap(base_, length_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  unsigned char* base() const { return base_; }
  size_t length() const { return length_; }
  void* at(size_t offset) const { return base_ + offset; }

  void fill(uint64_t seed) const {
    for (size_t i = 0; i < length_; ++i) base_[i] = stamp(seed, i);
  }

  void unmap(size_t offset, size_t length) const {
    if (munmap(base_ + offset, length) != 0) std::abort();
  }

  // New pages, zeroed, at the same address.
  void map_again() const {
    unmap(0, length_);
    void* at = mmap(base_, length_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != base_) std::abort();
    madvise(base_, length_, MADV_NOHUGEPAGE);
  }

 private:
  unsigned char* base_;
  const size_t length_;
};

}  // namespace pinrail::test

#endif
