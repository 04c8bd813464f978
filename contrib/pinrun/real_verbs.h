// SPDX-License-Identifier: BSD-3-Clause
// real_verbs.h - the functions of libibverbs itself, which those of interpose.cc hide from the program.
#ifndef PINRAIL_CONTRIB_PINRUN_REAL_VERBS_H
#define PINRAIL_CONTRIB_PINRUN_REAL_VERBS_H

#include "contrib/pinrun/pinrun.h"

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
};

// Loads them with the first call. A program that calls libibverbs has loaded it already.
const RealVerbs& real_verbs();

// The C library's dlvsym(), which dlsym.cc hides from the program.
void* real_dlvsym(void* handle, const char* name, const char* version);

// Functions of libibverbs call each other by names that interpose.cc hides. Such a call, on a thread that is inside a
// real function, is passed on.
extern thread_local int real_calls;
inline bool inside_real_call() { return real_calls != 0; }

struct RealCall {
  RealCall() { ++real_calls; }
  ~RealCall() { --real_calls; }
  RealCall(const RealCall&) = delete;
  RealCall& operator=(const RealCall&) = delete;
};

// Calls a real function. All of them are called this way.
template <typename Function, typename... Arguments>
auto call_real(Function function, Arguments... arguments) {
  const RealCall scope;
  return function(arguments...);
}

// Registers by the function that this libibverbs has for the address on the wire (iova) and the access; NULL if it has
// none. Relaxed ordering is optional: without ibv_reg_mr_iova2 the region is registered without it.
ibv_mr* real_region(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access);

}  // namespace pinrail::pinrun

#endif
