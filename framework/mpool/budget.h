// SPDX-License-Identifier: BSD-3-Clause
// budget.h - limits and present usage of the pools of one mpool component and cache_name (R8). Plain data; the owner's
// lock guards it.
#ifndef PINRAIL_FRAMEWORK_MPOOL_BUDGET_H
#define PINRAIL_FRAMEWORK_MPOOL_BUDGET_H

#include <cstdint>

namespace pinrail::mpool {

struct Limits {
  uint64_t bytes = UINT64_MAX;
  uint64_t count = UINT64_MAX;
};

struct Usage {
  uint64_t bytes = 0;
  uint64_t count = 0;
  uint64_t peak_bytes = 0;
};

}  // namespace pinrail::mpool

#endif
