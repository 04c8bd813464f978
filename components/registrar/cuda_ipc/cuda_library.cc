// SPDX-License-Identifier: BSD-3-Clause
// Loads the CUDA driver library at run time. API context, no lock.
#include "components/registrar/cuda_ipc/cuda_library.h"

#include <dlfcn.h>

#include "base/core/trust.h"

namespace pinrail::cuda_ipc {
namespace {

template <typename Function>
bool load(void* handle, const char* name, Function* function_out) {
  *function_out = reinterpret_cast<Function>(dlsym(handle, name));
  return *function_out != nullptr;
}

}  // namespace

Status Library::open(const char* file, const char** why_out) {
  if (!trust::in_environment()) {
    *why_out = "the program has more rights than its caller, and the driver reads the environment";
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  void* handle = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
    return PINRAIL_ERR_NOT_AVAILABLE;
  }
  bool all = true;
  has_optional = has_events = true;
#define PINRAIL_CUDA_NAME(name) #name
#define PINRAIL_CUDA_LOAD(name) all = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && all;
  PINRAIL_CUDA_FUNCTIONS(PINRAIL_CUDA_LOAD)
#define PINRAIL_CUDA_TRY(name) has_optional = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && has_optional;
  PINRAIL_CUDA_OPTIONAL_FUNCTIONS(PINRAIL_CUDA_TRY)
#undef PINRAIL_CUDA_TRY
#define PINRAIL_CUDA_TRY(name) has_events = load(handle, PINRAIL_CUDA_NAME(name), &(name)) && has_events;
  PINRAIL_CUDA_EVENT_FUNCTIONS(PINRAIL_CUDA_TRY)
#undef PINRAIL_CUDA_TRY
#undef PINRAIL_CUDA_LOAD
#undef PINRAIL_CUDA_NAME
  dlclose(handle);  // RTLD_NODELETE: the library stays loaded
  if (all) return success();
  *why_out = "it lacks a function that is needed; the driver is too old";
  return PINRAIL_ERR_NOT_AVAILABLE;
}

}  // namespace pinrail::cuda_ipc
