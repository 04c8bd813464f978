// SPDX-License-Identifier: BSD-3-Clause
// cuda_library.h - the CUDA driver library, opened at run time: nothing is linked against it.
//
// Threads  open() excludes the rest; the functions are the driver's own, and as thread-safe.
#ifndef PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_LIBRARY_H
#define PINRAIL_COMPONENTS_REGISTRAR_CUDA_IPC_CUDA_LIBRARY_H

#include "base/cuda/cuda_driver.h"

#include "base/core/status.h"

// Functions that must be there. cuda_driver.h turns some of these names into those of a later version, here as where
// they are called.
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

// Functions of drivers from 11.7 on; without them only memory of cuMemAlloc is known.
#define PINRAIL_CUDA_YOUNGER_FUNCTIONS(X) \
  X(cuPointerGetAttribute)                \
  X(cuMemGetAddressRange)                 \
  X(cuMemGetHandleForAddressRange)        \
  X(cuMemFree)                            \
  X(cuMemAddressReserve)                  \
  X(cuMemAddressFree)                     \
  X(cuMemMap)                             \
  X(cuMemUnmap)                           \
  X(cuMemSetAccess)                       \
  X(cuMemRelease)                         \
  X(cuMemRetainAllocationHandle)          \
  X(cuMemExportToShareableHandle)         \
  X(cuMemImportFromShareableHandle)       \
  X(cuMemPoolDestroy)                     \
  X(cuMemPoolSetAccess)                   \
  X(cuMemPoolExportToShareableHandle)     \
  X(cuMemPoolImportFromShareableHandle)   \
  X(cuMemPoolExportPointer)               \
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
  PINRAIL_CUDA_YOUNGER_FUNCTIONS(PINRAIL_CUDA_FIELD)
  PINRAIL_CUDA_EVENT_FUNCTIONS(PINRAIL_CUDA_FIELD)
#undef PINRAIL_CUDA_FIELD
  bool has_younger = false, has_events = false;  // all of them

  // NOT_AVAILABLE and the reason in words, which lives until the next call of the loader. It is never unmapped again:
  // the driver has threads of its own.
  Status open(const char* file, const char** why_out);
};

}  // namespace pinrail::cuda_ipc

#endif
