/* SPDX-License-Identifier: BSD-3-Clause
 * cuda_for_tests.h - what only tests and the driver's double use of the CUDA driver, beside base/cuda/cuda_driver.h and
 * in its manner.
 */
#ifndef PINRAIL_TEST_FAKE_CUDA_CUDA_FOR_TESTS_H
#define PINRAIL_TEST_FAKE_CUDA_CUDA_FOR_TESTS_H

#include "base/cuda/cuda_driver.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum CUdevice_attribute_enum {
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
  CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128
} CUdevice_attribute;

/* Values of the driver's enumerations. */
static const CUresult CUDA_ERROR_NOT_INITIALIZED = (CUresult)3;
static const CUresult CUDA_ERROR_NO_DEVICE = (CUresult)100;
static const CUresult CUDA_ERROR_INVALID_DEVICE = (CUresult)101;
static const CUresult CUDA_ERROR_OPERATING_SYSTEM = (CUresult)304;
static const CUresult CUDA_ERROR_ILLEGAL_ADDRESS = (CUresult)700;
static const CUresult CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = (CUresult)900;
static const CUresult CUDA_ERROR_UNKNOWN = (CUresult)999;
static const CUstreamCaptureMode CU_STREAM_CAPTURE_MODE_GLOBAL = (CUstreamCaptureMode)0;
static const CUmemAllocationHandleType CU_MEM_HANDLE_TYPE_NONE = (CUmemAllocationHandleType)0;

typedef struct CUmemFabricHandle_st {
  unsigned char data[64];
} CUmemFabricHandle;

typedef enum CUmemAttach_flags_enum { CU_MEM_ATTACH_GLOBAL = 1 } CUmemAttach_flags;

typedef enum CUmemAllocationType_enum { CU_MEM_ALLOCATION_TYPE_PINNED = 1 } CUmemAllocationType;

typedef enum CUmemAllocationGranularity_flags_enum {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
} CUmemAllocationGranularity_flags;

typedef struct CUmemAllocationProp_st {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;
    unsigned char reserved[4];
  } allocFlags;
} CUmemAllocationProp;

typedef struct CUmemPoolProps_st {
  CUmemAllocationType allocType;
  CUmemAllocationHandleType handleTypes;
  CUmemLocation location;
  void* win32SecurityAttributes;
  size_t maxSize;
  unsigned short usage;
  unsigned char reserved[54];
} CUmemPoolProps;

#define cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2
#define cuCtxDestroy cuCtxDestroy_v2
#define cuMemAlloc cuMemAlloc_v2
#define cuMemGetInfo cuMemGetInfo_v2
#define cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2
#define cuMemsetD8 cuMemsetD8_v2

CUresult cuDriverGetVersion(int* version);
CUresult cuGetErrorName(CUresult error, const char** name);
CUresult cuGetProcAddress(const char* name, void** function, int version, uint64_t flags);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int* flags, int* active);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetCurrent(CUcontext* context);
CUresult cuCtxGetDevice(CUdevice* device);
CUresult cuCtxDestroy(CUcontext context);
CUresult cuMemAlloc(CUdeviceptr* address, size_t bytes);
CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags);
CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes);
CUresult cuMemcpyDtoHAsync(void* into, CUdeviceptr from, size_t bytes, CUstream stream);
CUresult cuMemsetD8(CUdeviceptr address, unsigned char value, size_t bytes);
CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* properties,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags);
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle);
CUresult cuMemPoolCreate(CUmemoryPool* pool, const CUmemPoolProps* properties);
CUresult cuMemAllocAsync(CUdeviceptr* address, size_t bytes, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* address, size_t bytes, CUmemoryPool pool, CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);

#ifdef __cplusplus
}
#endif

#endif
