// SPDX-License-Identifier: BSD-3-Clause
// reregister.h - ibv_rereg_mr() of a region that a pool serves.
//
// The device's region becomes the program's own, with the keys that the program knows, and libibverbs changes it. So
// its keys, its rights and its errors are those of the device, and the old keys are valid no longer than without
// pinrun.
#ifndef PINRAIL_CONTRIB_PINRUN_REREGISTER_H
#define PINRAIL_CONTRIB_PINRUN_REREGISTER_H

#include "contrib/pinrun/regions.h"

namespace pinrail::pinrun {

// What the program asks ibv_rereg_mr() for.
struct Change {
  int flags;
  ibv_pd* domain;
  void* addr;
  size_t length;
  int access;
};

// Returns what ibv_rereg_mr() does, and sets errno.
int reregister(Region* region, const Change& change);

}  // namespace pinrail::pinrun

#endif
