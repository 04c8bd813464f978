// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock: system calls and the stack only.
#include "base/patch/maps.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>

#include "base/patch/system_call.h"

namespace pinrail::patch {
namespace {

// A line is "base-end rwxp offset major:minor inode      path". It is read character by character, because a buffer may
// end anywhere in it.
class Line {
 public:
  // True if the character ended a line: then mapping() is complete.
  bool feed(char c) {
    if (c == '\n') return true;
    switch (field_) {
      case Field::base: add_digit(c, '-', &mapping_.base, 16, Field::end); break;
      case Field::end: add_digit(c, ' ', &mapping_.end, 16, Field::protection); break;
      case Field::protection: set_protection(c); break;
      case Field::offset: add_digit(c, ' ', &mapping_.offset, 16, Field::device); break;
      case Field::device: field_ = c == ' ' ? Field::inode : field_; break;
      case Field::inode: add_digit(c, ' ', &mapping_.inode, 10, Field::name); break;
      case Field::name: add_name(c); break;
    }
    return false;
  }
  const Mapping& mapping() const { return mapping_; }

 private:
  enum class Field : uint8_t { base, end, protection, offset, device, inode, name };

  template <typename Number>
  void add_digit(char c, char last, Number* number, unsigned radix, Field next) {
    if (c == last) {
      field_ = next;
      return;
    }
    const auto digit = static_cast<unsigned>(c <= '9' ? c - '0' : c - 'a' + 10);
    *number = *number * radix + digit;
  }
  void set_protection(char c) {
    if (c == 'r') mapping_.protection |= PROT_READ;
    if (c == 'w') mapping_.protection |= PROT_WRITE;
    if (c == 'x') mapping_.protection |= PROT_EXEC;
    if (c == ' ') field_ = Field::offset;
  }
  void add_name(char c) {
    const bool leads = c == ' ' && name_length_ == 0;
    if (!leads && name_length_ + 1 < sizeof(mapping_.name)) mapping_.name[name_length_++] = c;
  }

  Mapping mapping_{};
  Field field_ = Field::base;
  size_t name_length_ = 0;
};

long read_some(long file, char* buffer, size_t length) {
  for (;;) {
    const long got = system_call_hook(SYS_read, file, buffer, length);
    if (got != -EINTR) return got;
  }
}

}  // namespace

bool for_each_mapping(bool (*visit)(void* arg, const Mapping& mapping), void* arg) {
  const long file = system_call_hook(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (is_error_hook(file)) return false;
  char buffer[4096];  // the kernel returns no more at once
  Line line;
  bool goes_on = true;
  long got = 0;
  while (goes_on && (got = read_some(file, buffer, sizeof(buffer))) > 0) {
    for (long i = 0; i < got && goes_on; ++i) {
      // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the kernel has written the buffer
      if (!line.feed(buffer[i])) continue;
      goes_on = visit(arg, line.mapping());
      line = Line();
    }
  }
  system_call_hook(SYS_close, file);
  return got >= 0;
}

}  // namespace pinrail::patch
