// SPDX-License-Identifier: BSD-3-Clause
// threads.h - threads that do random things at once to pools that share a cache name.
//
// What is checked does not depend on the order of the threads: a registration that is returned covers what was asked
// for; what is held is not given back (R9); no limit is exceeded (R8); what an event touched is not returned to the
// thread that reported it (E1); in the end nothing is referenced, and the devices know nothing.
#ifndef PINRAIL_TEST_ATTACK_THREADS_H
#define PINRAIL_TEST_ATTACK_THREADS_H

#include <cstddef>
#include <cstdint>

namespace pinrail::attack {

// Prints what was wrong; true if nothing was. In a process of its own.
bool run_threads(uint64_t seed, size_t threads, uint64_t steps);

}  // namespace pinrail::attack

#endif
