// SPDX-License-Identifier: BSD-3-Clause
// Identifies this process. API or start-up context.
#include "base/slots/process.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "base/core/no_cancel.h"

namespace pinrail::slots {
namespace {

// Reads the beginning of a file as text; room includes the terminating zero. False if the file is empty or cannot be
// read.
bool read_text(const char* path, char* text, size_t room) {
  std::FILE* file = std::fopen(path, "re");
  if (file == nullptr) return false;
  const size_t length = std::fread(text, 1, room - 1, file);
  std::fclose(file);
  text[length] = '\0';
  return length != 0;
}

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

}  // namespace

// Identifies the calling process. NOT_SUPPORTED: /proc does not have the data.
Status this_process(Process* process_out) {
  const NoCancel no_cancel;
  Process process;
  char boot[64];
  struct stat space {};
  process.pid = static_cast<uint32_t>(getpid());
  process.user = geteuid();
  if (!read_start(process.pid, &process.start)) return PINRAIL_ERR_NOT_SUPPORTED;
  if (!read_text("/proc/sys/kernel/random/boot_id", boot, sizeof(boot))) return PINRAIL_ERR_NOT_SUPPORTED;
  if (stat("/proc/self/ns/pid", &space) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  process.machine = mix(mix(1, space.st_ino), space.st_dev);
  for (const char* at = boot; *at != '\0'; ++at) process.machine = mix(process.machine, static_cast<uint8_t>(*at));
  *process_out = process;
  return success();
}

}  // namespace pinrail::slots
