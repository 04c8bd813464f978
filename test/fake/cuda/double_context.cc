// SPDX-License-Identifier: BSD-3-Clause
// Start, devices and contexts.
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "test/fake/cuda/double_state.h"
#include "test/fake/cuda/patchable.h"

using namespace pinrail::cuda_double;
using Lock = std::lock_guard<std::mutex>;

namespace {

size_t number_of(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): at start-up
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

// "function:n:error" or "function:n:error:every"
void read_order(State* in) {
  const char* text = std::getenv("CUDA_DOUBLE_FAIL");  // NOLINT(concurrency-mt-unsafe): at start-up
  if (text == nullptr) return;
  const std::string order = text;
  const size_t first = order.find(':'), second = order.find(':', first + 1);
  if (first == std::string::npos || second == std::string::npos) return;
  in->orders[order.substr(0, first)] = {std::strtoull(order.c_str() + first + 1, nullptr, 10),
                                        static_cast<CUresult>(std::atoi(order.c_str() + second + 1)),
                                        order.find(":every", second) != std::string::npos};
}

constexpr int kVersion = 13000;  // 13.0

bool is_device(CUdevice device) { return device >= 0 && device < state().devices; }

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  State& in = state();
  Lock lock(in.mutex);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (in.initialised) return CUDA_SUCCESS;
  in.devices = static_cast<int>(number_of("CUDA_DOUBLE_DEVICES", 1));
  in.limit = number_of("CUDA_DOUBLE_MEMORY", SIZE_MAX);
  in.has_ipc = std::getenv("CUDA_DOUBLE_NO_IPC") == nullptr;  // NOLINT(concurrency-mt-unsafe): at start-up
  in.granularity = number_of("CUDA_DOUBLE_GRANULARITY", kGranularity);
  in.has_fabric = std::getenv("CUDA_DOUBLE_FABRIC") != nullptr;     // NOLINT(concurrency-mt-unsafe): at start-up
  in.has_dmabuf = std::getenv("CUDA_DOUBLE_NO_DMABUF") == nullptr;  // NOLINT(concurrency-mt-unsafe): at start-up
  if (in.devices <= 0 || in.devices > kMaxDevices) return CUDA_ERROR_NO_DEVICE;
  for (int i = 0; i < in.devices; ++i) in.primary[i].device = i;
  read_order(&in);
  in.initialised = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  *version = kVersion;
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char** name) {
  *name = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int* count) {
  return call("cuDeviceGetCount", [&](State& in) {
    *count = in.devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return call("cuDeviceGet", [&](State&) {
    if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  return call("cuDeviceGetUuid", [&](State&) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    std::memset(uuid->bytes, 0x40 + device, sizeof(uuid->bytes));
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return call("cuDeviceGetAttribute", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: *value = 1; break;
      case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: *value = in.has_ipc ? 1 : 0; break;
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED: *value = in.has_fabric ? 1 : 0; break;
      case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: *value = in.has_dmabuf ? 1 : 0; break;
      default: *value = 0; break;
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return call("cuDevicePrimaryCtxRetain", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    ++in.primary[device].references;
    in.primary[device].is_active = true;
    *context = &in.primary[device];
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return call("cuDevicePrimaryCtxRelease", [&](State& in) {
    if (!is_device(device) || in.primary[device].references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    if (--in.primary[device].references == 0) in.end_context(device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  return call("cuDevicePrimaryCtxGetState", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = in.primary[device].is_active ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

// cuDevicePrimaryCtxReset and cuCtxDestroy, see below. Who retained the context has it retained still.
HIDDEN CUresult cuda_double_reset(CUdevice device) {
  return call("cuDevicePrimaryCtxReset", [&](State& in) {
    if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
    in.end_context(device);
    return CUDA_SUCCESS;
  });
}

// Primary ones are all that there are, and they are not destroyed so.
HIDDEN CUresult cuda_double_ctx_destroy(CUcontext) {
  return call("cuCtxDestroy", [](State&) { return CUDA_ERROR_INVALID_CONTEXT; });
}

CUresult cuCtxPushCurrent(CUcontext context) {
  return call("cuCtxPushCurrent", [&](State&) {
    if (context == nullptr || context->references == 0) return CUDA_ERROR_INVALID_CONTEXT;
    contexts().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxPopCurrent(CUcontext* context) {
  return call("cuCtxPopCurrent", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    if (context != nullptr) *context = contexts().back();
    contexts().pop_back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return call("cuCtxSetCurrent", [&](State&) {
    if (!no_context()) contexts().pop_back();
    if (context != nullptr) contexts().push_back(context);
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return call("cuCtxGetCurrent", [&](State&) {
    *context = no_context() ? nullptr : contexts().back();
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetDevice(CUdevice* device) {
  return call("cuCtxGetDevice", [&](State&) {
    if (no_context()) return CUDA_ERROR_INVALID_CONTEXT;
    *device = contexts().back()->device;
    return CUDA_SUCCESS;
  });
}

void cuda_double_fail(const char* function, uint64_t nth, CUresult error, int every) {
  Lock lock(state().mutex);
  state().orders[function] = {nth, error, every != 0};
}

uint64_t cuda_double_calls(const char* function) {
  Lock lock(state().mutex);
  return state().calls[function];
}

void cuda_double_forget(void) {
  Lock lock(state().mutex);
  state().calls.clear();
  state().orders.clear();
}

size_t cuda_double_context_depth(void) { return contexts().size(); }

size_t cuda_double_used(void) {
  Lock lock(state().mutex);
  return state().used;
}

// As in the driver, what this gives may be another function than the symbol of that name, and cuInit need not come
// first.
CUresult cuGetProcAddress(const char* name, void** function_out, int, uint64_t) {
  *function_out = std::strcmp(name, "cuMemFree") == 0 ? reinterpret_cast<void*>(&cuda_double_free_by_table) : nullptr;
  return *function_out != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"

PATCHABLE("cuDevicePrimaryCtxReset_v2", "cuda_double_reset");
PATCHABLE("cuCtxDestroy_v2", "cuda_double_ctx_destroy");
