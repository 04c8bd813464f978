// SPDX-License-Identifier: BSD-3-Clause
// uffd_library.h - the library with monitor/uffd alone and one pool, and memory events by system calls that no libc
// sees.
#ifndef PINRAIL_TEST_MONITOR_UFFD_LIBRARY_H
#define PINRAIL_TEST_MONITOR_UFFD_LIBRARY_H

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <string>

#include "base/core/kernel.h"
#include "base/patch/system_call.h"
#include "test/support/library.h"

namespace pinrail::test {

inline void* at(uintptr_t address) { return reinterpret_cast<void*>(address); }

// What uffd does not see of anonymous memory never happens in these tests, unless they say so.
inline Settings uffd_alone(const std::string& never = "guard_install,shmat_over") {
  return {{"monitor", "uffd"}, {"monitor_never", never}};
}

// Whether userfaultfd works here, asked without the library.
inline bool has_uffd() {
  const int watch = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | 1));
  if (watch < 0) return false;
  uffdio_api api{};
  api.api = UFFD_API;
  api.features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_PAGEFAULT_FLAG_WP;
  const bool granted = ioctl_of(watch, UFFDIO_API, &api) == 0;
  close(watch);
  return granted;
}

#define NEED_UFFD() \
  if (!has_uffd()) GTEST_SKIP() << "this kernel or user has no userfaultfd with write-protect mode"

inline uintptr_t raw_map(size_t pages, uintptr_t where = 0, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1) {
  const int fixed = where == 0 ? 0 : MAP_FIXED;
  return static_cast<uintptr_t>(
      syscall(SYS_mmap, where, pages * kPage, PROT_READ | PROT_WRITE, flags | fixed, file, 0L));
}
// Past libc: its syscall() is patched where anything is.
inline bool raw_unmap(uintptr_t base, size_t pages) {
#if PINRAIL_CAN_PATCH
  return patch::system_call_hook(SYS_munmap, static_cast<long>(base), static_cast<long>(pages * kPage)) == 0;
#else
  return syscall(SYS_munmap, base, pages * kPage) == 0;
#endif
}
inline uintptr_t raw_remap(uintptr_t base, size_t pages, size_t to_pages, int flags, uintptr_t onto = 0) {
  return static_cast<uintptr_t>(syscall(SYS_mremap, base, pages * kPage, to_pages * kPage, flags, onto));
}
inline bool raw_advise(uintptr_t base, size_t pages, int advice) {
  return syscall(SYS_madvise, base, pages * kPage, advice) == 0;
}

struct Watched {
  explicit Watched(const Settings& settings = uffd_alone()) : library(settings), pool(fake) {}

  // Cached, and so watched; a place of its own, for neighbours merge.
  uintptr_t cached(size_t pages, int flags = MAP_PRIVATE | MAP_ANONYMOUS, int file = -1) {
    const uintptr_t base = raw_map(pages, 0, flags, file);
    pool.use(base, pages * kPage);
    EXPECT_TRUE(has(base, pages)) << "it is not kept";
    return base;
  }
  bool has(uintptr_t base, size_t pages = 1) const { return pool.has(base, pages * kPage); }

  Library library;
  fake::FakeRegistrar fake;
  Pool pool;
};

}  // namespace pinrail::test

#endif
