// SPDX-License-Identifier: BSD-3-Clause
// shortcut.h - the in-tree interface by which the C face answers hits without a call into pool or index.
//
// It is not installed. The library, pools and indexes that know it find each other by extension(name, version) in their
// tables; a component without it works, and each of its hits goes through its table. Raise kShortcutVersion with every
// change of this header, of base/core/thread_record.h, or of what they describe.
//
// Threads  All words of the tables are atomic; the headers of base/hit say how they are read and written.
#ifndef PINRAIL_BASE_REGISTRATION_SHORTCUT_H
#define PINRAIL_BASE_REGISTRATION_SHORTCUT_H

#include <pinrail/component_rcache.h>

#include <cstring>

#include "base/core/thread_record.h"

namespace pinrail::shortcut {
constexpr const char* kName = "shortcut";
constexpr uint32_t kVersion = 5;
inline bool is_asked_for(const char* name, uint32_t version) {
  return version == kVersion && std::strcmp(name, kName) == 0;
}
}  // namespace pinrail::shortcut

enum { PINRAIL_START_ENTRIES = 3 };

// Three entries: all that a hit needs to know of three registrations. base/hit/start_bucket.h.
struct alignas(64) pinrail_start_bucket {
  uint32_t version;                              // odd while the bucket is changed
  uint32_t dates[PINRAIL_START_ENTRIES];         // of the last use: the low half of an epoch
  uint32_t pages[PINRAIL_START_ENTRIES];         // the low half of the number of the page where the registration starts
  uint32_t extents[PINRAIL_START_ENTRIES];       // more of that number, the length and the access; 0: a free entry
  uint64_t incarnations[PINRAIL_START_ENTRIES];  // which registration, and its generation
};
using pinrail_start_bucket_t = pinrail_start_bucket;

// A hash table of registrations by start address, for readers without a lock: base/hit/start_table.h.
struct pinrail_start_table_t {
  pinrail_start_bucket_t* buckets;
  uint64_t count, more;  // how many buckets there are before and after it grows; equal when it does not grow
  uint64_t grown;        // places from here on have their buckets among `more` already
  char* const* chunks;   // the memory of registrations, by number: base/registration/registration_arena.h
};

// One segment of one exporter of GPU memory.
struct pinrail_owner_t {
  uint64_t pid, start, segment;  // as blocks have them
  const uint64_t* words;         // its validity slots; NULL: it has none
};

// All that a hit needs to know of the registration of one allocation of GPU memory: half a cache line.
// base/hit/allocation_table.h.
struct pinrail_allocation_t {
  uint64_t key;          // unique per owner, XORed with the owner's salt
  uint64_t incarnation;  // which registration, and its generation
  uint64_t tag;          // a hash of all else that names it, the entry's version, and the owner's number; 0 in that
                         // field: a free entry
  uint64_t last_use;     // a date: base/lru/timestamps.h
};

enum { PINRAIL_WORDS_HINTS = 4096 };

// A hash table of registrations by allocation, for readers without a lock: base/hit/allocation_table.h.
struct pinrail_allocation_table_t {
  pinrail_allocation_t* entries;  // cache lines of two, a power of two of lines
  uint64_t mask;                  // their bytes less one line; set after `entries`
  const pinrail_owner_t* owners;  // by number; set before an entry has that number
  const uint64_t* words;          // where owners' validity slots may lie, to prefetch them: PINRAIL_WORDS_HINTS
                                  // addresses, by the owner's salt
  char* const* chunks;            // as in pinrail_start_table_t
  uint64_t* hits;                 // of thread i: hits[16 * i], written by that thread alone
  uint32_t hit_threads;           // threads with a higher index must ask the pool
};

// What the C face needs to answer a pool's hits without a call. A hit needs an indexed, unclaimed registration that
// covers the range and is counted per thread. All zero: each request goes to the pool.
struct pinrail_shortcut_t {
  const pinrail_start_table_t* start_table;
  uintptr_t page_mask;                            // the registrar's granularity - 1
  uint64_t* hits;                                 // of thread i: hits[16 * i], written by that thread alone
  uint32_t hit_threads;                           // threads with a higher index must ask the pool
  const pinrail_allocation_table_t* allocations;  // of peers' GPU memory; NULL: ask the pool
};

// The library's extension.
struct pinrail_host_shortcut_t {
  size_t size;
  uint64_t* epoch;                     // the process's clock of uses: base/lru/epoch.h
  pinrail_start_bucket_t* gpu_bucket;  // the process's bucket of GPU memory: base/hit/allocation_table.h
  char* const* chunks;                 // the memory of registrations, by number: base/registration/registration_arena.h
  // Clears all notes and recent requests of all threads that point into the start table. Before an index is destroyed,
  // when no call on its pool may be under way, and before a version of the table comes again.
  void (*forget_notes)(const pinrail_start_table_t* start_table);
};

// An index's extension.
struct pinrail_rcache_shortcut_t {
  size_t size;
  // As find() of the index, for a caller that has searched the start table already.
  pinrail_registration_t* (*find_without_start_table)(void* module, pinrail_thread_t* thread, uintptr_t base,
                                                      size_t length, uint32_t access);
  // The index's start table, valid until destroy; NULL if it has none. forget_notes() precedes destroy.
  const pinrail_start_table_t* (*start_table)(void* module);
  // As publish() of the index. Takes `leaving` out in the same hold of the lock, whatever it returns: a dead
  // registration that the caller frees afterwards.
  pinrail_status_t (*publish_instead_of)(void* module, pinrail_thread_t* thread, pinrail_announcement_t* announcement,
                                         pinrail_registration_t* reg, pinrail_registration_t* leaving,
                                         pinrail_visit_hook_t displaced_hook, void* arg);
};

// A pool's extension.
struct pinrail_mpool_shortcut_t {
  size_t size;
  // Asked once, after create; the answer holds until destroy.
  void (*shortcut)(void* module, pinrail_shortcut_t* shortcut_out);
  // The C face dropped a reference by the shortcut and found the registration dead; state is its state word.
  void (*dropped_dead)(void* module, pinrail_thread_t* thread, pinrail_handle_t handle, uint64_t state);
};

namespace pinrail::shortcut {
// NULL if the library is of another version.
inline const pinrail_host_shortcut_t* of(const pinrail_host_t* host) {
  return host->extension == nullptr
             ? nullptr
             : static_cast<const pinrail_host_shortcut_t*>(host->extension(host, kName, kVersion));
}
// NULL if the component leaves it out. Ops: pinrail_rcache_ops_t or pinrail_mpool_ops_t.
template <typename Shortcut, typename Ops>
const Shortcut* of_component(const Ops& ops) {
  return ops.extension == nullptr ? nullptr : static_cast<const Shortcut*>(ops.extension(kName, kVersion));
}
// The function `extension` of a component's table. kExtension: its pinrail_rcache_shortcut_t, or its
// pinrail_mpool_shortcut_t.
template <const auto& kExtension>
const void* extension(const char* name, uint32_t version) {
  return is_asked_for(name, version) ? &kExtension : nullptr;
}
}  // namespace pinrail::shortcut

#endif
