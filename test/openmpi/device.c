// SPDX-License-Identifier: BSD-3-Clause
#include "test/openmpi/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/openmpi/common.h"
#ifdef PINRAIL_TEST_REAL_DRIVER
#include "test/fake/cuda/toolkit/cuda.h"
#else
#include "test/fake/cuda/cuda_double.h"
#endif

static char* host;  // as long as the longest buffer
static size_t host_bytes;

static void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "rank %d: %s: error %d\n", rank, call, (int)result);
  exit(2);
}

void open_device(void) {
  CUcontext context;
  must(cuInit(0), "cuInit");
  must(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxPushCurrent(context), "cuCtxPushCurrent");
}

void* device_alloc(size_t bytes) {
  CUdeviceptr address;
  must(cuMemAlloc(&address, bytes), "cuMemAlloc");
  return (void*)(uintptr_t)address;
}
void device_free(void* memory) { must(cuMemFree((uintptr_t)memory), "cuMemFree"); }

static void* host_buffer(size_t bytes) {
  if (bytes <= host_bytes) return host;
  free(host);
  host = buffer_of(bytes);
  host_bytes = bytes;
  return host;
}

void device_fill(void* memory, size_t bytes, uint64_t seed) {
  fill(host_buffer(bytes), bytes, seed);
  device_write(memory, host, bytes);
}
void device_check(const void* memory, size_t bytes, uint64_t seed, const char* what) {
  device_read(host_buffer(bytes), memory, bytes);
  check(host, bytes, seed, what);
}
void device_clear(void* memory, size_t bytes) { must(cuMemsetD8((uintptr_t)memory, 0, bytes), "cuMemsetD8"); }
void device_read(void* into, const void* memory, size_t bytes) {
  must(cuMemcpyDtoH(into, (uintptr_t)memory, bytes), "cuMemcpyDtoH");
}
void device_write(void* memory, const void* from, size_t bytes) {
  must(cuMemcpyHtoD((uintptr_t)memory, from, bytes), "cuMemcpyHtoD");
}

#ifdef PINRAIL_TEST_REAL_DRIVER
void tell_device(void) {}
#else
void tell_device(void) {
  const unsigned long long opens = cuda_double_calls("cuIpcOpenMemHandle"),
                           closes = cuda_double_calls("cuIpcCloseMemHandle"),
                           mapped = cuda_double_calls(CUDA_DOUBLE_ALREADY_MAPPED);
  printf("device %d: %llu opens, %llu closes, %llu already mapped, %zu open\n", rank, opens, closes, mapped,
         cuda_double_open_handles());
  fflush(stdout);
}
#endif
