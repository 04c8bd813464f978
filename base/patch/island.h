// SPDX-License-Identifier: BSD-3-Clause
// island.h - builds a page of code near a function, to which the function's jump leads.
//
// Threads  All functions may run together.
// Context  start-up or API: they read /proc/self/maps and map memory. Islands are never freed.
//
// The page contains two pieces of code. enter: undoes what has already run of the function, then calls the hook with
// the six argument registers; the hook's result is the function's result. original: may be called in place of the
// function; it does what the function did before the patch, including another runtime's patch that was there.
#ifndef PINRAIL_BASE_PATCH_ISLAND_H
#define PINRAIL_BASE_PATCH_ISLAND_H

#include "base/patch/decode.h"

namespace pinrail::patch {

// A hook. It runs in hook context. arg: the pointer given to build_island(). args: the function's arguments, first six
// from registers, and from index kStackArgs on those from the stack.
constexpr size_t kStackArgs = 8;
using Hook = long (*)(void* arg, const long* args);

struct Island {
  uintptr_t enter = 0;
  uintptr_t original = 0;
};

// Maps a writable page at most `reach` bytes away from `near`. NULL if there is no such gap. Start-up or API context.
uint8_t* map_near(uintptr_t near, uintptr_t reach);

// Builds an island. code: the function's bytes, which `entry` describes. OUT_OF_RESOURCE: there is no free page within
// the jump's reach. PERM: the system does not permit new code.
Status build_island(uintptr_t function, const uint8_t* code, const PatchPoint& entry, Hook hook, void* arg,
                    Island* island_out);

}  // namespace pinrail::patch

#endif
