// SPDX-License-Identifier: BSD-3-Clause
// gpu_memory.h - of the driver double: the first device's primary context, memory of each kind, and registrations of
// memory for tests that call a registrar's table themselves.
#ifndef PINRAIL_TEST_SUPPORT_GPU_MEMORY_H
#define PINRAIL_TEST_SUPPORT_GPU_MEMORY_H

#include <gtest/gtest.h>
#include <pinrail/gpu.h>
#include <pinrail/registrar.h>

#include "base/core/status.h"
#include "framework/registrar/request.h"
#include "test/conform/suite/registrar.h"
#include "test/fake/cuda/cuda_double.h"

namespace pinrail::test {

// Is there as long as this lives.
class PrimaryContext {
 public:
  PrimaryContext() {
    EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
  }
  ~PrimaryContext() {
    cuda_double_forget();  // orders to fail
    EXPECT_EQ(cuDevicePrimaryCtxRelease(0), CUDA_SUCCESS);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;
  CUcontext get() const { return context_; }

 private:
  CUcontext context_ = nullptr;
};

// And is current on the thread that made this, which ends it too; nothing else may be left on its stack.
class CurrentContext {
 public:
  CurrentContext() {
    EXPECT_EQ(cuCtxPushCurrent(primary_.get()), CUDA_SUCCESS);
    CUmemoryPool usual = nullptr;  // made once, and kept
    EXPECT_EQ(cuDeviceGetDefaultMemPool(&usual, 0), CUDA_SUCCESS);
  }
  ~CurrentContext() {
    cuda_double_forget();
    EXPECT_EQ(cuCtxPopCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuda_double_context_depth(), 0u);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  CUcontext get() const { return primary_.get(); }

 private:
  const PrimaryContext primary_;
};

// Local GPU memory of each kind, over the driver double. A context is current.

// Without `shareable` it has no handle that could travel.
class GpuMemory {
 public:
  static constexpr size_t kBytes = size_t{2} << 20;  // of physical memory: the driver's granularity

  explicit GpuMemory(pinrail_gpu_kind_t kind, bool shareable = true) : kind_(kind), shareable_(shareable) { make(); }
  ~GpuMemory() { free(); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  CUdeviceptr at() const { return at_; }
  CUmemoryPool pool() const { return pool_; }  // it is from; NULL: from none
  void* pointer() const { return reinterpret_cast<void*>(at_); }
  void put(uint32_t word) const { EXPECT_EQ(cuMemcpyHtoD(at_, &word, sizeof(word)), CUDA_SUCCESS); }
  // Other memory at the same address.
  void replace() {
    const CUdeviceptr before = at_;
    if (kind_ == PINRAIL_GPU_IPC || kind_ == PINRAIL_GPU_POOL) {
      free();
      make();
    } else {
      EXPECT_EQ(cuMemUnmap(at_, kBytes), CUDA_SUCCESS);
      map();
    }
    EXPECT_EQ(at_, before);
  }
  // After free(): other memory, at the same address if nothing else took it.
  void make() {
    if (kind_ == PINRAIL_GPU_IPC) {
      EXPECT_EQ(cuMemAlloc(&at_, kBytes), CUDA_SUCCESS);
    } else if (kind_ == PINRAIL_GPU_POOL) {
      make_pooled();
    } else {
      EXPECT_EQ(cuMemAddressReserve(&at_, kBytes, 0, 0, 0), CUDA_SUCCESS);
      map();
    }
  }
  void free() {
    if (at_ == 0) return;
    if (kind_ == PINRAIL_GPU_IPC) {
      EXPECT_EQ(cuMemFree(at_), CUDA_SUCCESS);
    } else if (kind_ == PINRAIL_GPU_POOL) {
      EXPECT_EQ(cuMemFreeAsync(at_, nullptr), CUDA_SUCCESS);
      if (pool_ != nullptr) {
        EXPECT_EQ(cuMemPoolDestroy(pool_), CUDA_SUCCESS);
      }
      pool_ = nullptr;
    } else {
      EXPECT_EQ(cuMemUnmap(at_, kBytes), CUDA_SUCCESS);
      EXPECT_EQ(cuMemAddressFree(at_, kBytes), CUDA_SUCCESS);
    }
    at_ = 0;
  }

 private:
  void make_pooled() {
    CUmemPoolProps wanted{};
    wanted.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    wanted.location = cuda_double_on(0);
    if (!shareable_) {
      EXPECT_EQ(cuMemAllocAsync(&at_, kBytes, nullptr), CUDA_SUCCESS);
      return;
    }
    EXPECT_EQ(cuMemPoolCreate(&pool_, &wanted), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAllocFromPoolAsync(&at_, kBytes, pool_, nullptr), CUDA_SUCCESS);
  }
  // The handle is released at once: the mapping keeps the memory.
  void map() {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = cuda_double_on(0);
    if (shareable_) {
      wanted.requestedHandleTypes =
          kind_ == PINRAIL_GPU_FABRIC ? CU_MEM_HANDLE_TYPE_FABRIC : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAccessDesc access = {cuda_double_on(0), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    EXPECT_EQ(cuMemCreate(&handle, kBytes, &wanted, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(at_, kBytes, 0, handle, 0), CUDA_SUCCESS);
    EXPECT_EQ(cuMemSetAccess(at_, kBytes, &access, 1), CUDA_SUCCESS);
    EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  }

  const pinrail_gpu_kind_t kind_;
  const bool shareable_;
  CUdeviceptr at_ = 0;
  CUmemoryPool pool_ = nullptr;
};

// A registration of such memory, or of a peer's. It gives back what it has, and expects that this works.
class GpuRegistration : public Registration {
 public:
  using Registration::Registration;
  ~GpuRegistration() {
    if (is_live()) {
      EXPECT_TRUE(give_back().ok());
    }
  }

  Status make(uint32_t kind, uintptr_t addr, size_t length, const pinrail_gpu_block_t* block = nullptr) {
    return Registration::make(reinterpret_cast<void*>(addr), length, 0, 0, kind, block);
  }
  Status make(const GpuMemory& memory) { return make(PINRAIL_KIND_GPU, memory.at(), GpuMemory::kBytes); }
  Status open(const pinrail_gpu_block_t& block) { return make(PINRAIL_KIND_REMOTE, block.base, block.length, &block); }
  const pinrail_gpu_block_t& block() const { return *static_cast<const pinrail_gpu_block_t*>(registrar_tail(&reg())); }
};

}  // namespace pinrail::test

#endif
