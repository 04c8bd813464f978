// SPDX-License-Identifier: BSD-3-Clause
// memory.h - GPU memory of the kinds that can be exported, by the driver, real or the double.
//
// Threads  one. The driver is started, with a context current.
#ifndef PINRAIL_TEST_GPU_MEMORY_H
#define PINRAIL_TEST_GPU_MEMORY_H

#include "test/gpu/driver.h"

namespace pinrail::gpu_test {

enum class Kind { ipc, vmm, pool };

class Memory {
 public:
  Memory(const Driver& driver, Kind kind) : driver_(driver), kind_(kind) {}
  // False: the driver has no memory of that kind.
  bool start();
  bool stop();
  // Lengths are multiples of this; 1: any.
  size_t unit() const { return unit_; }
  bool allocate(size_t bytes, CUdeviceptr* at_out) const;
  bool free(CUdeviceptr at, size_t bytes) const;

 private:
  bool map(size_t bytes, CUdeviceptr at) const;

  const Driver& driver_;
  const Kind kind_;
  size_t unit_ = 1;
  CUmemAllocationProp physical_{};
  CUmemoryPool pool_ = nullptr;
};

}  // namespace pinrail::gpu_test

#endif
