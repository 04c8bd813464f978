// SPDX-License-Identifier: BSD-3-Clause
// exact_hints.h - which registration answered for memory of this hash? The readers' side of the table, without a lock:
// 8 bytes a registration, in groups that one look takes in.
//
// What it names is a guess, and may be anybody's by now; it may also say "not here" of anything. Who holds what it
// named looks whether that is what he asked for.
//
// Owns     its ways. Those that were outgrown stay until it is destroyed, for readers may be there.
// Threads  find() at any time; the rest one at a time (the lock of the cache).
//
// N1  Only registrations that are counted per thread are in, so a count that met a later life of one does no harm.
#ifndef PINRAIL_FRAMEWORK_MPOOL_EXACT_HINTS_H
#define PINRAIL_FRAMEWORK_MPOOL_EXACT_HINTS_H

#include <sys/mman.h>

#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "base/core/registration.h"

namespace pinrail::exact {

// A way: a registration's address below, 16 bits of its hash above; 0: free.
namespace ways {

constexpr uint64_t kAddressMask = (uint64_t{1} << 48) - 1;
constexpr unsigned kWays = 4;  // of a group: as many as find_in() looks at

inline uint64_t load(const uint64_t* way) { return __atomic_load_n(way, __ATOMIC_ACQUIRE); }  // pairs with the writer's
inline pinrail_registration_t* named_by(uint64_t way) {
  return reinterpret_cast<pinrail_registration_t*>(way & kAddressMask);  // NOLINT(performance-no-int-to-ptr)
}

// The way of a group that has the hash; NULL if none has. All four are looked at, and counted in as bits: which of them
// it is cannot be predicted, and a wrong guess costs more than the other three.
inline const uint64_t* find_in(const uint64_t* group, uint64_t hash) {
  unsigned bits = 0;
  const auto look = [&](const uint64_t* way) { bits = 2 * bits + ((load(way) ^ hash) <= kAddressMask ? 1 : 0); };
  look(group + 3);
  look(group + 2);
  look(group + 1);
  look(group);
  asm("" : "+r"(bits));  // else a compiler may make a branch of the last look
  return bits == 0 ? nullptr : group + __builtin_ctz(bits);
}

}  // namespace ways

class Hints {
 public:
  // Room for that many. May throw bad_alloc; then nothing changed.
  void reserve(size_t count) {
    if (!blocks_.empty() && 2 * count <= ways_of(*blocks_.back())) return;
    auto fresh = std::make_unique<Block>(blocks_.empty() ? 64 : 2 * ways_of(*blocks_.back()));
    const Block* old = blocks_.empty() ? nullptr : blocks_.back().get();
    blocks_.push_back(std::move(fresh));
    for (size_t i = 0; old != nullptr && i < old->known.size(); ++i) {
      const Known& known = old->known[i];
      if (known.reg != nullptr) insert(known.hash, known.reg);
    }
    __atomic_store_n(&block_, blocks_.back().get(), __ATOMIC_RELEASE);  // release: pairs with find()
  }

  // Left out where both its groups are full.
  void insert(uint64_t hash, pinrail_registration_t* reg) {
    Block& block = *blocks_.back();
    for (const size_t group : {first(block, hash), second(block, hash)}) {
      for (size_t at = group; at < group + ways::kWays; ++at) {
        if (block.known[at].reg != nullptr) continue;
        block.known[at] = {hash, reg};
        const uint64_t tag = hash & ~ways::kAddressMask;
        __atomic_store_n(&block.entries[at], tag | reinterpret_cast<uintptr_t>(reg), __ATOMIC_RELEASE);
        return;
      }
    }
  }

  void remove(uint64_t hash, const pinrail_registration_t* reg) {
    Block& block = *blocks_.back();
    for (const size_t group : {first(block, hash), second(block, hash)}) {
      for (size_t at = group; at < group + ways::kWays; ++at) {
        if (block.known[at].reg != reg) continue;
        block.known[at] = {};
        __atomic_store_n(&block.entries[at], 0, __ATOMIC_RELEASE);
        return;
      }
    }
  }

  pinrail_registration_t* find(uint64_t hash) const {
    const Block* block = __atomic_load_n(&block_, __ATOMIC_ACQUIRE);  // acquire: pairs with reserve()
    if (block == nullptr) return nullptr;
    const uint64_t* way = ways::find_in(&block->entries[first(*block, hash)], hash);
    if (way == nullptr) way = ways::find_in(&block->entries[second(*block, hash)], hash);
    return way == nullptr ? nullptr : ways::named_by(ways::load(way));
  }

 private:
  struct Known {
    uint64_t hash = 0;
    pinrail_registration_t* reg = nullptr;
  };
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Block {
    explicit Block(size_t count) : mask(count / ways::kWays - 1), known(count) {
      constexpr size_t kHugePage = size_t{2} << 20;
      const size_t bytes = count * sizeof(uint64_t);
      const bool huge = bytes >= kHugePage;
      entries.reset(static_cast<uint64_t*>(std::aligned_alloc(huge ? kHugePage : 64, bytes)));
      if (entries == nullptr) throw std::bad_alloc();
      if (huge) madvise(entries.get(), bytes, MADV_HUGEPAGE);  // a wish: hits look all over them
      for (size_t i = 0; i < count; ++i) entries[i] = 0;
    }
    const size_t mask;  // of the groups
    std::unique_ptr<uint64_t[], Free> entries;
    std::vector<Known> known;  // whose the entries are; for the writer
  };

  static size_t ways_of(const Block& block) { return ways::kWays * (block.mask + 1); }
  static size_t first(const Block& block, uint64_t hash) { return ways::kWays * (hash & block.mask); }
  static size_t second(const Block& block, uint64_t hash) { return ways::kWays * (hash >> 20 & block.mask); }

  Block* block_ = nullptr;                      // atomic
  std::vector<std::unique_ptr<Block>> blocks_;  // the last one is in use
};

}  // namespace pinrail::exact

#endif
