// SPDX-License-Identifier: BSD-3-Clause
// file_limit.h - whether a file may have a length, where the attempt would end the process; memory for files in memory.
//
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_FILE_LIMIT_H
#define PINRAIL_BASE_CORE_FILE_LIMIT_H

#include <fcntl.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdint>

namespace pinrail {

// Whether this process may make a file so long. Above RLIMIT_FSIZE (ulimit -f) the kernel sends SIGXFSZ, which ends the
// process, for files in memory as well: ask before ftruncate(), fallocate() and write().
inline bool may_make_file(uint64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

// Allocates that part of the file. Without it, a write through a mapping of a file in memory would end the process.
// False: there is no memory left. Older kernels give up at any signal, and undo what they have done.
inline bool allocate_in_file(int file, off_t from, off_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(file, from, bytes);
  return error == 0;
}

}  // namespace pinrail

#endif
