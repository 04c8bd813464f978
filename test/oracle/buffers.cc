// SPDX-License-Identifier: BSD-3-Clause
#include "test/oracle/buffers.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace pinrail::oracle {
namespace {

using tools::MemoryKind;

constexpr size_t kSmallest = size_t{32} << 10;
constexpr size_t kSpread = size_t{1} << 20;  // how far apart windows may begin
constexpr size_t kStep = 64;
constexpr size_t kMaxHeap = size_t{256} << 10;

size_t random_length(Random* random, size_t largest) {
  size_t length = largest;
  while (length > kSmallest && (*random)() % 2 == 0) length /= 2;
  return std::max(length, kSmallest);
}

}  // namespace

void Buffer::note(const char* what, unsigned thread, const Piece& piece) {
  const unsigned char* const at = memory == nullptr ? nullptr : memory->base + piece.offset;
  const std::lock_guard<std::mutex> lock(notes_mutex_);
  notes_[note_count_ % kNotes] = {note_count_, what, thread, at, piece.length};
  ++note_count_;
}

std::string Buffer::history() {
  const std::lock_guard<std::mutex> lock(notes_mutex_);
  std::string text;
  for (uint64_t i = note_count_ > kNotes ? note_count_ - kNotes : 0; i < note_count_; ++i) {
    const Note& note = notes_[i % kNotes];
    char line[160];
    std::snprintf(line, sizeof(line), "    %8llu  thread %u  %-28s %p + %zu\n",
                  static_cast<unsigned long long>(note.number), note.thread, note.what,
                  static_cast<const void*>(note.at), note.length);
    text += line;
  }
  return text;
}

Contents::Contents(size_t largest, uint64_t seed) : bytes_(kSpread + largest) {
  Random random(seed);
  for (size_t i = 0; i + sizeof(uint64_t) <= bytes_.size(); i += sizeof(uint64_t)) {
    const uint64_t word = random();
    std::memcpy(&bytes_[i], &word, sizeof(word));
  }
}

const unsigned char* Contents::of(const Buffer& buffer) const {
  constexpr uint64_t kWindows = kSpread / kStep;  // a power of two; odd steps meet each before one comes again
  const uint64_t window = (buffer.number * 7919 + buffer.version * 5077) % kWindows;
  return bytes_.data() + window * kStep;
}

Buffers::Buffers(const Choice& choice, const Options& options, unsigned threads)
    : threads_(threads),
      largest_(options.largest),
      contents_(std::max(options.largest, tools::kLargeBlock), options.seed) {
  Random random(options.seed);
  for (const auto& kind : choice.kinds()) {
    const bool is_heap = kind->event->kind == MemoryKind::heap;
    if (is_heap && heap() != nullptr) continue;
    const unsigned count = is_heap ? 1 : threads;
    for (unsigned i = 0; i < count; ++i) all_.push_back(std::make_unique<Buffer>(all_.size(), kind->event->kind));
  }
  for (const auto& buffer : all_) renew(buffer.get(), &random);
}

Buffer* Buffers::pick(Random* random, unsigned thread) {
  const size_t drawn = (*random)() % all_.size();
  if ((*random)() % 2 == 0) return all_[drawn].get();
  const size_t own = drawn - drawn % threads_ + thread;
  return all_[own < all_.size() ? own : drawn].get();
}

Buffer* Buffers::pick(Random* random, MemoryKind kind) {
  const size_t first = (*random)() % all_.size();
  for (size_t i = 0; i < all_.size(); ++i) {
    Buffer* const buffer = all_[(first + i) % all_.size()].get();
    if (buffer->kind == kind) return buffer;
  }
  return nullptr;
}

Buffer* Buffers::heap() {
  for (const auto& buffer : all_) {
    if (buffer->kind == MemoryKind::heap) return buffer.get();
  }
  return nullptr;
}

void Buffers::renew(Buffer* buffer, Random* random) {
  buffer->due = {};
  buffer->is_due = false;
  buffer->memory.reset();
  const size_t length =
      buffer->kind == MemoryKind::heap ? std::min(kMaxHeap, largest_) : random_length(random, largest_);
  buffer->memory = tools::prepare_memory(buffer->kind, length);
  refill(buffer);
}

void Buffers::refill(Buffer* buffer) {
  ++buffer->version;
  if (buffer->memory == nullptr) return;
  std::memcpy(buffer->memory->base, contents_.of(*buffer), buffer->memory->length);
}

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
