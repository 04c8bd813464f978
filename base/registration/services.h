// SPDX-License-Identifier: BSD-3-Clause
// services.h - what components that are not Pinrail's own do with references and states:
// pinrail_registration_services_t of component_rcache.h. Pinrail's own pools and indexes use references.h and
// registration.h directly.
//
// Threads  all functions may run together.
// Hook     mark_dead_hook().
#ifndef PINRAIL_BASE_REGISTRATION_SERVICES_H
#define PINRAIL_BASE_REGISTRATION_SERVICES_H

#include <pinrail/component_rcache.h>

namespace pinrail::services {

uint32_t state_of(const pinrail_registration_t* reg);
uint64_t generation_of(const pinrail_registration_t* reg);
int take(const pinrail_host_t* host, pinrail_thread_t* thread, pinrail_registration_t* reg);
pinrail_drop_t drop(const pinrail_host_t* host, pinrail_thread_t* thread, pinrail_handle_t handle);
void mark_indexed(const pinrail_host_t* host, pinrail_thread_t* thread, pinrail_registration_t* reg);
void mark_uncached(const pinrail_host_t* host, pinrail_registration_t* reg);
int mark_dead_hook(pinrail_registration_t* reg);
size_t retire_idle(const pinrail_host_t* host, const pinrail_rcache_t* rcache, pinrail_registration_t** regs,
                   size_t count);
void orphan(const pinrail_host_t* host, pinrail_registration_t* reg);

}  // namespace pinrail::services

#endif
