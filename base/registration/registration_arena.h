// SPDX-License-Identifier: BSD-3-Clause
// registration_arena.h - memory of registrations, type-stable until the process ends.
//
// Owns     slabs of registrations, one set for each size of tail. Slabs are never unmapped or used for anything else.
// Threads  all functions may run together. API context, unless Hook names it.
// Hook     area_of(), chunk_of(), number_of(), is_number() and numbered().
//
// registration_arena/A1  The generation in a state word only rises, also while the memory is free.
// registration_arena/A2  A free registration has no flags and no references.
//
// In a forked child, the memory of the parent's registrations serves no others.
#ifndef PINRAIL_BASE_REGISTRATION_REGISTRATION_ARENA_H
#define PINRAIL_BASE_REGISTRATION_REGISTRATION_ARENA_H

#include <pinrail/component_rcache.h>

#include "base/core/status.h"

namespace pinrail::arena {

constexpr size_t kTailAlignment = 64;
constexpr size_t kMaxTailOfRegistrar = size_t{64} * 1024;
constexpr size_t kMaxTail = kMaxTailOfRegistrar + 128;  // with what the pool has behind it

// A chunk is a header, then the registrations with their tails, then the areas of the pools. Hits read registrations
// only, so these lie line after line; with the areas in between, hits would use half of a processor's cache sets. Each
// line of registrations and tails stands for so many bytes of areas.
constexpr size_t kChunk = size_t{64} * 1024;  // size and alignment
struct alignas(64) Chunk {
  uint32_t area_per_line;  // bytes
  uint32_t areas_at;       // where the area of the chunk's first line, the header, would begin, in bytes
  uint32_t number;         // 0: there are more chunks than numbers
  uint32_t process;        // gate::process_number() of the one that opened it
  bool has_small_areas;
};
static_assert(sizeof(Chunk) == kTailAlignment, "the registrations begin on the next line");

// A registration's number is shorter than its address: the number of its chunk and the line in it. There are numbers
// for 16 GiB of registrations. Chunks are never unmapped, so a number stays valid.
constexpr unsigned kLineBits = 10;
constexpr size_t kMaxChunks = size_t{1} << 18;
constexpr uint64_t kMaxNumber = (uint64_t{kMaxChunks} << kLineBits) - 1;

// Returns the chunk in which the registration begins.
inline const Chunk* chunk_of(const pinrail_registration_t* reg) {
  const size_t at = reinterpret_cast<uintptr_t>(reg) & (kChunk - 1);
  return reinterpret_cast<const Chunk*>(reinterpret_cast<const char*>(reg) - at);
}

// Returns the registration's number; is_number() is false of it if the process has run out of chunk numbers.
// 0 is the number of none, so that lists of numbers end with it.
inline uint64_t number_of(const pinrail_registration_t* reg) {
  const size_t at = reinterpret_cast<uintptr_t>(reg) & (kChunk - 1);
  return uint64_t{chunk_of(reg)->number} << kLineBits | at / sizeof(pinrail_registration_t);
}
constexpr bool is_number(uint64_t number) { return number >> kLineBits != 0; }

// Returns the registration of a number that number_of() returned once, even if that registration is gone. chunks: as
// chunks() returns it.
inline pinrail_registration_t* numbered(char* const* chunks, uint64_t number) {
  constexpr uint64_t kLines = (uint64_t{1} << kLineBits) - 1;
  static_assert(kChunk >> kLineBits == sizeof(pinrail_registration_t), "a registration takes a line or more");
  // relaxed: the entry was written before the number was published.
  char* const chunk = __atomic_load_n(&chunks[number >> kLineBits], __ATOMIC_RELAXED);
  return reinterpret_cast<pinrail_registration_t*>(chunk + (number & kLines) * sizeof(pinrail_registration_t));
}

// Addresses of the chunks by number; kMaxChunks of them.
char* const* chunks();

// Returns the component's memory for this registration, zeroed by allocate(). Any context.
inline void* area_of(const pinrail_registration_t* reg) {
  const size_t at = reinterpret_cast<uintptr_t>(reg) & (kChunk - 1);
  auto* const head = const_cast<Chunk*>(chunk_of(reg));
  return reinterpret_cast<char*>(head) + head->areas_at + at * head->area_per_line / kTailAlignment;
}

// Returns a registration that is zeroed except for tail_size and the state word, which has a new generation. tail_size:
// bytes, up to kMaxTail; area_size: up to PINRAIL_AREA_LARGE. Errors: OUT_OF_RESOURCE; BAD_PARAM for more.
Status allocate(size_t tail_size, size_t area_size, pinrail_registration_t** reg_out);

void free(pinrail_registration_t* reg);

// C6: in debug builds a line of guard words is behind each tail; if one is overwritten, the process ends with a word
// about it. free() looks, too.
#ifdef PINRAIL_DEBUG
constexpr size_t kGuard = kTailAlignment;
void check_tail(const pinrail_registration_t* reg);
#else
constexpr size_t kGuard = 0;
inline void check_tail(const pinrail_registration_t* /*reg*/) {}
#endif

// In a forked child, before any other call: the parent's free lists are not used again (base/sync/fork_reinit.h).
void fork_reinit();

// For an ending thread: frees the registrations that it kept for its next allocate().
void free_spares(pinrail_thread_t* thread);

void* tail_of(const pinrail_registration_t* reg);
pinrail_registration_t* of_tail(const void* tail);

}  // namespace pinrail::arena

#endif
