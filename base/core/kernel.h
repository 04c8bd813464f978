// SPDX-License-Identifier: BSD-3-Clause
// kernel.h - the kernel's interface where the headers of some C libraries lack it or declare it in another way,
// numbers from its files, memory in whole pages, and the time.
#ifndef PINRAIL_BASE_CORE_KERNEL_H
#define PINRAIL_BASE_CORE_KERNEL_H

#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

// Constants that are missing in the headers of some C libraries (Debian 11's). The running kernel may know them even
// then. System calls that were added since Linux 5.1 have one number on all architectures.

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace pinrail {

// As ioctl(), with the kernel's numbers of requests, which have 32 bits and are unsigned: musl's takes an int.
template <typename T>
int ioctl_of(int file, unsigned long request, T* argument) {
#ifdef __GLIBC__
  return ioctl(file, request, argument);
#else
  return ioctl(file, static_cast<int>(request), argument);
#endif
}

// Of one page. Hooks ask the C library themselves.
inline size_t page_bytes() { return static_cast<size_t>(getpagesize()); }

// Maps memory that begins at a multiple of the alignment, a power of two. MAP_FAILED: there is none.
inline void* map_aligned(size_t bytes, size_t alignment, int flags = 0) {
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* const memory = mmap(nullptr, bytes + alignment, kAccess, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  if (memory == MAP_FAILED) return memory;
  auto* const first = static_cast<char*>(memory);
  const size_t before = -reinterpret_cast<uintptr_t>(first) & (alignment - 1);
  if (before != 0) munmap(first, before);
  munmap(first + before + bytes, alignment - before);
  return first + before;
}

// Whether Linux of that release ("5.10.0-28-amd64") is older than major.minor; true if the text is no release.
inline bool is_release_before(const char* release, unsigned major, unsigned minor) {
  unsigned its_major = 0, its_minor = 0;
  if (std::sscanf(release, "%u.%u", &its_major, &its_minor) != 2) return true;
  return its_major < major || (its_major == major && its_minor < minor);
}

// The number behind the key at the start of a line, for example "VmLck:"; the fallback if there is none. Not in hooks.
inline uint64_t number_in_file(const char* path, const char* key, uint64_t fallback) {
  std::FILE* const file = std::fopen(path, "re");
  uint64_t number = fallback;
  for (char line[128]; file != nullptr && std::fgets(line, sizeof(line), file) != nullptr;) {
    if (std::strncmp(line, key, std::strlen(key)) == 0) number = std::strtoull(line + std::strlen(key), nullptr, 10);
  }
  if (file != nullptr) std::fclose(file);
  return number;
}

// The time since the machine's start in nanoseconds. Also in hooks. CLOCK_MONOTONIC_COARSE is exact to a few
// milliseconds, and quicker.
inline uint64_t now_ns_hook(clockid_t clock = CLOCK_MONOTONIC) {
  timespec now;
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<uint64_t>(now.tv_sec) * 1000000000 + static_cast<uint64_t>(now.tv_nsec);
}
inline int64_t now_ms_hook() { return static_cast<int64_t>(now_ns_hook() / 1000000); }

}  // namespace pinrail

#endif
