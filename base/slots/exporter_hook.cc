// SPDX-License-Identifier: BSD-3-Clause
// What a free does to a slot, and who has it open: no lock, no memory.
#include "base/slots/segment.h"

namespace pinrail::slots {

void Exporter::kill_hook(uint32_t slot) {
  if (!is_own_) return;
  // seq_cst: the word first, then the count, which importers look at first.
  if ((words_[slot].fetch_or(kDead) & kDead) == 0) header_->deaths.fetch_add(1);
}

uint64_t Exporter::importers_hook(uint32_t slot) const {
  const auto seated = static_cast<uint64_t>(__builtin_popcountll(holders_[slot].load()));
  return seated + (words_[slot].load() & kImporters);
}

// The exporter alone clears seats, so that nobody sits where bits of the one before may still be set or cleared.
void Exporter::forget_dead_hook(uint32_t slot) {
  const uint64_t holders = is_own_ ? holders_[slot].load() : 0;
  for (uint32_t i = 0; i < kSeats; ++i) {
    const uint64_t bit = uint64_t{1} << i;
    Seat& seat = header_->seats[i];
    uint64_t sitter = seat.load();
    if ((holders & bit) == 0 || sitter == kBeingCleared) continue;
    const auto pid = static_cast<uint32_t>(sitter & ((uint64_t{1} << kPidBits) - 1));
    if (sitter != 0 && is_alive_hook(pid, sitter >> kPidBits)) continue;
    if (!seat.compare_exchange_strong(sitter, kBeingCleared)) continue;
    for (uint32_t each = 0; each < used_; ++each) holders_[each].fetch_and(~bit);
    seat.store(0);
  }
}

}  // namespace pinrail::slots
