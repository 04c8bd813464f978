// SPDX-License-Identifier: BSD-3-Clause
// note.h - what a thread stores behind a near reference slot when it takes a reference by a table entry, so that the
// release of this reference need not read the registration.
//
// Owns     the words 1 to 5 of the line of a near reference slot (base/registration/references.h).
// Threads  the owning thread writes; others only clear the note (references::forget_notes).
//
// note/N1  A note names the entry's timestamp, the version of the entry's bucket, the registration's generation, and
//     the pool. Notes of GPU memory name an entry of allocation_table.h and the pool in a word of its own.
// note/N2  While the bucket's version is unchanged the registration is still indexed and not claimed (start_table/S1).
//     So a release compares the version, counts, and compares the version again; it does not load the state word.
// note/N3  Before a start table is destroyed, and before a version of it can come again, its owner has all notes of it
//     cleared.
#ifndef PINRAIL_BASE_HIT_NOTE_H
#define PINRAIL_BASE_HIT_NOTE_H

#include "base/core/likely.h"
#include "base/hit/start_bucket.h"
#include "base/registration/references.h"

namespace pinrail::note {

struct Note {
  uint32_t* date;    // the entry's timestamp
  uint32_t version;  // of the entry's bucket
  uint64_t generation;
  const void* source;  // the pool of the C face, or allocation_table::note_source()
};

// Writes the words 1 to 4. The calling thread holds a reference, which it has just counted in this near reference slot.
inline void write(uint64_t* near, const Note& note) {
  // relaxed: other threads only look at the first word and clear the note. The last two are atomic for the compiler,
  // which makes more instructions of one store of both.
  __atomic_store_n(&near[1], reinterpret_cast<uintptr_t>(note.date), __ATOMIC_RELAXED);
  __atomic_store_n(&near[2], note.generation, __ATOMIC_RELAXED);
  __atomic_store_n(&near[3], reinterpret_cast<uintptr_t>(note.source), __ATOMIC_RELAXED);
  __atomic_store_n(&near[4], note.version, __ATOMIC_RELAXED);
}

// Writes word 5, the pool, where the source is a table entry.
inline void write_pool(uint64_t* near, const pinrail_mpool_t* pool) { near[5] = reinterpret_cast<uintptr_t>(pool); }

// Writes the note if the thread's near reference slot names the registration.
inline void write_if_near(const pinrail_thread_t* thread, const pinrail_registration_t* reg, const Note& note) {
  uint64_t* near = references::near_ref_slot(thread, reg);
  if (references::names(references::load_slot(near), reg)) write(near, note);
}

enum class Release : uint8_t {
  no_note,         // no valid note: nothing was dropped
  dropped,         // the reference was dropped
  bucket_changed,  // dropped, but the bucket changed meanwhile: the registration may be dead, so the pool must check
};

// Drops a reference that the calling thread took, without reading the registration. source_out: Note::source; written
// only if the reference was dropped.
inline Release release(const pinrail_thread_t* thread, pinrail_handle_t handle, const void** source_out) {
  uint64_t* near = references::near_ref_slot(thread, handle.reg);
  const uint64_t word = references::load_slot(near);
  if (unlikely(!references::has_some(word, handle.reg))) return Release::no_note;
  const uint64_t generation = __atomic_load_n(&near[2], __ATOMIC_RELAXED);
  if (unlikely(generation != handle.generation)) return Release::no_note;
  if (unlikely(generation == references::kNoGeneration)) return Release::no_note;
  const uintptr_t noted = __atomic_load_n(&near[1], __ATOMIC_RELAXED);
  auto* date = reinterpret_cast<uint32_t*>(noted);  // NOLINT(performance-no-int-to-ptr): as write() stored it
  const uint32_t version = start_bucket::version_of(date);
  if (unlikely(near[4] != version)) return Release::no_note;
  start_bucket::use(date, epoch::load(thread->epoch));
  references::store_slot(near, word - 1);
  *source_out = reinterpret_cast<const void*>(near[3]);  // NOLINT(performance-no-int-to-ptr)
  if (unlikely(start_bucket::version_of(date) != version)) return Release::bucket_changed;
  return Release::dropped;
}

// The pool of a note that release() has just used and whose source is a table entry.
inline const pinrail_mpool_t* pool_of(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  return reinterpret_cast<const pinrail_mpool_t*>(references::near_ref_slot(thread, reg)[5]);
}

}  // namespace pinrail::note

#endif
