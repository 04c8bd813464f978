// SPDX-License-Identifier: BSD-3-Clause
#include "test/unit/cuda/facts.h"

#ifdef PINRAIL_HAVE_CUDA_H
#include <cuda.h>
#include <cudaTypedefs.h>  // functions of former versions
#endif

namespace pinrail::test {

Facts facts_of_toolkit() {
  Facts facts;
#ifdef PINRAIL_HAVE_CUDA_H
#include "test/unit/cuda/facts.inc"
  facts["cuGetProcAddress"] = words_of<std::remove_pointer_t<PFN_cuGetProcAddress_v11030>>();
#endif
  return facts;
}

}  // namespace pinrail::test
