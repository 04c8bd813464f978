// SPDX-License-Identifier: BSD-3-Clause
// Somebody says that a mapping here is gone: noted, as one range that covers all that was said since the last call.
#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {

void Pool::invalidate_range_hook(uintptr_t base, size_t length) {
  uintptr_t seen = gone_base_.load();
  while (base < seen && !gone_base_.compare_exchange_weak(seen, base)) {
  }
  seen = gone_end_.load();
  while (base + length > seen && !gone_end_.compare_exchange_weak(seen, base + length)) {
  }
  anything_gone_.store(true, std::memory_order_release);  // release: the range first; pairs with register_remote()
}

}  // namespace pinrail::rgpusm
