// SPDX-License-Identifier: BSD-3-Clause
// Hook context: makes registrations dead and puts what is idle of them onto the gc list, and does no more. The
// interrupted thread may hold references; it holds none of the locks that are taken here (HookMutex). Also what an
// insert displaces: that runs in the call that inserts, under the same lock of the index.
#include "components/mpool/grdma/grdma.h"

namespace pinrail::grdma {

// Makes them dead, and pushes those that are idle at once, because other threads read the word of that list. What is
// held goes back with its last drop.
void Pool::kill_batch_hook(pinrail_registration_t* const* regs, size_t count, Ending* ending) {
  pinrail_registration_t *first = nullptr, *last = nullptr;
  uint64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) mpool::prefetch(regs[i]);
  for (size_t i = 0; i < count; ++i) {
    mark_invalidated_hook(regs[i]);  // of a dead one, too: its owner reads it when the index has let it go
    const Killed killed = kill(regs[i]);
    if (killed == Killed::no) continue;
    mpool::count_one_hook(&invalidations_);
    extents_.died_hook(regs[i]);
    reasons_.ended_hook(span_of(regs[i]), ending->span);
    ++ending->count;
    if (killed == Killed::held) continue;
    if (first == nullptr) last = regs[i];
    area_of(regs[i]).gc_next = first;
    first = regs[i];
    bytes += mpool::charge_of(first);
  }
  if (first != nullptr) push_hook(first, last, bytes);
}

// Makes a registration dead that a wider one takes the place of. Events reach it outside of the index until it is given
// back; it is linked there first, because its last drop may free it as soon as it is dead. What is idle is listed, by
// its field `used`, for the call that inserts.
void Pool::displace_hook(pinrail_registration_t* reg, Displaced* displaced) {
  if (!is_indexed(reg)) return;
  outside_.link(reg);
  if (kill(reg) != Killed::owned) return;
  // relaxed: this thread owns it. An evictor that has met it before leaves the number alone (take_chance()).
  static_assert(!arena::is_number(kMostChances), "no number of a registration is a count of chances");
  __atomic_store_n(&reg->used, displaced->first, __ATOMIC_RELAXED);
  displaced->first = static_cast<uint32_t>(arena::number_of(reg));
}

// An insert has displaced them. The index calls it under its lock. The call that inserts gives back what is idle.
void Pool::displaced_hook(void* displaced_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* const displaced = static_cast<Displaced*>(displaced_pointer);
  for (size_t i = 0; i < count; ++i) mpool::prefetch(regs[i]);
  for (size_t i = 0; i < count; ++i) displaced->pool->displace_hook(regs[i], displaced);
}

// The index calls it under its lock, with what an event removed.
void Pool::invalidated_hook(void* ending_pointer, pinrail_registration_t* const* regs, size_t count) {
  auto* const ending = static_cast<Ending*>(ending_pointer);
  ending->pool->kill_batch_hook(regs, count, ending);
}

void Pool::record_hook(const Ending& ending) const {
  pinrail_mpool_event_t event{};
  event.kind = PINRAIL_EVENT_MEMORY;
  event.base = ending.span.base;
  event.length = ending.span.length();
  event.count = ending.count;
  host_->pools->record_hook(config_.pool, &event);
}

// grdma/G6. The caller has passed a full barrier.
void Pool::invalidate_range_hook(const Span& span) {
  Ending ending{this, span};
  rcache_.ops.invalidate_hook(rcache_.module, span.base, span.length(), invalidated_hook, &ending);
  if (ending.count != 0) record_hook(ending);
  if (!outside_.is_empty()) outside_.invalidate(span);
}

// For an event that a caller reports; it may have only been written down so far. seq_cst: a full
// barrier, on memory that no other thread waits for; volatile, so that no compiler leaves it out. An exchange that may
// fail would be one on x86 alone.
void Pool::invalidate_reported_hook(const Span& span) {
  volatile std::atomic<uint32_t> barrier{0};
  barrier.fetch_add(1);
  invalidate_range_hook(span);
}

}  // namespace pinrail::grdma
