// SPDX-License-Identifier: BSD-3-Clause
#include "test/fake/cuda/cuda_for_tests.h"
#include "test/unit/cuda/facts_telling.h"

namespace pinrail::test {

Facts facts_of_ours() {
  Facts facts;
#include "test/unit/cuda/facts.inc"
  facts["cuGetProcAddress"] = words_of<decltype(cuGetProcAddress)>();
  return facts;
}

}  // namespace pinrail::test
