// SPDX-License-Identifier: BSD-3-Clause
// domains.h - the pool of each protection domain.
//
// Owns     the pools. A pool exists from the first region of its domain until the domain is freed.
// Threads  all functions may run together; forget_domain() excludes other calls with the same domain, as
//          ibv_dealloc_pd() does.
#ifndef PINRAIL_CONTRIB_PINRUN_DOMAINS_H
#define PINRAIL_CONTRIB_PINRUN_DOMAINS_H

#include "contrib/pinrun/pinrun.h"

namespace pinrail::pinrun {

// Returns the pool of the domain, and creates it with the first call. NULL if Pinrail cannot work in this process.
pinrail_mpool_t* pool_of(ibv_pd* domain);

// Deregisters what the domain's pool keeps. Returns false, and changes nothing, if the program holds regions of it.
bool forget_domain(ibv_pd* domain);

// Destroys the pools of all domains of a device that is being closed.
void forget_device(const ibv_context* device);

}  // namespace pinrail::pinrun

#endif
