// SPDX-License-Identifier: BSD-3-Clause
#include "base/core/thread.h"

#include <pthread.h>

#include <new>

#include "base/core/lock.h"

namespace pinrail::thread {

thread_local pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// Records of ended threads keep their index and wait for the next thread; there are never more than threads at once.
struct Record {
  pinrail_thread_t thread;
  Record* next_free;
};

Mutex mutex{LockRank::threads};
Record* free_records GUARDED_BY(mutex) = nullptr;
uint32_t records GUARDED_BY(mutex) = 0;
pthread_key_t exit_key;
pthread_once_t exit_once = PTHREAD_ONCE_INIT;
bool exit_key_made = false;

void on_thread_exit(void* record_pointer) {
  auto* record = static_cast<Record*>(record_pointer);
  current_thread = nullptr;
  Guard guard(mutex);
  record->next_free = free_records;
  free_records = record;
}

void make_exit_key() { exit_key_made = pthread_key_create(&exit_key, on_thread_exit) == 0; }

Record* take_record() {
  Guard guard(mutex);
  if (free_records != nullptr) {
    Record* record = free_records;
    free_records = record->next_free;
    return record;
  }
  auto* record = new (std::nothrow) Record{};
  if (record != nullptr) record->thread = {sizeof(pinrail_thread_t), records++, 0};
  return record;
}

}  // namespace

pinrail_thread_t* current_slow() {
  pthread_once(&exit_once, make_exit_key);
  Record* record = take_record();
  if (record == nullptr) return nullptr;
  record->thread.in_registrar = 0;
  // Without a key (all 1,024 are taken) the record is not given back at the thread's end: a leak of 32 bytes.
  if (exit_key_made) pthread_setspecific(exit_key, record);
  current_thread = &record->thread;
  return current_thread;
}

}  // namespace pinrail::thread
