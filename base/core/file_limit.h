// SPDX-License-Identifier: BSD-3-Clause
// file_limit.h - whether a file may have a length, where the attempt would end the process.
//
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_FILE_LIMIT_H
#define PINRAIL_BASE_CORE_FILE_LIMIT_H

#include <sys/resource.h>

#include <cstdint>

namespace pinrail {

// Whether this process may make a file so long. Above RLIMIT_FSIZE (ulimit -f) the kernel sends SIGXFSZ, which ends the
// process, for files in memory as well: ask before ftruncate(), fallocate() and write().
inline bool may_make_file(uint64_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur;
}

}  // namespace pinrail

#endif
