// SPDX-License-Identifier: BSD-3-Clause
// plugin.cc - opened by doors.cc with RTLD_DEEPBIND, so that its calls reach libibverbs and the C library themselves.
#include "test/pinrun/plugin.h"

#include <dlfcn.h>

namespace pinrail::test {
namespace {

template <typename Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) Door plugin_own_calls() {
  return {&::ibv_reg_mr, &::ibv_rereg_mr, &::ibv_dereg_mr, &::ibv_dealloc_pd};
}

__attribute__((visibility("default"))) Door plugin_next() {
  return {next(&::ibv_reg_mr, "ibv_reg_mr"), next(&::ibv_rereg_mr, "ibv_rereg_mr"),
          next(&::ibv_dereg_mr, "ibv_dereg_mr"), next(&::ibv_dealloc_pd, "ibv_dealloc_pd")};
}

}  // extern "C"
}  // namespace pinrail::test
