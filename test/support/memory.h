// SPDX-License-Identifier: BSD-3-Clause
// memory.h - anonymous memory for tests: small pages, known contents; and whose allocator there is.
//
// Threads  one at a time per mapping; the functions may run together.
#ifndef PINRAIL_TEST_SUPPORT_MEMORY_H
#define PINRAIL_TEST_SUPPORT_MEMORY_H

#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/core/compiler.h"

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

// What the allocator has handed out, to other threads as well, and not got back. 0: this C library does not tell, or a
// sanitizer has the allocator.
inline size_t heap_bytes() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#else
  return 0;
#endif
}

// There if the program's own malloc leads to libc's.
extern "C" __attribute__((weak)) const bool pinrail_debug_wall_leads_to_libc;

inline uintptr_t libc_function(const char* name) {
#ifdef __GLIBC__
  void* const libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
#else
  void* const libc = dlopen("libc.so", RTLD_LAZY | RTLD_NOLOAD);
#endif
  return reinterpret_cast<uintptr_t>(dlsym(libc, name));
}

// Whether malloc is libc's own, or the hook wall's (test/support/hook_wall.cc), which leads there.
inline bool malloc_is_libcs() {
  const bool interposed = libc_function("malloc") != reinterpret_cast<uintptr_t>(&malloc);
  return !interposed || &pinrail_debug_wall_leads_to_libc != nullptr;
}

}  // namespace pinrail::test

#endif
