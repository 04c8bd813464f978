// SPDX-License-Identifier: BSD-3-Clause
// segment.h - the layout of the file in which an exporter keeps its validity slots. Both sides map it.
//
// The file contains the header, one word for each slot, and the holders of each slot. It is a memfd of the
// exporter, which importers open through /proc/PID/fd. It has its full length from the beginning and is sealed with it,
// but memory is allocated only for as many slots as were ever used.
//
// Hook     All functions.
#ifndef PINRAIL_BASE_SLOTS_SEGMENT_H
#define PINRAIL_BASE_SLOTS_SEGMENT_H

#include <fcntl.h>

#include "base/slots/slots.h"

namespace pinrail::slots {

constexpr uint32_t kMagic = 0x534c5250;
constexpr uint32_t kVersion = 6;
constexpr uint32_t kImporterEntries = 256;
// The seals of the file.
constexpr int kFileSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
// The low bits of a segment's number are the exporter's descriptor; the rest is random.
constexpr unsigned kFileBits = 24;
constexpr int file_of(uint64_t segment) { return static_cast<int>(segment & ((uint64_t{1} << kFileBits) - 1)); }

// The process that has, or had, the segment open: its pid and start time; 0: free. Importer::register_importer()
// takes an importer entry, and the importer's destructor gives it back. After a crash of the importer the exporter
// clears its bits and frees the importer entry.
using ImporterEntry = std::atomic<uint64_t>;
constexpr uint64_t kBeingCleared = 1;  // names no process: its pid would be 1 and its start 0
constexpr unsigned kPidBits = 22;      // the kernel's limit for pids
constexpr uint64_t importer_word_of(uint32_t pid, uint64_t start) { return start << kPidBits | pid; }
constexpr uint32_t pid_of(uint64_t importer_word) { return importer_word & ((uint32_t{1} << kPidBits) - 1); }

// One bit per importer entry: the importer of that entry has the slot's memory open.
struct Holders {
  static constexpr uint32_t kBits = 64;
  Word words[kImporterEntries / kBits];

  Word& of(uint32_t importer) { return words[importer / kBits]; }
};
constexpr uint64_t bit_of(uint32_t importer) { return uint64_t{1} << importer % Holders::kBits; }

struct Header {  // NOLINT(clang-analyzer-optin.performance.Padding): deaths has a cache line of its own
  uint32_t magic, version, count, pid;
  uint64_t start, segment;
  alignas(64) std::atomic<uint64_t> deaths;
  alignas(64) ImporterEntry importers[kImporterEntries];
};
// The end mark (process.h), which the kernel sets when the exporter has ended, lies directly before the slots' words:
// in one page with the first 239 of them, and in one cache line with the first 7. A hit reads both.
constexpr size_t kEndBytes = sizeof(Word);
constexpr size_t kHeaderBytes = sizeof(Header) + kEndBytes;
static_assert(sizeof(Header) % 64 == 0, "the end mark begins a line");
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
