// SPDX-License-Identifier: BSD-3-Clause
#include "test/support/proc_status.h"

#include <dirent.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace pinrail::test {
namespace {

// A line "VmPin:     1024 kB" of /proc/self/status.
size_t status_bytes(const char* key) {
  std::FILE* file = std::fopen("/proc/self/status", "re");
  if (file == nullptr) std::abort();  // without it no test that asks can mean anything
  char line[256];
  size_t kibibytes = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, key, std::strlen(key)) == 0) kibibytes = std::strtoull(line + std::strlen(key), nullptr, 10);
  }
  std::fclose(file);
  return kibibytes * 1024;
}

}  // namespace

size_t vm_pin_bytes() { return status_bytes("VmPin:"); }
size_t vm_lck_bytes() { return status_bytes("VmLck:"); }

size_t open_descriptors() {
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) std::abort();
  size_t count = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe): the stream is this call's own
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count - 3;  // ".", ".." and the folder's own
}

}  // namespace pinrail::test
