// SPDX-License-Identifier: BSD-3-Clause
// errno_text.h - an errno value as text for a message: "12, ENOMEM".
//
// Threads  All functions may run together.
// Context  start-up or API.
#ifndef PINRAIL_BASE_CORE_ERRNO_TEXT_H
#define PINRAIL_BASE_CORE_ERRNO_TEXT_H

#include <cstdio>
#include <cstring>

namespace pinrail {

// Returns NULL if the C library has no names of errors: musl, and glibc before 2.32.
inline const char* name_of_errno(int error) {
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 32)
  return strerrorname_np(error);
#else
  (void)error;
  return nullptr;
#endif
}

class ErrnoText {
 public:
  explicit ErrnoText(int error) {
    const char* name = name_of_errno(error);
    std::snprintf(text_, sizeof(text_), "%d%s%s", error, name == nullptr ? "" : ", ", name == nullptr ? "" : name);
  }
  const char* c_str() const { return text_; }

 private:
  char text_[40];
};

// A number as text, for a help message.
class NumberText {
 public:
  explicit NumberText(size_t number) { std::snprintf(text_, sizeof(text_), "%zu", number); }
  const char* c_str() const { return text_; }

 private:
  char text_[24];
};

}  // namespace pinrail

#endif
