// SPDX-License-Identifier: BSD-3-Clause
// segment.h - how a segment of validity slots looks in its file: both sides map it.
#ifndef PINRAIL_BASE_SLOTS_SEGMENT_H
#define PINRAIL_BASE_SLOTS_SEGMENT_H

#include "base/slots/slots.h"

namespace pinrail::slots {

constexpr uint32_t kMagic = 0x534c5250;
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 4096;
constexpr char kFolder[] = "/dev/shm/";
constexpr char kPrefix[] = "pinrail-gpu.";  // then user.pid.start.segment, the last two in hexadecimal

struct Header {  // NOLINT(clang-analyzer-optin.performance.Padding): deaths on a line of its own
  uint32_t magic, version, count, pid;
  uint64_t start, segment;
  alignas(64) std::atomic<uint64_t> deaths;
};
static_assert(sizeof(Header) <= kHeaderBytes, "words begin at the next page");

void name_segment(char* path, size_t room, uint32_t user, uint32_t pid, uint64_t start, uint64_t segment);
constexpr size_t bytes_for(uint32_t count) { return kHeaderBytes + size_t{count} * sizeof(Word); }

}  // namespace pinrail::slots

#endif
