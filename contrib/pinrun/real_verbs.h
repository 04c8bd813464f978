// SPDX-License-Identifier: BSD-3-Clause
// real_verbs.h - the functions of libibverbs itself, which those of interpose.cc hide from the program.
#ifndef PINRAIL_CONTRIB_PINRUN_REAL_VERBS_H
#define PINRAIL_CONTRIB_PINRUN_REAL_VERBS_H

#include <array>
#include <cerrno>

#include "pinrun.h"

namespace pinrail::pinrun {

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
// not be at the device: it goes then. The last try is for what was dead.
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
