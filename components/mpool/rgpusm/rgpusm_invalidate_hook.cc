// SPDX-License-Identifier: BSD-3-Clause
// Somebody says that a mapping here is gone: noted, as one range that covers all that was said since the last call.
#include <algorithm>

#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {

void Pool::invalidate_range_hook(uintptr_t base, size_t length) {
  Guard guard(gone_mutex_);
  gone_base_ = std::min(gone_base_, base);
  gone_end_ = std::max(gone_end_, base + length);
  ++gone_events_;
  allocations_.shut();
}

// Mappings are the pool's own: what ends some of them without it ends everything, as the reset of a device does.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<Pool*>(pool)->invalidate_range_hook(base, length);
}

}  // namespace pinrail::rgpusm
