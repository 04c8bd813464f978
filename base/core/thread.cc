// SPDX-License-Identifier: BSD-3-Clause
// Threads come and go, and what they hold is summed.
#include "base/core/thread.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <new>

#include "base/core/gate.h"
#include "base/core/lock.h"
#include "base/core/recent.h"
#include "base/core/references.h"
#include "base/core/registration_arena.h"
#include "base/core/set_aside.h"

namespace pinrail::thread {

__thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

// Records of ended threads keep their index and wait for the next thread; there are never more than threads at once.
struct Record {
  pinrail_thread_t thread;
  Record* next;       // all records ever made
  Record* next_free;  // those of ended threads
  void* inherited;    // in a forked child: the cells of the parent's thread
};

Mutex mutex{LockRank::threads};  // held while summing, so that no cell moves into a state word meanwhile
Record* all_records GUARDED_BY(mutex) = nullptr;
Record* free_records GUARDED_BY(mutex) = nullptr;
uint32_t record_count GUARDED_BY(mutex) = 0;

alignas(128) uint64_t undone = 0;  // references.h; atomic
// epoch.h; what hits read, so it shares its line with nothing.
struct alignas(128) Epoch {
  uint64_t now = epoch::kFirst;
} epoch;

// dates.h; what every release of GPU memory reads.
struct alignas(128) Dates {
  uint64_t now = 0;
} dates;

// allocations.h; what notes of GPU memory hang on.
pinrail_start_line_t gpu_line{};

// Of threads without cells; never written.
recent::Entry no_recent[recent::kEntries];
struct Nobodys {
  constexpr Nobodys() {
    for (uint64_t& cell : cells) cell = references::kNobodys;
  }
  uint64_t cells[references::kWords] = {};
};
alignas(64) Nobodys nobodys;

// What a thread has to itself. 16 KiB.
struct alignas(64) Own {
  uint64_t cells[references::kWords] = {};
  recent::Entry recent[recent::kEntries];
};

pthread_key_t exit_key;
pthread_once_t once = PTHREAD_ONCE_INIT;
bool has_exit_key = false;
bool has_membarrier = false;

int membarrier(int command) { return static_cast<int>(syscall(SYS_membarrier, command, 0u, 0)); }

// C3 of references.h.
void fold_cells(pinrail_thread_t* thread) REQUIRES(mutex) {
  if (!has_cells(thread)) return;
  for (size_t i = 0; i < references::kWords; i += references::words_of_cell(i)) {
    const uint64_t cell = thread->cells[i];
    if (references::count_of(cell) == 0) continue;
    auto* reg = reinterpret_cast<pinrail_registration_t*>(cell >> 16);  // NOLINT(performance-no-int-to-ptr): a cell
    const auto count = static_cast<uint64_t>(int64_t{references::count_of(cell)});
    __atomic_fetch_add(&reg->state, count << state::kReferenceShift, __ATOMIC_ACQ_REL);
  }
  static_assert(offsetof(Own, cells) == 0, "the cells are where the whole begins");
  std::free(thread->cells);
  thread->cells = nobodys.cells;
  thread->recent = no_recent;
}

void on_thread_exit(void* record_pointer) {
  auto* record = static_cast<Record*>(record_pointer);
  current_thread = nullptr;
  if (gate::is_child() || is_left_behind(&record->thread)) return;  // the locks below may be held for ever
  arena::take_back_spare(&record->thread);
  Guard guard(mutex);
  fold_cells(&record->thread);
  record->next_free = free_records;
  free_records = record;
}

void prepare() {
  has_exit_key = pthread_key_create(&exit_key, on_thread_exit) == 0;
  has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

Record* take_record() {
  Guard guard(mutex);
  if (free_records != nullptr) {
    Record* record = free_records;
    free_records = record->next_free;
    return record;
  }
  auto* record = new (std::nothrow) Record{};
  if (record == nullptr) return nullptr;
  record->thread = {sizeof(pinrail_thread_t),
                    record_count++,
                    0,
                    nobodys.cells,
                    &undone,
                    &epoch.now,
                    {},
                    nullptr,
                    no_recent,
                    &dates.now,
                    0,
                    nullptr,
                    &gpu_line};
  record->next = all_records;
  __atomic_store_n(&all_records, record, __ATOMIC_RELEASE);  // linked when it is whole: a forked child walks the list
  return record;
}

}  // namespace

bool has_cells(const pinrail_thread_t* thread) { return thread->cells != nobodys.cells; }

uint64_t* epoch_word() { return &epoch.now; }
pinrail_start_line_t* line_of_gpu_memory() { return &gpu_line; }

pinrail_thread_t* current_slow() {
  pthread_once(&once, prepare);
  Record* record = take_record();
  if (record == nullptr) return nullptr;
  record->thread.in_registrar = 0;
  // Cells only for a thread whose end we see (there are 1,024 keys in a process), and where sums can be made.
  if (has_exit_key && has_membarrier && pthread_setspecific(exit_key, record) == 0) {
    void* memory = std::aligned_alloc(alignof(Own), sizeof(Own));
    if (memory != nullptr) {
      auto* own = new (memory) Own;
      record->thread.recent = own->recent;
      Guard guard(mutex);
      record->thread.cells = own->cells;
    }
  }
  current_thread = &record->thread;
  return current_thread;
}

// Records are not given back: who forked may be using his own still, in a hit. May be done again, for a child of the
// child may find it half done.
void leave_parents_life() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::threads);
  for (Record* record = all_records; record != nullptr; record = record->next) {
    if (record->inherited == nullptr) record->inherited = record->thread.cells;
    record->thread.size = 0;
    record->thread.recent = no_recent;
    record->thread.cells = nobodys.cells;
  }
  make_anew(&all_records, nullptr);
  free_records = nullptr;
  record_count = 0;
  current_thread = nullptr;
  if (has_membarrier) has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

namespace {

int64_t sum_cells(const pinrail_registration_t* reg) REQUIRES(mutex) {
  int64_t sum = 0;
  for (const Record* record = all_records; record != nullptr; record = record->next) {
    const uint64_t* const cells = record->thread.cells;
    for (const size_t place : {references::near_of(reg), references::far_of(reg)}) {
      // acquire: pairs with the release store in references::put().
      const uint64_t cell = __atomic_load_n(&cells[place], __ATOMIC_ACQUIRE);
      if (references::names(cell, reg)) sum += references::count_of(cell);
    }
  }
  return sum;
}

}  // namespace
}  // namespace pinrail::thread

namespace pinrail::references {

void sum(pinrail_registration_t* const* regs, size_t count, int64_t* references_out) {
  using thread::mutex;
  pthread_once(&thread::once, thread::prepare);  // so that no thread gets cells that this sum does not know of
  // Every thread passes a full barrier between what it did to its cells and what it sees of the states from now on.
  if (thread::has_membarrier) thread::membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
  Guard guard(mutex);
  for (size_t i = 0; i < count; ++i) {
    references_out[i] = state::signed_references(state::load(regs[i])) + thread::sum_cells(regs[i]);
  }
}

// Who notes what lies in the table meanwhile, or drops it, is in a call on a pool that is being destroyed.
void forget_notes(const pinrail_starts_t& table) {
  const auto begin = reinterpret_cast<uintptr_t>(table.lines);
  const auto end = reinterpret_cast<uintptr_t>(table.lines + table.more);
  Guard guard(thread::mutex);
  for (const thread::Record* record = thread::all_records; record != nullptr; record = record->next) {
    if (!thread::has_cells(&record->thread)) continue;
    for (uint64_t* near = record->thread.cells; near != record->thread.cells + kNearWords * kNear; near += kNearWords) {
      const uintptr_t noted = __atomic_load_n(&near[1], __ATOMIC_RELAXED);
      if (noted >= begin && noted < end) note_nothing(near);
    }
  }
}

}  // namespace pinrail::references
