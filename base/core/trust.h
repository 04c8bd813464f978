// SPDX-License-Identifier: BSD-3-Clause
// trust.h - decides whether the environment, a parameter file or a component file may be trusted.
//
// Threads  All functions may run together.
// Context  start-up or API; they allocate and read the file system.
//
// trust/X1  A process that has more rights than its caller (setuid, file capabilities) reads no environment variable
//     and calls no library that does.
// trust/X2  A process as in trust/X1, and a process of root, neither reads a parameter file nor loads a component that
//     other users may change, and it reports the file. Other users are all except root, the process's effective user,
//     and the owner of the file that contains Pinrail, who could change Pinrail itself.
#ifndef PINRAIL_BASE_CORE_TRUST_H
#define PINRAIL_BASE_CORE_TRUST_H

#include <sys/auxv.h>
#include <sys/stat.h>

#include <string>

namespace pinrail::trust {

// Returns whether environment variables may be read (trust/X1).
inline bool in_environment() { return getauxval(AT_SECURE) == 0; }

// Returns the path of the shared object or program into which this code is linked, or "" if the system does not tell.
std::string own_file();

// Returns the reason why the file or folder must not be used ("may be written by all users"), or "" if it may
// (trust/X2).
std::string why_untrusted(const struct stat& about);
// As why_untrusted(), for a file in a folder about which the caller has asked. If it is a symbolic link: for the file
// to which it leads and that file's folder. What does not exist is trusted: the caller reports that it is missing.
std::string why_untrusted_file(const std::string& path);

// The rule itself, for any set of owners; it does not ask whether trust/X2 applies to the process.
struct Owners {
  uid_t self, own_file;
};
std::string why_untrusted(const struct stat& about, const Owners& owners);

}  // namespace pinrail::trust

#endif
