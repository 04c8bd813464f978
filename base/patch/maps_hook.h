// SPDX-License-Identifier: BSD-3-Clause
// maps_hook.h - the mappings of this process, as /proc/self/maps lists them, without memory of one's own.
//
// Threads  any number may run together; each reads the list anew, and mappings may come and go meanwhile.
// Hook     all of it: system calls and the stack.
#ifndef PINRAIL_BASE_PATCH_MAPS_HOOK_H
#define PINRAIL_BASE_PATCH_MAPS_HOOK_H

#include <cstddef>
#include <cstdint>

namespace pinrail::patch {

struct Mapping {
  uintptr_t base, end;
  uint64_t offset;  // in the file, bytes
  uint64_t inode;   // 0: no file
  int protection;   // PROT_*
  char name[16];    // the beginning of the path, or of "[heap]"
};

// Calls visit for each mapping in rising order until it says false. False if the list cannot be read.
bool for_each_mapping_hook(bool (*visit_hook)(void* arg, const Mapping& mapping), void* arg);

}  // namespace pinrail::patch

#endif
