// SPDX-License-Identifier: BSD-3-Clause
// standard_descriptors.h - keeps files of ours from the numbers of standard input, output and error.
//
// A program may have closed these, as daemons do. The next file that is opened would get such a number, and what the
// program or this library then writes to its standard error would be written into that file.
//
// Context  start-up or API; no lock.
#ifndef PINRAIL_BASE_CORE_STANDARD_DESCRIPTORS_H
#define PINRAIL_BASE_CORE_STANDARD_DESCRIPTORS_H

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace pinrail {

// Returns the descriptor, or one above 2 of the same file and closes it. -1 and an errno: it was -1, or none is free.
inline int above_standard(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(descriptor);
  errno = error;
  return moved;
}

}  // namespace pinrail

#endif
