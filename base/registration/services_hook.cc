// SPDX-License-Identifier: BSD-3-Clause
// Hook context: no allocation, no lock.
#include "base/registration/registration.h"
#include "base/registration/services.h"

namespace pinrail::services {

int mark_dead_hook(pinrail_registration_t* reg) { return kill(reg) == Killed::owned ? 1 : 0; }

}  // namespace pinrail::services
