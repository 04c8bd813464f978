// SPDX-License-Identifier: BSD-3-Clause
// real_verbs.cc - looks the functions up by version in libibverbs' own scope, where interpose.cc is not found.
#include "real_verbs.h"

#include <dlfcn.h>
#include <pthread.h>

// Headers before those of libibverbs 34 lack the one, before 31 the other.
extern "C" void ibv_unimport_pd(ibv_pd* pd);
extern "C" ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access);

namespace pinrail::pinrun {
namespace {

RealVerbs real;
std::array<Replacement, 9> all_replacements;
pthread_once_t loaded = PTHREAD_ONCE_INIT;

template <typename Function>
void look_up(void* library, const char* name, const char* version, Function* function_out) {
  *function_out = reinterpret_cast<Function>(real_dlvsym(library, name, version));
}

template <typename Function>
Replacement replaced(const char* name, Function own_real, Function own) {
  return {name, reinterpret_cast<void*>(own_real), reinterpret_cast<void*>(own)};
}

void list_replacements() {
  all_replacements = {replaced("ibv_reg_mr", real.reg_mr, &::ibv_reg_mr),
                      replaced("ibv_reg_mr_iova", real.reg_mr_iova, &::ibv_reg_mr_iova),
                      replaced("ibv_reg_mr_iova2", real.reg_mr_iova2, &::ibv_reg_mr_iova2),
                      replaced("ibv_reg_dmabuf_mr", real.reg_dmabuf_mr, RegDmabuf{&::ibv_reg_dmabuf_mr}),
                      replaced("ibv_rereg_mr", real.rereg_mr, &::ibv_rereg_mr),
                      replaced("ibv_dereg_mr", real.dereg_mr, &::ibv_dereg_mr),
                      replaced("ibv_dealloc_pd", real.dealloc_pd, &::ibv_dealloc_pd),
                      replaced("ibv_unimport_pd", real.unimport_pd, UnimportPd{&::ibv_unimport_pd}),
                      replaced("ibv_close_device", real.close_device, &::ibv_close_device)};
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
  real.cmd_dereg_mr = reinterpret_cast<decltype(real.cmd_dereg_mr)>(real_dlsym(library, "ibv_cmd_dereg_mr"));
  real.cmd_dealloc_pd = reinterpret_cast<decltype(real.cmd_dealloc_pd)>(real_dlsym(library, "ibv_cmd_dealloc_pd"));
  list_replacements();
  keep_own_calls(real);
}

// Before the program's first call, which may be one of libibverbs' own function.
__attribute__((constructor)) void load_if_the_program_has_it() {
  void* library = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  static_cast<void>(real_verbs());
  dlclose(library);
}

}  // namespace

const std::array<Replacement, 9>& replacements() { return all_replacements; }

const RealVerbs& real_verbs() {
  pthread_once(&loaded, load);
  return real;
}

// Newer libibverbs register everything by ibv_reg_mr_iova2().
ibv_mr* real_region(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  const RealVerbs& own = real_verbs();
  if (own.reg_mr_iova2 != nullptr) return own.reg_mr_iova2(domain, addr, length, iova, access);
  const int needed = static_cast<int>(access & ~unsigned{IBV_ACCESS_OPTIONAL_RANGE});
  if (iova == reinterpret_cast<uintptr_t>(addr)) return own.reg_mr(domain, addr, length, needed);
  return own.reg_mr_iova != nullptr ? own.reg_mr_iova(domain, addr, length, iova, needed) : nullptr;
}

ibv_mr* register_real(ibv_pd* domain, void* addr, size_t length, uint64_t iova, unsigned access) {
  return with_room([&] { return real_region(domain, addr, length, iova, access); },
                   [](ibv_mr* region) { return region != nullptr; });
}

}  // namespace pinrail::pinrun
