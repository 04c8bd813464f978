// SPDX-License-Identifier: BSD-3-Clause
// cuda_library.h - the CUDA driver library, loaded at run time; nothing is linked against it.
//
// Threads  open() excludes all others. The functions are the driver's own and are as thread-safe as it is.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_LIBRARY_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_LIBRARY_H

#include "base/cuda/cuda_driver.h"

#include "base/core/status.h"

// Functions that every supported driver has. cuda_driver.h maps some of these names to those of a later version, here
// and where they are called.
#define PINRAIL_CUDA_FUNCTIONS(X) \
  X(cuInit)                       \
  X(cuDeviceGetCount)             \
  X(cuDeviceGet)                  \
  X(cuDeviceGetUuid)              \
  X(cuDevicePrimaryCtxRetain)     \
  X(cuDevicePrimaryCtxRelease)    \
  X(cuCtxPushCurrent)             \
  X(cuCtxPopCurrent)              \
  X(cuCtxSynchronize)             \
  X(cuPointerGetAttributes)       \
  X(cuPointerSetAttribute)        \
  X(cuIpcGetMemHandle)            \
  X(cuIpcOpenMemHandle)           \
  X(cuIpcCloseMemHandle)          \
  X(cuMemcpyDtoH)                 \
  X(cuMemcpyHtoD)

// Functions of drivers since 11.7. Without them only memory of cuMemAlloc is supported.
#define PINRAIL_CUDA_OPTIONAL_FUNCTIONS(X) \
  X(cuPointerGetAttribute)                 \
  X(cuMemGetAddressRange)                  \
  X(cuMemGetHandleForAddressRange)         \
  X(cuMemFree)                             \
  X(cuMemAddressReserve)                   \
  X(cuMemAddressFree)                      \
  X(cuMemMap)                              \
  X(cuMemUnmap)                            \
  X(cuMemSetAccess)                        \
  X(cuMemRelease)                          \
  X(cuMemRetainAllocationHandle)           \
  X(cuMemExportToShareableHandle)          \
  X(cuMemImportFromShareableHandle)        \
  X(cuMemPoolDestroy)                      \
  X(cuMemPoolSetAccess)                    \
  X(cuMemPoolExportToShareableHandle)      \
  X(cuMemPoolImportFromShareableHandle)    \
  X(cuMemPoolExportPointer)                \
  X(cuMemPoolImportPointer)

// Functions for events (registrar_cuda_ipc_events).
#define PINRAIL_CUDA_EVENT_FUNCTIONS(X) \
  X(cuEventCreate)                      \
  X(cuEventDestroy)                     \
  X(cuEventQuery)                       \
  X(cuEventRecord)                      \
  X(cuStreamWaitEvent)                  \
  X(cuIpcGetEventHandle)                \
  X(cuIpcOpenEventHandle)

namespace pinrail::cuda_ipc {

struct Library {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration takes none
#define PINRAIL_CUDA_FIELD(name) decltype(&::name) name = nullptr;
  PINRAIL_CUDA_FUNCTIONS(PINRAIL_CUDA_FIELD)
  PINRAIL_CUDA_OPTIONAL_FUNCTIONS(PINRAIL_CUDA_FIELD)
  PINRAIL_CUDA_EVENT_FUNCTIONS(PINRAIL_CUDA_FIELD)
#undef PINRAIL_CUDA_FIELD
  bool has_optional = false, has_events = false;  // all functions of the list were found

  // NOT_AVAILABLE, and a reason that stays valid until the next call of the dynamic loader. The library is never
  // unmapped, because the driver has threads of its own.
  Status open(const char* file, const char** why_out);
};

}  // namespace pinrail::cuda_ipc

#endif
