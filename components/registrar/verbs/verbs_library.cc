// SPDX-License-Identifier: BSD-3-Clause
// Loads libibverbs at run time. API context, no lock.
#include "components/registrar/verbs/verbs_library.h"

#include <dlfcn.h>

#include "base/core/trust.h"

namespace pinrail::verbs {
namespace {

constexpr char kLibrary[] = "libibverbs.so.1";

template <typename Function>
bool load(void* handle, const char* name, Function* function_out) {
  *function_out = reinterpret_cast<Function>(dlsym(handle, name));
  return *function_out != nullptr;
}

}  // namespace

Status Library::open(const char** why_out) {
  if (!trust::in_environment()) {
    *why_out = "the program has more rights than its caller, and libibverbs reads the environment";
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  // RTLD_NODELETE: the library has loaded drivers of its own, which do not support being unloaded.
  handle = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  bool all = true;
#define PINRAIL_VERBS_LOAD(name) all = load(handle, "ibv_" #name, &(name)) && all;
  PINRAIL_VERBS_FUNCTIONS(PINRAIL_VERBS_LOAD)
#undef PINRAIL_VERBS_LOAD
  load(handle, "ibv_reg_mr_iova2", &reg_mr_iova2);
  load(handle, "ibv_reg_dmabuf_mr", &reg_dmabuf_mr);
  load(handle, "_ibv_query_gid_ex", &query_gid_ex);
  load(handle, "ibv_cmd_advise_mr", &cmd_advise_mr);
  if (all) return success();
  *why_out = "libibverbs.so.1 lacks a function that is needed";
  close();
  return PINRAIL_ERR_NOT_AVAILABLE;
}

void Library::close() {
  if (handle != nullptr) dlclose(handle);
  handle = nullptr;
}

}  // namespace pinrail::verbs
