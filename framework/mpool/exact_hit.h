// SPDX-License-Identifier: BSD-3-Clause
// exact_hit.h - the way of a hit: a hint, a count, a look whether that is it. No lock, and no word that two threads
// write.
//
// Inline, few steps, and none of them locked: the lines of memory that it needs take most of its time, and a processor
// fetches those of several hits at once only if it sees the next hit before this one is done.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_HIT_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_HIT_H

#include <cstddef>
#include <cstring>

#include "framework/mpool/exact_pool.h"

namespace pinrail::exact {

// Few steps, for each hit takes them. Upper bits, which are the good ones, are brought down.
inline uint64_t hash_of(uint32_t pid, uint64_t start, uint64_t segment, uintptr_t base) {
  const uint64_t who = (start ^ segment) + pid;
  const uint64_t hash = (who * 0x9E3779B97F4A7C15u ^ base) * 0xD6E8FEB86659FD93u;
  return hash ^ hash >> 32;
}
inline uint64_t hash_of(const Key& key) { return hash_of(key.pid, key.start, key.segment, key.base); }
inline uint64_t hash_of(const pinrail_gpu_handle_t& block) {
  return hash_of(block.pid, block.start, block.segment, block.base);
}
inline uint64_t hash_of(const Name& name) { return hash_of(name.pid, name.start, name.segment, name.base); }

inline bool is_current(const std::atomic<uint64_t>* slot, uint64_t life) {
  return slot == nullptr || slots::is_alive(slot, life);
}

inline bool is_same_range(const Name& name, const Key& key) {
  return name.base == key.base && name.length == key.length && name.pid == key.pid && name.start == key.start &&
         name.segment == key.segment;
}

inline bool is_same_memory(const Name& name, const Key& key) {
  return is_same_range(name, key) && name.id == key.id && (key.life == 0 || name.life == key.life);
}

inline bool is_same_memory(const Name& name, const pinrail_gpu_handle_t& block) {
  constexpr size_t kBytes = 48;
  static_assert(offsetof(Name, slot) - offsetof(Name, start) == kBytes &&
                    offsetof(pinrail_gpu_handle_t, slot) - offsetof(pinrail_gpu_handle_t, start) == kBytes &&
                    offsetof(pinrail_gpu_handle_t, base) - offsetof(pinrail_gpu_handle_t, start) ==
                        offsetof(Name, base) - offsetof(Name, start) &&
                    offsetof(pinrail_gpu_handle_t, slot_word) - offsetof(pinrail_gpu_handle_t, start) ==
                        offsetof(Name, life) - offsetof(Name, start),
                "they lie alike");
  const char* const ours = reinterpret_cast<const char*>(&name) + offsetof(Name, start);
  const char* const theirs = reinterpret_cast<const char*>(&block) + offsetof(pinrail_gpu_handle_t, start);
  const auto differ = [&](size_t at) {
    typedef uint64_t Pair __attribute__((vector_size(16)));
    Pair our_pair, their_pair;
    std::memcpy(&our_pair, ours + at, sizeof(Pair));
    std::memcpy(&their_pair, theirs + at, sizeof(Pair));
    return our_pair ^ their_pair;
  };
  const auto differs = differ(0) | differ(16) | differ(32);
  return (differs[0] | differs[1] | (name.pid ^ block.pid)) == 0;
}

// Asked: a Key, or a block as it came. NULL: ask under the lock. First it is held, then looked at: what a hint names
// may have become anybody's.
template <typename Asked>
__attribute__((always_inline)) inline pinrail_registration_t* Pool::hit(pinrail_thread_t* thread, const Asked& asked) {
  pinrail_registration_t* reg = hints_.find(hash_of(asked));
  if (reg == nullptr || !references::hold(thread, reg)) return nullptr;
  // Not by the registration's own tail_size: that would be one line fetched after the other.
  const Name& name = *reinterpret_cast<const Name*>(reinterpret_cast<const char*>(reg) + name_at_);
  if (reg->pool != config_.pool || !is_same_memory(name, asked) || !is_current(name.slot, name.life)) {
    put_back(thread, reg);
    return nullptr;
  }
  hits_.add(thread);
  return reg;
}

}  // namespace pinrail::exact

#endif
