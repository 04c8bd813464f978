// SPDX-License-Identifier: BSD-3-Clause
// registration_arena.h - memory of registrations: type-stable until the process ends.
//
// Owns     slabs of registrations, by size of tail. They are never unmapped and never serve anything else.
// Threads  all functions may run together. Not in hook context.
//
// registration_arena/A1  The state word of a registration keeps its generation for ever rising, also while it is free.
// registration_arena/A2  A free registration has no flags but "per thread", which stays with its memory, and its
//     references sum up to 0 (references.h).
// registration_arena/A3  Memory that was counted per thread serves only registrations that are (references/C2).
#ifndef PINRAIL_BASE_REGISTRATION_REGISTRATION_ARENA_H
#define PINRAIL_BASE_REGISTRATION_REGISTRATION_ARENA_H

#include <pinrail/component.h>

#include "base/core/status.h"

namespace pinrail::arena {

constexpr size_t kTailAlignment = 64;
constexpr size_t kMaxTail = size_t{64} * 1024;

// Registrations live in chunks: a head, the areas of the pools, the registrations with their tails. What hits look at
// so lies line by line: with the areas in between, every other line, it would use but half of a processor's cache.
constexpr size_t kChunk = size_t{64} * 1024;  // size and alignment
struct alignas(64) Chunk {
  uint32_t area_bytes;
  uint32_t count;
  uint32_t number;            // 0: there are too many
  uint64_t objects_per_line;  // as a fraction of 2^32, rounded up: nobody divides
};
static_assert(kChunk / kTailAlignment * (kMaxTail / kTailAlignment + 1) <= uint64_t{1} << 32, "and it divides exactly");

// An area: the count of references.h, then what the pool's component keeps. Of registrations that are counted per
// thread there are many.
constexpr size_t kOwnCount = sizeof(int64_t);
constexpr size_t area_bytes(pinrail_counting_t counting) { return counting == PINRAIL_COUNTING_THREADS ? 40 : 64; }
// The reference slots begin on a line.
inline char* first_object(Chunk* chunk) {
  const size_t areas =
      (size_t{chunk->count} * chunk->area_bytes + kTailAlignment - 1) / kTailAlignment * kTailAlignment;
  return reinterpret_cast<char*>(chunk + 1) + areas;
}

// A registration's number takes less room than its address: that of its chunk, and its line there. There are enough for
// 16 GiB of registrations; chunks are never unmapped, so a number is good for ever.
constexpr unsigned kLineBits = 10;
constexpr size_t kMaxChunks = size_t{1} << 18;
constexpr uint64_t kMaxNumber = (uint64_t{kMaxChunks} << kLineBits) - 1;

// is_number() of it is false if there were too many.
inline uint64_t number_of(const pinrail_registration_t* reg) {
  const auto address = reinterpret_cast<uintptr_t>(reg);
  const auto* chunk = reinterpret_cast<const Chunk*>(reinterpret_cast<const char*>(reg) - (address & (kChunk - 1)));
  return uint64_t{chunk->number} << kLineBits | (address & (kChunk - 1)) / sizeof(pinrail_registration_t);
}
constexpr bool is_number(uint64_t number) { return number >> kLineBits != 0; }

// Of a number that somebody had, be it of what is no more; chunks as chunks() gives them.
inline pinrail_registration_t* numbered(char* const* chunks, uint64_t number) {
  constexpr uint64_t kLines = (uint64_t{1} << kLineBits) - 1;
  static_assert(kChunk >> kLineBits == sizeof(pinrail_registration_t), "a registration takes a line or more");
  // relaxed: it was written before anybody could have the number.
  char* const chunk = __atomic_load_n(&chunks[number >> kLineBits], __ATOMIC_RELAXED);
  return reinterpret_cast<pinrail_registration_t*>(chunk + (number & kLines) * sizeof(pinrail_registration_t));
}

// Where the chunks lie, by number: kMaxChunks of them.
char* const* chunks();

// The registration's own count, references.h: kept while the memory is free, and when it is used again. In any context.
inline int64_t* own_count(const pinrail_registration_t* reg) {
  char* const address = reinterpret_cast<char*>(const_cast<pinrail_registration_t*>(reg));
  auto* chunk = reinterpret_cast<Chunk*>(address - (reinterpret_cast<uintptr_t>(address) & (kChunk - 1)));
  const auto lines = static_cast<uint64_t>(address - first_object(chunk)) / kTailAlignment;
  char* const area = reinterpret_cast<char*>(chunk + 1) + (lines * chunk->objects_per_line >> 32) * chunk->area_bytes;
  return reinterpret_cast<int64_t*>(area);
}

// What the pool's component keeps of a registration: area_bytes(), zeroed by allocate(). In any context.
inline void* area_of(const pinrail_registration_t* reg) { return own_count(reg) + 1; }
static_assert(kOwnCount == sizeof(int64_t), "what is kept begins behind it");

// Zeroed but for state and tail_size, with the generation raised and, if it is counted so, "per thread" in state.
// OUT_OF_RESOURCE; BAD_PARAM for a tail over kMaxTail.
Status allocate(size_t tail_size, pinrail_counting_t counting, pinrail_registration_t** reg_out);

void free(pinrail_registration_t* reg);

// In a forked child, before anything else there: free memory of the parent's life is not used again. fork_reinit.h
void fork_reinit();

// Of an ending thread: what it kept for its next one.
void take_back_spare(pinrail_thread_t* thread);

void* tail_of(const pinrail_registration_t* reg);
pinrail_registration_t* of_tail(const void* tail);

}  // namespace pinrail::arena

#endif
