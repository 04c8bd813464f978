// SPDX-License-Identifier: BSD-3-Clause
// thread_record.h - the record of a thread, which the public headers leave opaque. Only Pinrail's own components read
// it, and only those that agree with the library on base/registration/shortcut.h.
//
// Threads  The thread that a record belongs to reads and writes it; base/registration/thread.h makes it.
#ifndef PINRAIL_BASE_CORE_THREAD_RECORD_H
#define PINRAIL_BASE_CORE_THREAD_RECORD_H

#include <pinrail/component.h>

// One step of a search in an index, from the root to where a range would stand.
struct pinrail_step_t {
  const void* node;
  uint64_t version;
  uint32_t slot;
};

constexpr uint32_t kPinrailSteps = 12;

// The last search of a thread that proved that an index has no answer. The index reads it when the thread announces a
// registration of that range, and does not search again.
struct pinrail_absent_t {
  uint64_t index;    // its number, an epoch that no other index began; 0: nothing is known
  uint64_t inserts;  // how many inserts the index had completed
  uintptr_t base;
  size_t length;
  uint32_t access;
  uint32_t steps;  // how many entries of way are valid
  pinrail_step_t way[kPinrailSteps];
};

struct pinrail_thread {
  size_t size;
  uint32_t index;         // small, dense; used again when the thread has ended
  uint32_t in_registrar;  // how many registrar calls this thread is inside
  uint64_t* ref_slots;    // its counts of references: base/registration/references.h
  uint64_t* rollbacks;    // of the process: how many references were counted speculatively and rolled back
  uint64_t* epoch;        // of the process: base/lru/epoch.h
  pinrail_absent_t absent;
  void* spares;                             // free registrations for the thread's next ones, linked through `base`
  uint32_t spare_count;                     // how many these are
  void* recent;                             // the thread's recent requests: base/hit/recent.h
  uint64_t* dates;                          // of the process: base/lru/timestamps.h
  uint64_t last_date;                       // the date of the thread's last use of GPU memory
  const void* last_used;                    // what that use was of, or NULL
  struct pinrail_start_bucket* gpu_bucket;  // of the process: base/hit/allocation_table.h
  // Adds what the thread's reference slots count of the registration to the registration's own count, and sets them to
  // 0. Called with the calling thread's record.
  void (*fold)(const struct pinrail_thread* thread, const pinrail_registration_t* reg);
};

#endif
