// SPDX-License-Identifier: BSD-3-Clause
// pinrun.h - libpinrun: libibverbs' functions for memory regions, served from pools of Pinrail.
//
// A program that runs under pinrun calls the functions of interpose.cc. Each protection domain has a pool (pinrun.h).
// The pool registers with the real functions (dlsym.cc, registrar.cc). The program receives a region of its own for
// each call (pinrun.h); regions with the same range and access share one registration, hence its keys.
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

#include <array>
#include <atomic>
#include <cerrno>
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

// The pools of each protection domain.
//
// Owns     the pools. A pool exists from the first region that needs it until its domain is freed.
// Threads  all functions may run together; end_domain() and abandon_domain() exclude other calls with the same
//          domain, as ibv_dealloc_pd() and ibv_unimport_pd() do.

// A pool knows registrations by the process's addresses. So the first pool of a domain has those whose addresses on the
// wire are the same; the others have those at other addresses, and one buffer can have as many of them at a time.
constexpr unsigned kPools = 5;

// Returns a pool of the domain, and creates it with the first call. NULL if Pinrail cannot work in this process.
pinrail_mpool_t* pool_of(ibv_pd* domain, unsigned number);

// Deregisters what is dead, and one registration that pools keep and the program does not hold. Returns false if there
// is no such one; what other threads were deregistering then is gone, too.
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

// Headers of before libibverbs 34 and 31 lack them.
using UnimportPd = void (*)(ibv_pd* domain);
using RegDmabuf = ibv_mr* (*)(ibv_pd* domain, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

// A function that this libibverbs lacks is NULL.
struct RealVerbs {
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_reg_mr_iova) reg_mr_iova;
  decltype(&::ibv_reg_mr_iova2) reg_mr_iova2;
  RegDmabuf reg_dmabuf_mr;
  decltype(&::ibv_rereg_mr) rereg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  UnimportPd unimport_pd;
  decltype(&::ibv_close_device) close_device;
  int (*cmd_dereg_mr)(ibv_mr* region);    // provider libraries deregister by this function,
  int (*cmd_dealloc_pd)(ibv_pd* domain);  // and free domains by this one
};

// Loads them with the first call. A program that calls libibverbs has loaded it already.
const RealVerbs& real_verbs();

// A function of libibverbs and the one that the program calls instead. real is NULL if this libibverbs lacks it.
struct Replacement {
  const char* name;
  void* real;
  void* own;
};
const std::array<Replacement, 9>& replacements();  // after real_verbs()

// The C library's functions, which dlsym.cc hides from the program.
void* real_dlsym(void* handle, const char* name);
void* real_dlvsym(void* handle, const char* name, const char* version);

// Registers by the function that this libibverbs has for the address on the wire (iova) and the access; NULL if it has
// none. Relaxed ordering is optional: without ibv_reg_mr_iova2 the region is registered without it.
ibv_mr* real_region(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access);

// Calls a function that may fail because the device lacks something. Without pinrun, what the pools keep unused would
// not be at the device: it goes then. The last try is for what was dead, and what other
// threads were giving back.
template <typename Call, typename Succeeded>
auto with_room(Call call, Succeeded succeeded) {
  auto result = call();
  for (bool has_more = true; !succeeded(result) && is_lack(errno) && has_more;) {
    has_more = make_room();
    result = call();
  }
  return result;
}

// As real_region(), with room.
ibv_mr* register_real(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access);

// Makes libibverbs' own calls of these functions reach its own: a caller that found libibverbs' functions by another
// way than the program's (RTLD_DEEPBIND, RTLD_NEXT) has regions of libibverbs alone.
void keep_own_calls(const RealVerbs& real);

}  // namespace pinrail::pinrun

#endif
