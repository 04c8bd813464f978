// SPDX-License-Identifier: BSD-3-Clause
// verbs_double.h - what tests ask the double of libibverbs (verbs_double.cc).
#ifndef PINRAIL_TEST_FAKE_VERBS_VERBS_DOUBLE_H
#define PINRAIL_TEST_FAKE_VERBS_VERBS_DOUBLE_H

#include <infiniband/verbs.h>

#include <cstdint>

extern "C" {
uint64_t verbs_double_registered();       // regions made so far
uint64_t verbs_double_live();             // regions that exist now
uint64_t verbs_double_iova();             // the address on the wire of the region that was made last
void verbs_double_most_live(uint64_t n);  // while n regions exist, registrations fail with ENOMEM
void verbs_double_fail_from(
    uint64_t n);                      // the n-th registration from now, and all later ones, fail with ENOMEM; 0: none
void verbs_double_slow(unsigned ms);  // what each deregistration takes
uint64_t verbs_double_leaving();      // regions that are being deregistered
// Whether the device serves a request that has the key, on a queue pair of the domain.
bool verbs_double_allows(uint32_t key, const ibv_pd* pd, const void* addr, unsigned access);
}

#endif
