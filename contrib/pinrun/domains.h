// SPDX-License-Identifier: BSD-3-Clause
// domains.h - the pools of each protection domain.
//
// Owns     the pools. A pool exists from the first region that needs it until its domain is freed.
// Threads  all functions may run together; end_domain() and abandon_domain() exclude other calls with the same
//          domain, as ibv_dealloc_pd() and ibv_unimport_pd() do.
#ifndef PINRAIL_CONTRIB_PINRUN_DOMAINS_H
#define PINRAIL_CONTRIB_PINRUN_DOMAINS_H

#include "pinrun.h"

namespace pinrail::pinrun {

// A pool knows registrations by the process's addresses. So the first pool of a domain has those whose addresses on the
// wire are the same; the others have those at other addresses, and one buffer can have as many of them at a time.
constexpr unsigned kPools = 5;

// Returns a pool of the domain, and creates it with the first call. NULL if Pinrail cannot work in this process.
pinrail_mpool_t* pool_of(ibv_pd* domain, unsigned number);

// Deregisters what is dead, and one registration that pools keep and the program does not hold. Returns false if there
// is no such one.
bool make_room();

// Deregisters what the domain's pools keep, and calls the function that ends the domain. Returns its result; if that is
// an error, the pools stay, with what the program holds.
int end_domain(ibv_pd* domain, int (*end)(ibv_pd*));

// Destroys the domain's pools, whatever the program holds.
void abandon_domain(const ibv_pd* domain);

// Destroys the pools of all domains of a device that is being closed.
void forget_device(const ibv_context* device);

// The memory regions that the program sees.
//
// Owns     their memory, until free_region() or, if the region was deregistered by libibverbs' own function, until the
//          provider library frees it: so it is memory of malloc(), and begins as a region of libibverbs does.
// Threads  all functions may run together.
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

// Ibv_rereg_mr() of a region that a pool serves.
//
// The device's region becomes the program's own, with the keys that the program knows, and libibverbs changes it. So
// its keys, its rights and its errors are those of the device, and the old keys are valid no longer than without
// pinrun.

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
