// SPDX-License-Identifier: BSD-3-Clause
// The exporter's functions that a free may call: they take no lock and allocate nothing.
#include "base/slots/segment.h"

namespace pinrail::slots {

// Marks the slot dead: its memory is gone. Does nothing if the segment belongs to another process.
void Exporter::kill_hook(uint32_t slot) {
  if (!is_own_) return;
  // seq_cst: the word changes before the count, which importers read first.
  if ((words_[slot].fetch_or(kDead) & kDead) == 0) header_->deaths.fetch_add(1);
}

// Returns how many importers have the slot's memory open, or had it open when they crashed.
uint64_t Exporter::importers_hook(uint32_t slot) const {
  uint64_t entered = 0;
  for (const Word& word : holders_[slot].words) entered += static_cast<uint64_t>(__builtin_popcountll(word.load()));
  return entered + (words_[slot].load() & kImporters);
}

// Only the exporter clears a crashed importer's bits and frees its importer entry. So an importer entry is not taken
// again before the previous importer's bits are cleared.
void Exporter::forget_dead_hook(uint32_t slot) {
  if (!is_own_) return;
  for (uint32_t i = 0; i < kImporterEntries; ++i) {
    if ((holders_[slot].of(i).load() & bit_of(i)) != 0) free_entry_of_dead_hook(i);
  }
}

// Frees the importer entry and clears its bits, unless its importer is alive.
void Exporter::free_entry_of_dead_hook(uint32_t number) {
  ImporterEntry& entry = header_->importers[number];
  uint64_t importer = entry.load();
  if (importer == kBeingCleared) return;
  const auto pid = static_cast<uint32_t>(importer & ((uint64_t{1} << kPidBits) - 1));
  if (importer != 0 && is_alive_hook(pid, importer >> kPidBits)) return;
  if (!entry.compare_exchange_strong(importer, kBeingCleared)) return;
  for (uint32_t each = 0; each < used_; ++each) holders_[each].of(number).fetch_and(~bit_of(number));
  entry.store(0);
}

}  // namespace pinrail::slots
