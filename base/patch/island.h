// SPDX-License-Identifier: BSD-3-Clause
// island.h - a page of code near a function: where the jump leads, and the way on to what it displaced.
//
// Threads  any; start-up and API context (it reads /proc/self/maps and maps memory). Islands are never given back.
//
// The page holds two pieces of code. enter: undoes what of the function ran already, then calls the hook with the six
// registers that arguments come in; the hook's result is the function's. original: may be called as the function
// itself; it does what the function did before the patch, or what another runtime's patch does that stood there.
#ifndef PINRAIL_BASE_PATCH_ISLAND_H
#define PINRAIL_BASE_PATCH_ISLAND_H

#include "base/patch/decode.h"

namespace pinrail::patch {

// Hook context: arg is the caller's, args the function's: six from registers, and from kStackArgs on those on the
// stack.
constexpr size_t kStackArgs = 8;
using Hook = long (*)(void* arg, const long* args);

struct Island {
  uintptr_t enter = 0;
  uintptr_t original = 0;
};

// code: the function's bytes, which entry describes. OUT_OF_RESOURCE: no page within reach of the
// jump; PERM: the system lets nobody write code.
Status build_island(uintptr_t function, const uint8_t* code, const Entry& entry, Hook hook, void* arg,
                    Island* island_out);

}  // namespace pinrail::patch

#endif
