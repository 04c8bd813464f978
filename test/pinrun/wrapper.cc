// SPDX-License-Identifier: BSD-3-Clause
// wrapper.cc - a library that is preloaded beside pinrun and counts the program's calls, as tracers do.
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <atomic>
#include <cstdio>

namespace {

std::atomic<int> calls{0};

__attribute__((destructor)) void print() {
  if (calls.load() != 0) std::printf("wrapper: %d calls\n", calls.load());
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int ibv_dereg_mr(ibv_mr* mr) {
  calls.fetch_add(1);
  static const auto next = reinterpret_cast<decltype(&::ibv_dereg_mr)>(dlsym(RTLD_NEXT, "ibv_dereg_mr"));
  return next(mr);
}
