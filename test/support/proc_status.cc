// SPDX-License-Identifier: BSD-3-Clause
#include "test/support/proc_status.h"

#include <dirent.h>
#include <linux/capability.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pinrail::test {
namespace {

// The number in a line "VmPin:     1024 kB" of /proc/self/status.
uint64_t status_number(const char* key, int radix) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) std::abort();  // without it no test that asks can mean anything
  char line[256];
  uint64_t number = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, key, std::strlen(key)) == 0) number = std::strtoull(line + std::strlen(key), nullptr, radix);
  }
  std::fclose(file);
  return number;
}

}  // namespace

size_t vm_pin_bytes() { return status_number("VmPin:", 10) * 1024; }
size_t vm_lck_bytes() { return status_number("VmLck:", 10) * 1024; }

size_t open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) std::abort();
  size_t count = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder's own
}

bool may_lock(size_t bytes) {
  const uint64_t privileges = status_number("CapEff:", 16);
  rlimit limit{};
  return (privileges >> CAP_IPC_LOCK & 1) != 0 || (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur >= bytes);
}

}  // namespace pinrail::test
