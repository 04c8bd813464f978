// SPDX-License-Identifier: BSD-3-Clause
// driver.h - the CUDA driver, real or the double, for programs that are two processes.
//
// Threads  one.
#ifndef PINRAIL_TEST_GPU_DRIVER_H
#define PINRAIL_TEST_GPU_DRIVER_H

#include "test/fake/cuda/cuda_for_tests.h"

#include <cstddef>

namespace pinrail::gpu_test {

struct Driver {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&::cuCtxPushCurrent) push = nullptr;
  decltype(&::cuMemAlloc) alloc = nullptr;
  decltype(&::cuMemFree) free = nullptr;
  decltype(&::cuMemGetInfo) info = nullptr;
  decltype(&::cuMemcpyDtoH) read = nullptr;
  decltype(&::cuMemcpyHtoD) write = nullptr;  // returns before the bytes are there; see put()
  decltype(&::cuCtxSynchronize) synchronise = nullptr;
  decltype(&::cuIpcGetMemHandle) get_handle = nullptr;
  decltype(&::cuIpcOpenMemHandle) open = nullptr;
  decltype(&::cuIpcCloseMemHandle) close = nullptr;
  // Of drivers that are not too old; NULL: not there.
  decltype(&::cuCtxPopCurrent) pop = nullptr;
  decltype(&::cuPointerGetAttributes) attributes = nullptr;
  decltype(&::cuPointerGetAttribute) attribute = nullptr;
  decltype(&::cuMemGetAddressRange) range = nullptr;
  decltype(&::cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&::cuMemCreate) create = nullptr;
  decltype(&::cuMemRelease) release = nullptr;
  decltype(&::cuMemAddressReserve) reserve = nullptr;
  decltype(&::cuMemAddressFree) give_back = nullptr;
  decltype(&::cuMemMap) map = nullptr;
  decltype(&::cuMemUnmap) unmap = nullptr;
  decltype(&::cuMemSetAccess) set_access = nullptr;
  decltype(&::cuMemPoolCreate) create_pool = nullptr;
  decltype(&::cuMemPoolDestroy) destroy_pool = nullptr;
  decltype(&::cuMemAllocFromPoolAsync) alloc_from_pool = nullptr;
  decltype(&::cuMemFreeAsync) free_async = nullptr;
  decltype(&::cuStreamSynchronize) wait = nullptr;
  bool has_kinds = false;  // all of those
  decltype(&::cuEventCreate) create_event = nullptr;
  decltype(&::cuEventDestroy) destroy_event = nullptr;
  decltype(&::cuEventRecord) record = nullptr;
  decltype(&::cuStreamWaitEvent) wait_for = nullptr;
  decltype(&::cuIpcGetEventHandle) get_event_handle = nullptr;
  decltype(&::cuIpcOpenEventHandle) open_event = nullptr;
  bool has_events = false;  // all six
  decltype(&::cuDevicePrimaryCtxReset) reset = nullptr;
  decltype(&::cuCtxGetCurrent) current = nullptr;
  bool has_reset = false;              // both, and attributes()
  size_t (*open_handles)() = nullptr;  // the double's alone

  // The double is loaded by its path; later dlopens of "libcuda.so.1" get it. False: there is no driver, which it has
  // said in the program's name.
  bool load(const char* program, bool is_double);
  // In this process: started, with the first GPU's context current.
  bool start(const char** why_out) const;
  // Writes, and waits until the bytes are where another process may read them.
  bool put(CUdeviceptr at, const void* bytes, size_t length) const;

 private:
  bool look_up_all(bool is_double, const char** why_out);
};

// The command line of a program that takes --double and nothing else. False: it has said how it is used.
bool read_double(int argc, char** argv, const char* program, bool* is_double_out);

}  // namespace pinrail::gpu_test

#endif
