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
  uint64_t seated = 0;
  for (const Word& word : holders_[slot].words) seated += static_cast<uint64_t>(__builtin_popcountll(word.load()));
  return seated + (words_[slot].load() & kImporters);
}

// The exporter alone clears seats, so that nobody sits where bits of the one before may still be set or cleared.
void Exporter::forget_dead_hook(uint32_t slot) {
  if (!is_own_) return;
  for (uint32_t i = 0; i < kSeats; ++i) {
    Seat& seat = header_->seats[i];
    uint64_t sitter = seat.load();
    if ((holders_[slot].of(i).load() & bit_of(i)) == 0 || sitter == kBeingCleared) continue;
    const auto pid = static_cast<uint32_t>(sitter & ((uint64_t{1} << kPidBits) - 1));
    if (sitter != 0 && is_alive_hook(pid, sitter >> kPidBits)) continue;
    if (!seat.compare_exchange_strong(sitter, kBeingCleared)) continue;
    for (uint32_t each = 0; each < used_; ++each) holders_[each].of(i).fetch_and(~bit_of(i));
    seat.store(0);
  }
}

}  // namespace pinrail::slots
