// SPDX-License-Identifier: BSD-3-Clause
// real_verbs.cc - looks the functions up by version in libibverbs' own scope, where interpose.cc is not found.
#include "contrib/pinrun/real_verbs.h"

#include <dlfcn.h>
#include <pthread.h>

namespace pinrail::pinrun {
namespace {

RealVerbs real;
pthread_once_t loaded = PTHREAD_ONCE_INIT;

template <typename Function>
void look_up(void* library, const char* name, const char* version, Function* function_out) {
  *function_out = reinterpret_cast<Function>(real_dlvsym(library, name, version));
}

void load() {
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY);
  if (library == nullptr) return;
  look_up(library, "ibv_reg_mr", "IBVERBS_1.1", &real.reg_mr);
  look_up(library, "ibv_reg_mr_iova", "IBVERBS_1.7", &real.reg_mr_iova);
  look_up(library, "ibv_reg_mr_iova2", "IBVERBS_1.8", &real.reg_mr_iova2);
  look_up(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", &real.reg_dmabuf_mr);
  look_up(library, "ibv_rereg_mr", "IBVERBS_1.1", &real.rereg_mr);
  look_up(library, "ibv_dereg_mr", "IBVERBS_1.1", &real.dereg_mr);
  look_up(library, "ibv_dealloc_pd", "IBVERBS_1.1", &real.dealloc_pd);
  look_up(library, "ibv_unimport_pd", "IBVERBS_1.10", &real.unimport_pd);
  look_up(library, "ibv_close_device", "IBVERBS_1.1", &real.close_device);
}

}  // namespace

thread_local int real_calls = 0;

const RealVerbs& real_verbs() {
  pthread_once(&loaded, load);
  return real;
}

ibv_mr* real_region(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  const RealVerbs& own = real_verbs();
  const bool is_shifted = iova != reinterpret_cast<uintptr_t>(addr);
  if (((access & IBV_ACCESS_OPTIONAL_RANGE) != 0 || is_shifted) && own.reg_mr_iova2 != nullptr)
    return call_real(own.reg_mr_iova2, domain, addr, length, iova, access);
  const int needed = static_cast<int>(access & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE});
  if (!is_shifted) return call_real(own.reg_mr, domain, addr, length, needed);
  return own.reg_mr_iova != nullptr ? call_real(own.reg_mr_iova, domain, addr, length, iova, needed) : nullptr;
}

}  // namespace pinrail::pinrun
