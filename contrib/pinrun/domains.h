// SPDX-License-Identifier: BSD-3-Clause
// domains.h - the pools of each protection domain.
//
// Owns     the pools. A pool exists from the first region that needs it until its domain is freed.
// Threads  all functions may run together; end_domain() and abandon_domain() exclude other calls with the same
//          domain, as ibv_dealloc_pd() and ibv_unimport_pd() do.
#ifndef PINRAIL_CONTRIB_PINRUN_DOMAINS_H
#define PINRAIL_CONTRIB_PINRUN_DOMAINS_H

#include "contrib/pinrun/pinrun.h"

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

}  // namespace pinrail::pinrun

#endif
