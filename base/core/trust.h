// SPDX-License-Identifier: BSD-3-Clause
// trust.h - who may choose what is loaded into this process, and what it reads?
//
// Threads  all functions may run together. API context.
//
// trust/X1  A process that has more rights than its caller (setuid, capabilities of its file) reads no variable of the
//     environment, and calls no library that does.
// trust/X2  Such a process, and one of root's, reads no parameter file, and loads no component, that others may change:
//     it says so. Others are all but root, the process's own user, and the owner of the file that Pinrail itself is in,
//     who could change that.
#ifndef PINRAIL_BASE_CORE_TRUST_H
#define PINRAIL_BASE_CORE_TRUST_H

#include <sys/auxv.h>
#include <sys/stat.h>

#include <string>

namespace pinrail::trust {

// Whether variables of the environment may be read (trust/X1).
inline bool in_environment() { return getauxval(AT_SECURE) == 0; }

// The shared object, or the program, that this code was linked into; empty: the system does not tell.
std::string own_file();

// Why a file or folder may be changed by others; empty: it may not, or nobody has to care (trust/X2).
std::string why_not(const struct stat& about);
// The same of a file and of the folder that it is really in.
std::string why_not_in_folder(const std::string& path);

// The rule, of anybody.
struct Owners {
  uid_t self, own_file;
};
std::string why_others_may_change(const struct stat& about, const Owners& owners);

}  // namespace pinrail::trust

#endif
