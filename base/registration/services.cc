// SPDX-License-Identifier: BSD-3-Clause
#include "base/registration/services.h"

#include "base/registration/registration.h"

namespace pinrail::services {
namespace {

static_assert(PINRAIL_STATE_INDEXED == state::kIndexed && PINRAIL_STATE_DEAD == state::kDead &&
                  PINRAIL_STATE_OWNED == state::kLast && PINRAIL_KEEP_REFERENCED == state::kTransient,
              "the public bits are those of the state word");
constexpr uint64_t kPublicBits = PINRAIL_STATE_INDEXED | PINRAIL_STATE_DEAD | PINRAIL_STATE_OWNED;

}  // namespace

uint32_t state_of(const pinrail_registration_t* reg) { return static_cast<uint32_t>(state::load(reg) & kPublicBits); }

uint64_t generation_of(const pinrail_registration_t* reg) { return pinrail::generation_of(reg); }

uint64_t references_of(const pinrail_registration_t* reg) { return pinrail::references_of(reg); }

int take(pinrail_registration_t* reg) {
  if (!pinrail::take(reg, state::load(reg))) return 0;
  mark_used(reg);
  return 1;
}

pinrail_drop_t drop(pinrail_handle_t handle) {
  switch (pinrail::drop(handle)) {
    case Drop::stale: return PINRAIL_DROP_STALE;
    case Drop::last: return PINRAIL_DROP_LAST;
    default: return PINRAIL_DROP_DONE;
  }
}

void mark_indexed(pinrail_registration_t* reg, uint64_t marks) {
  state::publish(reg, state::kIndexed | (marks & (state::kTransient | state::kQuick)));
}

void mark_uncached(pinrail_registration_t* reg) { state::publish(reg, state::kDead); }

int retire(pinrail_registration_t* reg) { return pinrail::retire(reg, state::load(reg)) ? 1 : 0; }

int orphan(pinrail_registration_t* reg) { return pinrail::orphan(reg) == Killed::owned ? 1 : 0; }

// Hook context: no allocation, no lock.

int mark_dead_hook(pinrail_registration_t* reg) { return kill(reg) == Killed::owned ? 1 : 0; }

}  // namespace pinrail::services
