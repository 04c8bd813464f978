// SPDX-License-Identifier: BSD-3-Clause
// files.h - files of ours: who closes them, their numbers, and their lengths.
//
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_FILES_H
#define PINRAIL_BASE_CORE_FILES_H

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/core/compiler.h"

namespace pinrail {

// Owns a file descriptor and closes it.
class Descriptor : NonCopyable {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

// Keeps files of ours from the numbers of standard input, output and error. A program may have closed these, as daemons
// do. The next file that is opened would get such a number, and what the
// program or this library then writes to its standard error would be written into that file.
// Returns the descriptor, or one above 2 of the same file and closes it. -1 and an errno: it was -1, or none is free.
inline int above_standard(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(descriptor);
  errno = error;
  return moved;
}

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
