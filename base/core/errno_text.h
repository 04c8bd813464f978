// SPDX-License-Identifier: BSD-3-Clause
// errno_text.h - a system's error as text for a message: "12, ENOMEM".
//
// Threads  all functions may run together. Not in hook context.
#ifndef PINRAIL_BASE_CORE_ERRNO_TEXT_H
#define PINRAIL_BASE_CORE_ERRNO_TEXT_H

#include <cstdio>
#include <cstring>

namespace pinrail {

class ErrnoText {
 public:
  explicit ErrnoText(int error) {
    const char* name = strerrorname_np(error);
    std::snprintf(text_, sizeof(text_), "%d%s%s", error, name == nullptr ? "" : ", ", name == nullptr ? "" : name);
  }
  const char* c_str() const { return text_; }

 private:
  char text_[40];
};

// A number for a help text.
class NumberText {
 public:
  explicit NumberText(size_t number) { std::snprintf(text_, sizeof(text_), "%zu", number); }
  const char* c_str() const { return text_; }

 private:
  char text_[24];
};

}  // namespace pinrail

#endif
