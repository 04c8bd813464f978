// SPDX-License-Identifier: BSD-3-Clause
// Which events this kernel has: newer ones are tried on a page of our own. Start-up; takes no lock.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/core/kernel_numbers.h"
#include "framework/monitor/coverage.h"

namespace pinrail::monitor {
namespace {

constexpr size_t kPage = 4096;
constexpr int kGuardInstall = 102;  // MADV_GUARD_INSTALL, 6.13 on

// Whether the kernel has that madvise advice, or the system call, tried on the page. Raw system calls, because libc
// may lack the functions.
bool has_guard_install(void* page) {
  if (syscall(SYS_madvise, page, kPage, kGuardInstall) != 0) return false;
  constexpr int kGuardRemove = 103;
  syscall(SYS_madvise, page, kPage, kGuardRemove);
  return true;
}

bool has_process_madvise(void* page) {
  const long self = syscall(SYS_pidfd_open, getpid(), 0);
  if (self < 0) return false;
  iovec list{page, kPage};
  const long advised = syscall(SYS_process_madvise, self, &list, 1L, MADV_DONTNEED, 0L);
  close(static_cast<int>(self));
  return advised >= 0;
}

// False: the kernel lacks System V segments, or a seccomp filter refuses them.
bool has_segments() {
  constexpr long kNoSegment = -1;
  return syscall(SYS_shmat, kNoSegment, nullptr, 0L) >= 0 || (errno != ENOSYS && errno != EPERM);
}

}  // namespace

uint32_t events_of_kernel() {
  void* const page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return PINRAIL_EVENTS_ALL;
  // After mlockall() new memory is locked, and the kernel refuses some advice for locked pages.
  syscall(SYS_munlock, page, kPage);
  uint32_t events = PINRAIL_EVENTS_ALL;
  if (!has_guard_install(page)) events &= ~uint32_t{PINRAIL_EVENT_GUARD_INSTALL};
  if (!has_process_madvise(page)) events &= ~uint32_t{PINRAIL_EVENT_PROCESS_MADVISE};
  if (!has_segments()) events &= ~(uint32_t{PINRAIL_EVENT_SHMAT_OVER} | PINRAIL_EVENT_SHMDT);
  munmap(page, kPage);
  return events;
}

}  // namespace pinrail::monitor
