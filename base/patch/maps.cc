// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock: system calls and the stack only.
#include "base/patch/maps.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <utility>

#include "base/patch/system_call.h"

namespace pinrail::patch {
namespace {

// A line is "base-end rwxp offset major:minor inode      path". False: it is malformed.
bool parse(const char* line, Mapping* mapping_out) {
  unsigned device_major = 0, device_minor = 0;
  char rights[5] = "";
  mapping_out->path[0] = 0;
  // NOLINTNEXTLINE(cert-err34-c): the kernel wrote it
  const int fields = std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %" SCNx64 " %x:%x %" SCNu64 " %1023[^\n]",
                                 &mapping_out->base, &mapping_out->end, rights, &mapping_out->offset, &device_major,
                                 &device_minor, &mapping_out->inode, mapping_out->path);
  mapping_out->device = makedev(device_major, device_minor);
  mapping_out->protection =
      (rights[0] == 'r' ? PROT_READ : 0) | (rights[1] == 'w' ? PROT_WRITE : 0) | (rights[2] == 'x' ? PROT_EXEC : 0);
  mapping_out->is_shared = rights[3] == 's';
  return fields >= 7;  // anonymous memory has no path
}

long read_some(long file, char* buffer, size_t length) {
  for (;;) {
    const long got = system_call_hook(SYS_read, file, buffer, length);
    if (got != -EINTR) return got;
  }
}

}  // namespace

bool for_each_mapping(bool (*visit)(void* arg, const Mapping& mapping), void* arg, char* piece, size_t most) {
  const long file = system_call_hook(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (is_error_hook(file)) {
    errno = static_cast<int>(-file);
    return false;
  }
  const auto close = [](const long* number) { system_call_hook(SYS_close, *number); };
  const std::unique_ptr<const long, decltype(close)> closed_at_the_end(&file, close);  // visit() may throw
  char line[1152];  // its beginning, which may be in the piece before
  size_t length = 0;
  bool goes_on = true;
  long got = 0;
  while (goes_on && (got = read_some(file, piece, most)) > 0) {
    for (long i = 0; i < got && goes_on; ++i) {
      const bool is_end = piece[i] == '\n';  // NOLINT(clang-analyzer-core.UndefinedBinaryOperatorResult): it is read
      if (!is_end && length < sizeof(line) - 1) line[length++] = piece[i];
      if (!is_end) continue;
      line[std::exchange(length, 0)] = 0;
      Mapping mapping;
      goes_on = !parse(line, &mapping) || visit(arg, mapping);
    }
  }
  if (got < 0) errno = static_cast<int>(-got);
  return got >= 0;
}

}  // namespace pinrail::patch
