// SPDX-License-Identifier: BSD-3-Clause
// services.h - what components that are not Pinrail's own do with references and states:
// pinrail_registration_services_t of component_rcache.h. Pinrail's own pools and indexes use registration.h directly.
//
// Threads  all functions may run together.
// Hook     mark_dead_hook().
#ifndef PINRAIL_BASE_REGISTRATION_SERVICES_H
#define PINRAIL_BASE_REGISTRATION_SERVICES_H

#include <pinrail/component_rcache.h>

namespace pinrail::services {

uint32_t state_of(const pinrail_registration_t* reg);
uint64_t generation_of(const pinrail_registration_t* reg);
uint64_t references_of(const pinrail_registration_t* reg);
int take(pinrail_registration_t* reg);
pinrail_drop_t drop(pinrail_handle_t handle);
void mark_indexed(pinrail_registration_t* reg, uint64_t marks);
void mark_uncached(pinrail_registration_t* reg);
int mark_dead_hook(pinrail_registration_t* reg);
int retire(pinrail_registration_t* reg);
int orphan(pinrail_registration_t* reg);

}  // namespace pinrail::services

#endif
