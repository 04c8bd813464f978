// SPDX-License-Identifier: BSD-3-Clause
// Thread records.
#include "base/registration/thread.h"

#include <pthread.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "base/registration/registration_arena.h"
#include "base/sync/fork_reinit.h"
#include "base/sync/gate.h"
#include "base/sync/lock.h"

namespace pinrail::thread {

namespace {

// One record per thread. A record of an ended thread keeps its index and is reused by the next new thread, so there are
// never more records than threads that ran at the same time.
struct Record {
  pinrail_thread_t thread;
  Record* next;       // all records
  Record* next_free;  // records of ended threads
  void* memory;       // the thread's recent requests lie in it
};

Mutex mutex{LockRank::leaf};
Record* all_records GUARDED_BY(mutex) = nullptr;
// Free records by whether their threads have statistics counters of their own; a new thread prefers one of these.
Record* free_records[2] GUARDED_BY(mutex) = {};
uint32_t record_count GUARDED_BY(mutex) = 0;

RecentRequests no_recent = {};  // of all threads without memory of their own; never written

// size: 0, or that of a thread's own record.
constexpr pinrail_thread_t make_record(size_t size, uint32_t index, uint32_t spare_count) {
  return {size, index, 0, &no_recent, nullptr, spare_count};
}

pthread_key_t exit_key;
pthread_once_t once = PTHREAD_ONCE_INIT;
bool has_exit_key = false;

// Gives the record memory of its own; without any it remembers no request. calloc() leaves fresh pages untouched, so
// that a thread uses as many as its requests need.
void allocate_recent(Record* record) {
  size_t room = sizeof(RecentRequests) + alignof(RecentRequests);
  record->memory = std::calloc(1, room);
  if (record->memory == nullptr) return;
  void* aligned = record->memory;
  record->thread.recent =
      static_cast<RecentRequests*>(std::align(alignof(RecentRequests), sizeof(RecentRequests), aligned, room));
}

Record*& free_list_of_locked(const Record* record) REQUIRES(mutex) {
  return free_records[record->thread.index < kThreadsWithOwnCounters ? 0 : 1];
}

void on_thread_exit(void* record_pointer) {
  auto* record = static_cast<Record*>(record_pointer);
  current_thread = &null_thread;
  if (gate::is_child() || record->thread.size == 0)
    return;  // in a child the locks below may be held by a thread of the parent
  arena::free_spares(&record->thread);
  void* const memory = record->memory;
  record->thread.recent = &no_recent;
  record->memory = nullptr;
  {
    Guard guard(mutex);
    record->next_free = free_list_of_locked(record);
    free_list_of_locked(record) = record;
  }
  std::free(memory);
}

void prepare() { has_exit_key = pthread_key_create(&exit_key, on_thread_exit) == 0; }

Record* take_free_record() {
  Guard guard(mutex);
  for (Record*& first : free_records) {
    Record* record = first;
    if (record == nullptr) continue;
    first = record->next_free;
    return record;
  }
  return nullptr;
}

Record* take_record() {
  Record* record = take_free_record();
  if (record != nullptr) return record;
  record = new (std::nothrow) Record{};
  if (record == nullptr) return nullptr;
  record->thread = make_record(sizeof(pinrail_thread_t), 0, 0);
  Guard guard(mutex);
  record->thread.index = record_count++;
  record->next = all_records;
  __atomic_store_n(&all_records, record,
                   __ATOMIC_RELEASE);  // release: linked when complete, because a forked child walks the list
  return record;
}

}  // namespace

// It has spares enough, so that no registration becomes one.
pinrail_thread_t null_thread = make_record(0, UINT32_MAX, UINT32_MAX);
__thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec"))) = &null_thread;

pinrail_thread_t* current_slow() {
  pthread_once(&once, prepare);
  Record* record = take_record();
  if (record == nullptr) return nullptr;
  record->thread.in_registrar = 0;
  // A thread keeps free registrations and remembers requests only if its end is observed (a process has 1,024 keys).
  const bool is_end_seen = has_exit_key && pthread_setspecific(exit_key, record) == 0;
  if (!is_end_seen) record->thread.spare_count = UINT32_MAX;
  if (is_end_seen) allocate_recent(record);
  current_thread = &record->thread;
  return current_thread;
}

// Records are not freed: the forking thread may be in a hit that uses its own. This may run twice, because a child of
// the child may find it half done.
void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::leaf);
  for (Record* record = all_records; record != nullptr; record = record->next) {
    record->thread.size = 0;
    record->thread.recent = &no_recent;
  }
  replace_in_child(&all_records, nullptr);
  free_records[0] = free_records[1] = nullptr;
  record_count = 0;
  current_thread = &null_thread;
}

}  // namespace pinrail::thread
