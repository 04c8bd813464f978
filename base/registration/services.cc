// SPDX-License-Identifier: BSD-3-Clause
#include "base/registration/services.h"

#include <utility>

#include "base/registration/references.h"
#include "base/registration/registration.h"

namespace pinrail::services {
namespace {

static_assert(PINRAIL_STATE_INDEXED == state::kIndexed && PINRAIL_STATE_DEAD == state::kDead &&
                  PINRAIL_STATE_PER_THREAD == state::kPerThread && PINRAIL_STATE_CLAIMED == state::kEvictClaim,
              "the public bits are those of the state word");
constexpr uint64_t kPublicBits =
    PINRAIL_STATE_INDEXED | PINRAIL_STATE_DEAD | PINRAIL_STATE_PER_THREAD | PINRAIL_STATE_CLAIMED;

constexpr size_t kMaxRetired = 64;

// Of one that is summed, the drop is counted in one place; else in the slots of the thread.
pinrail_drop_t drop_per_thread(pinrail_thread_t* thread, pinrail_handle_t handle) {
  const uint64_t word = state::load(handle.reg);
  if ((word & state::kSummed) != 0) {
    const int dropped = references::settle_dead(handle, PINRAIL_DEAD_DROP);
    if (dropped < 0) return PINRAIL_DROP_STALE;
    return dropped == 1 ? PINRAIL_DROP_LAST : PINRAIL_DROP_DONE;
  }
  const uint64_t after = references::drop_counted(thread, handle.reg);
  return (after & state::kDead) != 0 ? PINRAIL_DROP_DEAD : PINRAIL_DROP_DONE;
}

// Claims an indexed registration; false if it is not indexed, or claimed already.
bool claim_to_sum(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  while ((word & (state::kIndexed | state::kEvictClaim)) == state::kIndexed) {
    if (state::exchange(reg, &word, word | state::kEvictClaim)) return true;
  }
  return false;
}

// Makes a claimed registration dead, unless its claim was revoked since it was summed.
bool retire_claimed(pinrail_registration_t* reg) {
  uint64_t word = state::load(reg);
  while ((word & (state::kIndexed | state::kEvictClaim)) == (state::kIndexed | state::kEvictClaim)) {
    // As claim() of registration.h, with the sum in place of a count in the word.
    if (claim(reg, word)) return true;
    word = state::load(reg);
  }
  return false;
}

bool retire_shared(pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  return (word & state::kIndexed) != 0 && state::references(word) == 0 && claim(reg, word);
}

// Those that are counted per thread, at most kMaxRetired; retired ones come first.
size_t retire_per_thread(const pinrail_host_t* host, const pinrail_rcache_t* rcache, pinrail_registration_t** regs,
                         size_t count) {
  size_t claimed = 0;
  for (size_t i = 0; i < count; ++i) {
    if (claim_to_sum(regs[i])) std::swap(regs[claimed++], regs[i]);
  }
  if (claimed == 0) return 0;
  int64_t references[kMaxRetired];
  rcache->ops.hide(rcache->module, regs, claimed);
  host->registrations->count_references(host, regs, claimed, PINRAIL_SUM_NOW, references);
  size_t retired = 0;
  for (size_t i = 0; i < claimed; ++i) {
    const bool idle = references[i] <= 0 && references::discard_excess_drops_if_claimed(regs[i], references[i]);
    if (idle && retire_claimed(regs[i])) {
      std::swap(regs[retired++], regs[i]);
      continue;
    }
    references::revoke_claim(regs[i]);
    rcache->ops.unhide(rcache->module, regs[i]);
  }
  return retired;
}

}  // namespace

uint32_t state_of(const pinrail_registration_t* reg) { return static_cast<uint32_t>(state::load(reg) & kPublicBits); }

uint64_t generation_of(const pinrail_registration_t* reg) { return pinrail::generation_of(reg); }

int take(const pinrail_host_t*, pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  if ((word & state::kIndexed) == 0) return 0;
  return references::take(thread, reg, word) || references::take_revoking_claim(thread, reg, word) ? 1 : 0;
}

pinrail_drop_t drop(const pinrail_host_t*, pinrail_thread_t* thread, pinrail_handle_t handle) {
  const uint64_t word = state::load(handle.reg);
  if (state::generation(word) != handle.generation) return PINRAIL_DROP_STALE;
  touch(handle.reg, epoch::load(thread->epoch));
  if ((word & state::kPerThread) != 0) return drop_per_thread(thread, handle);
  uint64_t after;
  const Drop dropped = drop_shared(handle, &after);
  if (dropped == Drop::stale) return PINRAIL_DROP_STALE;
  return dropped == Drop::was_last ? PINRAIL_DROP_LAST : PINRAIL_DROP_DONE;
}

void mark_indexed(const pinrail_host_t*, pinrail_thread_t* thread, pinrail_registration_t* reg) {
  const uint64_t counting = state::load(reg) & state::kPerThread;
  touch(reg, epoch::load(thread->epoch));
  if (counting != 0) references::count_surely(thread, reg, 1);
  state::set(reg, counting | state::kIndexed, counting != 0 ? 0 : 1);
}

void mark_uncached(const pinrail_host_t*, pinrail_registration_t* reg) { state::set(reg, state::kDead, 1); }

size_t retire_idle(const pinrail_host_t* host, const pinrail_rcache_t* rcache, pinrail_registration_t** regs,
                   size_t count) {
  size_t retired = 0;
  if (count > kMaxRetired) count = kMaxRetired;
  for (size_t i = 0; i < count; ++i) {
    const bool shared = (state::load(regs[i]) & state::kPerThread) == 0;
    if (shared && retire_shared(regs[i])) std::swap(regs[retired++], regs[i]);
  }
  size_t per_thread = retired;
  for (size_t i = retired; i < count; ++i) {
    if ((state::load(regs[i]) & state::kPerThread) != 0) std::swap(regs[per_thread++], regs[i]);
  }
  return retired + retire_per_thread(host, rcache, regs + retired, per_thread - retired);
}

void orphan(const pinrail_host_t*, pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  if ((word & state::kPerThread) != 0) {
    references::settle_dead({reg, pinrail::generation_of(reg)}, PINRAIL_DEAD_HELD);
  }
  state::set(reg, (state::load(reg) & state::kFlags) | state::kOrphan);
}

}  // namespace pinrail::services
