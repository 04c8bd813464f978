// SPDX-License-Identifier: BSD-3-Clause
// files.h - files of ours: who closes them, their numbers, and their lengths; and whether the environment, a parameter
// file or a component file may be trusted.
//
// Context  any; no lock.
#ifndef PINRAIL_BASE_CORE_FILES_H
#define PINRAIL_BASE_CORE_FILES_H

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <utility>

#include "base/core/compiler.h"

namespace pinrail {

// Owns a file descriptor and closes it.
class Descriptor : NonCopyable {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { reset(); }
  int get() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset(int number = -1) {
    const int former = std::exchange(number_, number);
    if (former >= 0) close(former);
  }

 private:
  int number_;
};

// Whether a file could not be opened or read for what the process or the system lacks, which says nothing of the file.
inline bool is_lack(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

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

namespace pinrail::trust {

// Decides whether the environment, a parameter file or a component file may be trusted.
//
// Threads  All functions may run together.
// Context  start-up or API; they allocate and read the file system.
//
// files/X1  A process that has more rights than its caller (setuid, file capabilities) reads no environment variable
//     and calls no library that does.
// files/X2  A process as in files/X1, and a process of root, neither reads a parameter file nor loads a component that
//     other users may change, and it reports the file. Other users are all except root, the process's effective user,
//     and the owners of the file that contains Pinrail and of its folder, who could change Pinrail itself. Every other
//     process keeps to that for components of the default path, or of one that the embedder's defaults name, which may
//     lead beside a program in /tmp; there a group that may write is the user's own choice, and what the user names is
//     trusted.

// Returns whether environment variables may be read (files/X1).
inline bool in_environment() { return getauxval(AT_SECURE) == 0; }

// Returns the path of the shared object or program into which this code is linked, or "" if the system does not tell.
std::string own_file();

// Who names a file or folder: a setting, or the default path of components.
enum class Named : uint8_t { by_user, by_default };

// Returns the reason why the file, folder or link must not be used ("may be written by all users"), or "" if it may
// (files/X2).
std::string why_untrusted(const struct stat& about, Named named);
// As why_untrusted(), for the file to which a symbolic link leads, and that file's folder. What does not exist is
// trusted: the caller reports that it is missing.
std::string why_untrusted_link(const std::string& path, Named named);

// The rule itself, for any set of owners; it does not ask whether files/X2 applies to the process.
struct Owners {
  uid_t self, own_file;
};
std::string why_untrusted(const struct stat& about, const Owners& owners);

}  // namespace pinrail::trust

#endif
