// SPDX-License-Identifier: BSD-3-Clause
// Hook context. A mapping of this process was reported gone: it is added to one range, which covers all that was
// reported since the last call. Takes only gone_mutex_, a leaf.
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

// Only the pool itself unmaps these mappings, except for events that end all memory, such as the reset of a device.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<Pool*>(pool)->invalidate_range_hook(base, length);
}

}  // namespace pinrail::rgpusm
