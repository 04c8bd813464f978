/* SPDX-License-Identifier: BSD-3-Clause
 * cuda.h - for Open MPI, which is configured --with-cuda=test/fake/cuda/toolkit: what it needs of the toolkit's header,
 * with the driver double behind it. The functions are those that Open MPI calls and Pinrail does not;
 * base/cuda/cuda_driver.h says where such declarations come from.
 */
#ifndef PINRAIL_TEST_FAKE_CUDA_TOOLKIT_CUDA_H
#define PINRAIL_TEST_FAKE_CUDA_TOOLKIT_CUDA_H

#include "test/fake/cuda/cuda_for_tests.h"

#define CUDA_VERSION 13000

/* Open MPI's configure looks for this one to tell whether the driver has virtual memory management. */
#define CU_MEM_LOCATION_TYPE_HOST_NUMA 3

#ifdef __cplusplus
extern "C" {
#endif

enum {
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CU_MEMORYTYPE_HOST = 1,
  CU_STREAM_NON_BLOCKING = 1,
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0
};

#define cuMemHostRegister cuMemHostRegister_v2
#define cuStreamDestroy cuStreamDestroy_v2

CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer);
CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice device);
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr address);
CUresult cuMemHostRegister(void* address, size_t bytes, unsigned int flags);
CUresult cuMemHostUnregister(void* address);
CUresult cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool, CUmemLocation* location);
CUresult cuMemcpyAsync(CUdeviceptr into, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuStreamCreate(CUstream* stream, unsigned int flags);
CUresult cuStreamDestroy(CUstream stream);

#ifdef __cplusplus
}
#endif

#endif
