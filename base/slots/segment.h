// SPDX-License-Identifier: BSD-3-Clause
// segment.h - how a segment of validity slots looks in its file: both sides map it.
//
// The header, a page; a word for each slot; the holders of each slot. The file is a memfd of the exporter's, which
// importers open by way of /proc/PID/fd. It has its whole length from the beginning on, and is sealed with it, but has
// memory only for as many slots as were ever used.
#ifndef PINRAIL_BASE_SLOTS_SEGMENT_H
#define PINRAIL_BASE_SLOTS_SEGMENT_H

#include <fcntl.h>

#include "base/slots/slots.h"

namespace pinrail::slots {

constexpr uint32_t kMagic = 0x534c5250;
constexpr uint32_t kVersion = 5;
constexpr size_t kHeaderBytes = 4096;
constexpr uint32_t kSeats = 256;
constexpr int kClaimBatch = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr unsigned kFileBits = 24;  // of a segment's number: the exporter's descriptor. The rest is random
constexpr int file_of(uint64_t segment) { return static_cast<int>(segment & ((uint64_t{1} << kFileBits) - 1)); }

// A process that has, or had, the segment open: pid and start. 0: free. Taken by an importer, given back by it at its
// end; if that was a crash, the exporter clears up behind it and frees the seat.
using Seat = std::atomic<uint64_t>;
constexpr uint64_t kBeingCleared = 1;  // no process: its pid would be 1, and its start 0
constexpr unsigned kPidBits = 22;      // as many as the kernel gives them
constexpr uint64_t seat_of(uint32_t pid, uint64_t start) { return start << kPidBits | pid; }

// Who has a slot's memory open: a bit for each seat.
struct Holders {
  static constexpr uint32_t kBits = 64;
  Word words[kSeats / kBits];

  Word& of(uint32_t seat) { return words[seat / kBits]; }
};
constexpr uint64_t bit_of(uint32_t seat) { return uint64_t{1} << seat % Holders::kBits; }

struct Header {  // NOLINT(clang-analyzer-optin.performance.Padding): deaths on a line of its own
  uint32_t magic, version, count, pid;
  uint64_t start, segment;
  alignas(64) std::atomic<uint64_t> deaths;
  alignas(64) Seat seats[kSeats];
};
// Directly before the words of the slots, where hits find it: marked when the exporter has ended (end_mark.h).
constexpr size_t kEndBytes = sizeof(Word);
static_assert(sizeof(Header) <= kHeaderBytes - kEndBytes, "words begin at the next page");
inline std::atomic<uint32_t>* end_of(Header* header) {
  return reinterpret_cast<std::atomic<uint32_t>*>(reinterpret_cast<char*>(header) + kHeaderBytes - kEndBytes);
}

constexpr size_t bytes_for(uint32_t count) { return kHeaderBytes + size_t{count} * (sizeof(Word) + sizeof(Holders)); }
inline Word* words_of(Header* header) {
  return reinterpret_cast<Word*>(reinterpret_cast<char*>(header) + kHeaderBytes);
}
inline Holders* holders_of(Header* header, uint32_t count) {
  return reinterpret_cast<Holders*>(words_of(header) + count);
}

}  // namespace pinrail::slots

#endif
