// SPDX-License-Identifier: BSD-3-Clause
// Hook context. A mapping of this process was reported gone: it is added to one range, which covers all that was
// reported since the last call. Takes only invalidated_mutex_, a leaf.
#include <algorithm>

#include "components/mpool/rgpusm/rgpusm.h"

namespace pinrail::rgpusm {

void Pool::invalidate_range_hook(uintptr_t base, size_t length) {
  Guard guard(invalidated_mutex_);
  invalidated_base_ = std::min(invalidated_base_, base);
  invalidated_end_ = std::max(invalidated_end_, base + length);
  ++invalidations_noted_;
  is_noted_.store(true);
}

// Only the pool itself unmaps these mappings, except for events that end all memory, such as the reset of a device.
void Pool::report_hook(void* pool, uintptr_t base, size_t length) {
  if (base == 0 && length == UINTPTR_MAX) static_cast<Pool*>(pool)->invalidate_range_hook(base, length);
}

}  // namespace pinrail::rgpusm
