// SPDX-License-Identifier: BSD-3-Clause
// regions.h - the memory regions that the program sees.
//
// Owns     their memory, until free_region() or, if the region was deregistered by libibverbs' own function, until the
//          provider library frees it: so it is memory of malloc(), and begins as a region of libibverbs does.
// Threads  all functions may run together.
#ifndef PINRAIL_CONTRIB_PINRUN_REGIONS_H
#define PINRAIL_CONTRIB_PINRUN_REGIONS_H

#include "contrib/pinrun/pinrun.h"

namespace pinrail::pinrun {

struct Region {
  ibv_mr mr;                // what the program sees
  uint64_t mark;            // tells it from libibverbs' own, which keep a type and the access here
  uint64_t iova;            // the address on the wire of mr.addr
  unsigned access;          // IBV_ACCESS_*
  ibv_mr* real;             // not NULL: the device's region is this region's alone, because ibv_rereg_mr() changed it
  pinrail_handle_t handle;  // otherwise: the registration
};

// Returns a zeroed region; NULL if there is no memory.
Region* new_region();
void free_region(Region* region);

// Returns the region that the program names by mr; NULL if libibverbs made it.
Region* region_of(ibv_mr* mr);

// After the region was deregistered, before its memory is freed. A second deregistration is recognised until the memory
// is used again.
void mark_as_gone(Region* region);
bool is_gone(const ibv_mr* mr);

}  // namespace pinrail::pinrun

#endif
