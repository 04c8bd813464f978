// SPDX-License-Identifier: BSD-3-Clause
// pinrun.h - libpinrun: libibverbs' functions for memory regions, served from pools of Pinrail.
//
// A program that runs under pinrun calls the functions of interpose.cc. Each protection domain has a pool (domains.h).
// The pool registers with the real functions (real_verbs.h, registrar.cc). The program receives a region of its own for
// each call (domains.h); regions with the same range and access share one registration, hence its keys.
//
// Threads  as libibverbs: all functions may run together; ibv_dealloc_pd() excludes other calls with the same domain.
// Fork     a child forgets the domains of its parent and creates pools of its own.
// Context  API.
//
// Whatever Pinrail cannot cache is passed to the real function, so that no call fails that would succeed without
// pinrun. What pools keep unused makes room for it. What libibverbs refuses, it refuses itself, and in silence: a
// program that calls libibverbs has no pools to be told about. A region has the address, length and domain that the
// program named, and keys that are valid until the program deregisters it. Its handle is that of the device's region.
// No object with static storage duration needs code at start or at exit of the process.
#ifndef PINRAIL_CONTRIB_PINRUN_PINRUN_H
#define PINRAIL_CONTRIB_PINRUN_PINRUN_H

#include <infiniband/verbs.h>
#include <pinrail/pinrail.h>

#include <atomic>
#include <cstdint>

// The header defines these as macros over inline functions.
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

// Functions that libibverbs has for provider libraries. Public headers do not declare them.
extern "C" int ibv_cmd_dereg_mr(ibv_mr* mr);
extern "C" int ibv_cmd_dealloc_pd(ibv_pd* pd);

namespace pinrail::pinrun {

// What pinrun's options ask for, from the variables PINRUN_*.
struct Options {
  bool stats;    // PINRUN_STATS: print figures at exit
  long command;  // its value, the pid of the process that prints even if there are none
  bool share;    // PINRUN_SHARE: a request may hit a larger registration
  bool release;  // PINRUN_RELEASE: the last deregister ends the key
};
const Options& options();

// Figures of this process.
struct Counts {
  std::atomic<uint64_t> registrations;  // calls that a pool served
  std::atomic<uint64_t> passed;         // calls that were passed to the real function
  std::atomic<uint64_t> device_calls;   // registrations that the real function made for a pool
  std::atomic<uint64_t> device_ns;      // time in those calls
  std::atomic<uint64_t> releases;       // deregistrations for a pool
  std::atomic<uint64_t> release_ns;     // time in those calls
};
Counts& counts();
void print_stats();

// The registrar of the pools of one protection domain.
pinrail_registrar_t registrar_of(ibv_pd* domain);

// What a device adds to an address of the process to get the address on the wire (iova). Pools know no such number: the
// registrar registers with the one that its thread wants, and the tail keeps it.
extern thread_local uint64_t wanted_shift;
uint64_t shift_of(const pinrail_registration_t* reg);

// The kernel's name for the region, by which another process imports it.
uint32_t device_handle_of(const pinrail_registration_t* reg);

// Whether the registration is of GPU memory, by its dmabuf.
bool is_dmabuf(const pinrail_registration_t* reg);

// A region of the program stands for the registration from start_use() to end_use(). False: the device's region was
// taken; the caller gives the registration back.
bool start_use(pinrail_registration_t* reg);
void end_use(pinrail_registration_t* reg);

// Called by one that uses the registration: returns the device's region, which is the caller's from now on, so that the
// pool's deregistration does not reach the device. NULL if the program has other regions of the registration.
ibv_mr* take_device_region(pinrail_registration_t* reg);

// Returns true, and the rights and traits in Pinrail's terms, if regions with this access can be cached.
bool cacheable(unsigned access, uint32_t* access_out);

// Whether a registration failed with this errno for lack of something that other registrations hold.
bool is_lack(int error);

uint64_t now_ns();

}  // namespace pinrail::pinrun

#endif
