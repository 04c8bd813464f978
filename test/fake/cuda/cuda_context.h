// SPDX-License-Identifier: BSD-3-Clause
// cuda_context.h - a context of the driver double for a test: the first device's primary one.
#ifndef PINRAIL_TEST_FAKE_CUDA_CUDA_CONTEXT_H
#define PINRAIL_TEST_FAKE_CUDA_CUDA_CONTEXT_H

#include <gtest/gtest.h>

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
  CurrentContext() { EXPECT_EQ(cuCtxPushCurrent(primary_.get()), CUDA_SUCCESS); }
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

}  // namespace pinrail::test

#endif
