// SPDX-License-Identifier: BSD-3-Clause
// regions.h - the memory regions that the program sees.
//
// Owns     an area of address space in which all of them lie, so that an address tells whose region it is.
// Threads  all functions may run together.
#ifndef PINRAIL_CONTRIB_PINRUN_REGIONS_H
#define PINRAIL_CONTRIB_PINRUN_REGIONS_H

#include "contrib/pinrun/pinrun.h"

namespace pinrail::pinrun {

struct Region {
  ibv_mr mr;                // what the program sees
  uint64_t of_provider[2];  // zero; libibverbs keeps a type and the access behind its own regions
  uint64_t iova;            // the address on the wire of mr.addr
  unsigned access;          // IBV_ACCESS_*
  ibv_mr* real;             // not NULL: a region that could not be cached, made by ibv_rereg_mr()
  pinrail_handle_t handle;  // otherwise: the registration
  int64_t trace_id;         // of recorder.h
  Region* next_free;
};

// Returns a zeroed region; NULL if a million of them exist already.
Region* new_region();
void free_region(Region* region);

// Returns the region that the program names by mr; NULL if libibverbs made it.
Region* region_of(ibv_mr* mr);

}  // namespace pinrail::pinrun

#endif
