// SPDX-License-Identifier: BSD-3-Clause
// island_aarch64.h - what an island on 64-bit Arm passes to the hook's entry (enter_hook_aarch64.cc).
//
// Owns     nothing. A record lies on the page of its islands.
// Threads  it is constant once it was written.
// Hook     any.
#ifndef PINRAIL_BASE_PATCH_ISLAND_AARCH64_H
#define PINRAIL_BASE_PATCH_ISLAND_AARCH64_H

#include <cstddef>
#include <cstdint>

#include "base/patch/patch.h"

namespace pinrail::patch {

// Another copy of the library reads the record, so the mark has to change with the layout.
constexpr uint64_t kMark = 0x314c4941524e4950;  // "PINRAIL1"
enum class Place : int64_t {
  system_call = 0,  // svc: the result is the kernel's
  call = 1,         // bl: the result is -1 and errno after an error
  function = 2      // the function's first instruction: likewise, and the island returns to the function's caller
};
struct Record {
  uintptr_t enter;  // pinrail_patch_enter_hook
  Hook hook;
  void* arg;
  int64_t number;  // of the system call; -1: any
  Place place;     // what the branch to the island replaced
  uint64_t mark;   // kMark
};
static_assert(offsetof(Record, enter) == 0, "the island's code reads it");

}  // namespace pinrail::patch

#endif
