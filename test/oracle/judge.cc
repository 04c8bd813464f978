// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/judge.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace pinrail::oracle {
namespace {

constexpr uint64_t kShown = 5;

std::string bytes_at(const unsigned char* bytes, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof(byte), " %02x", bytes[i]);
    text += byte;
  }
  return text;
}

void show(Buffer* buffer, const Piece& piece, const unsigned char* device, const unsigned char* processor,
          Direction direction) {
  constexpr size_t kBytes = 8;
  const unsigned char* const wrong = std::mismatch(device, device + piece.length, processor).first;
  const auto first = static_cast<size_t>(wrong - device);
  size_t count = 0;
  for (size_t i = first; i < piece.length; ++i) count += device[i] != processor[i] ? 1 : 0;
  const size_t shown = std::min(kBytes, piece.length - first);
  std::fprintf(stderr,
               "oracle: DIFFERENCE: buffer %zu (%s, %zu bytes), the device %s %zu bytes at offset %zu (%p): %zu are\n"
               "  wrong, the first at offset %zu: device%s, processor%s; what was done to the buffer:\n%s",
               buffer->number, tools::memory_kind_name(buffer->kind), buffer->memory->length,
               direction == Direction::device_reads ? "read" : "wrote", piece.length, piece.offset,
               static_cast<const void*>(buffer->memory->base + piece.offset), count, piece.offset + first,
               bytes_at(device + first, shown).c_str(), bytes_at(processor + first, shown).c_str(),
               buffer->history().c_str());
}

}  // namespace

bool Judge::compare(Buffer* buffer, const Piece& piece, const unsigned char* device, const unsigned char* processor,
                    Direction direction) {
  operations_.fetch_add(1, std::memory_order_relaxed);        // relaxed: counts, read at the end
  bytes_.fetch_add(piece.length, std::memory_order_relaxed);  // and for progress
  if (std::memcmp(device, processor, piece.length) == 0) return true;
  if (differences_++ < kShown) show(buffer, piece, device, processor, direction);
  return false;
}

void Judge::differed(const char* what, const std::string& how) {
  if (differences_++ < kShown) std::fprintf(stderr, "oracle: DIFFERENCE: %s: %s\n", what, how.c_str());
}

void Judge::failed(const char* what, const std::string& why) {
  if (failures_++ < kShown) std::fprintf(stderr, "oracle: FAILED: %s: %s\n", what, why.c_str());
}

}  // namespace pinrail::oracle
