// SPDX-License-Identifier: BSD-3-Clause
// Threads come and go, and what they hold is summed.
#include "base/core/thread.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "base/core/gate.h"
#include "base/core/hit_counts.h"
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
  Record* next;        // all records ever made
  Record* next_free;   // those of ended threads
  Record* next_alive;  // those with cells
  Record* previous_alive;
  void* inherited;  // in a forked child: the cells of the parent's thread
};

// Held while summing, so that no cell moves into an own count meanwhile. Not across a malloc or a free: it is taken
// under locks that hooks take.
Mutex mutex{LockRank::threads};
Record* all_records GUARDED_BY(mutex) = nullptr;
Record* alive GUARDED_BY(mutex) = nullptr;  // so that a sum costs what the threads cost that are there now
// Of threads that can count their hits alone, and of the others: who comes first shall be one of the former.
Record* free_records[2] GUARDED_BY(mutex) = {};
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
bool lost_membarrier = false;  // it worked, and failed later; atomic

int membarrier(int command) { return static_cast<int>(syscall(SYS_membarrier, command, 0u, 0)); }

// references/C3. C5: of one that is summed, the part that is kept of the cells falls by what leaves them.
void fold(uint64_t* cell) REQUIRES(mutex) {
  const uint64_t word = *cell;
  const int64_t count = references::count_of(word);
  if (count == 0) return;
  auto* reg = reinterpret_cast<pinrail_registration_t*>(word >> 16);  // NOLINT(performance-no-int-to-ptr): a cell
  references::add_own(reg, count);
  references::put(cell, references::tag_of(reg));
  if (references::is_summed(state::load(reg))) references::kept_part(reg) -= count;
}

void link_alive(Record* record) REQUIRES(mutex) {
  record->previous_alive = nullptr;
  record->next_alive = alive;
  if (alive != nullptr) alive->previous_alive = record;
  alive = record;
}

void unlink_alive(Record* record) REQUIRES(mutex) {
  if (record->next_alive != nullptr) record->next_alive->previous_alive = record->previous_alive;
  (record->previous_alive != nullptr ? record->previous_alive->next_alive : alive) = record->next_alive;
}

Record*& free_records_like(const Record* record) REQUIRES(mutex) {
  return free_records[record->thread.index < HitCounts::kAlone ? 0 : 1];
}

// What the thread had to itself: to be freed.
uint64_t* take_cells(Record* record) REQUIRES(mutex) {
  pinrail_thread_t* thread = &record->thread;
  if (!has_cells(thread)) return nullptr;
  for (size_t i = 0; i < references::kWords; i += references::words_of_cell(i)) fold(&thread->cells[i]);
  static_assert(offsetof(Own, cells) == 0, "the cells are where the whole begins");
  unlink_alive(record);
  uint64_t* const cells = thread->cells;
  thread->cells = nobodys.cells;
  thread->recent = no_recent;
  return cells;
}

void fold_entry(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  Guard guard(mutex);
  for (uint64_t* cell : {references::near_cell(thread, reg), references::far_cell(thread, reg)}) {
    if (references::names(*cell, reg)) fold(cell);
  }
}

void on_thread_exit(void* record_pointer) {
  auto* record = static_cast<Record*>(record_pointer);
  current_thread = nullptr;
  if (gate::is_child() || is_left_behind(&record->thread)) return;  // the locks below may be held for ever
  arena::take_back_spare(&record->thread);
  void* own;
  {
    Guard guard(mutex);
    own = take_cells(record);
    record->next_free = free_records_like(record);
    free_records_like(record) = record;
  }
  std::free(own);
}

void prepare() {
  has_exit_key = pthread_key_create(&exit_key, on_thread_exit) == 0;
  has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

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
  record->thread = {sizeof(pinrail_thread_t),
                    0,
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
                    &gpu_line,
                    fold_entry};
  Guard guard(mutex);
  record->thread.index = record_count++;
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
  if (has_exit_key && has_membarrier && pthread_setspecific(exit_key, record) == 0 && references::can_sum()) {
    void* memory = std::aligned_alloc(alignof(Own), sizeof(Own));
    if (memory != nullptr) {
      auto* own = new (memory) Own;
      record->thread.recent = own->recent;
      Guard guard(mutex);
      record->thread.cells = own->cells;
      link_alive(record);
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
  alive = free_records[0] = free_records[1] = nullptr;
  record_count = 0;
  current_thread = nullptr;
  if (has_membarrier) has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

namespace {

// What the thread's cells count of the registration. acquire: pairs with the release store in references::put().
int64_t count_of(const Record* record, const pinrail_registration_t* reg) REQUIRES(mutex) {
  const uint64_t* const cells = record->thread.cells;
  int64_t count = 0;
  for (const size_t place : {references::near_of(reg), references::far_of(reg)}) {
    const uint64_t cell = __atomic_load_n(&cells[place], __ATOMIC_ACQUIRE);
    if (references::names(cell, reg)) count += references::count_of(cell);
  }
  return count;
}

int64_t count_in_cells(const pinrail_registration_t* reg) REQUIRES(mutex) {
  int64_t count = 0;
  for (const Record* record = alive; record != nullptr; record = record->next_alive) count += count_of(record, reg);
  return count;
}

// Every thread passes a full barrier between what it did to its cells and what it sees of the states from now on. False
// if it cannot be made to: then what stands in the cells says nothing. Own counts need none: load_after_count().
bool pass_barrier() {
  if (!has_membarrier || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return true;
  __atomic_store_n(&lost_membarrier, true, __ATOMIC_RELAXED);  // relaxed: it only says that sums fail from now on
  return false;
}

}  // namespace
}  // namespace pinrail::thread

namespace pinrail::references {

bool can_sum() { return !__atomic_load_n(&thread::lost_membarrier, __ATOMIC_RELAXED); }

// What no thread's cell counts: of a registration that is counted in its state word, all.
int64_t part_outside_cells(const pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  return (word & state::kPerThread) != 0 ? own_count(reg) : static_cast<int64_t>(state::references(word));
}

// Thread by thread, for a thread's cells lie close together. No cell names a registration that is counted in its word.
bool sum(pinrail_registration_t* const* regs, size_t count, pinrail_sum_t how, int64_t* references_out) {
  using thread::mutex;
  pthread_once(&thread::once, thread::prepare);  // so that no thread gets cells that this sum does not know of
  const bool in_cells = std::any_of(regs, regs + count, [](const pinrail_registration_t* reg) {
    return (state::load(reg) & state::kPerThread) != 0;
  });
  if (how == PINRAIL_SUM_NOW && in_cells && !thread::pass_barrier()) {
    for (size_t i = 0; i < count; ++i) references_out[i] = kUnknown;
    return false;
  }
  Guard guard(mutex);
  for (size_t i = 0; i < count; ++i) references_out[i] = part_outside_cells(regs[i]);
  for (const thread::Record* record = thread::alive; record != nullptr; record = record->next_alive) {
    for (size_t i = 0; i < count; ++i) references_out[i] += thread::count_of(record, regs[i]);
  }
  return true;
}

// C5. All that is done to what is summed is done under the lock, so nobody frees it meanwhile.
int settle_dead(pinrail_handle_t handle, pinrail_dead_t what) {
  pinrail_registration_t* const reg = handle.reg;
  Guard guard(thread::mutex);
  const uint64_t word = state::load(reg);
  constexpr uint64_t kWhich = state::kDead | state::kPerThread | state::kClaimed;
  const bool is_it = state::generation(word) == handle.generation && (word & kWhich) == (kWhich & ~state::kClaimed);
  if (!is_it || ((word & state::kSummed) == 0 && what != PINRAIL_DEAD_HELD)) return what == PINRAIL_DEAD_DROP ? -1 : 0;
  int64_t& in_cells = kept_part(reg);
  if (what == PINRAIL_DEAD_DROP) {
    if (own_count(reg) + in_cells <= 0) return -1;
    add_own(reg, -1);
  } else {
    in_cells = thread::count_in_cells(reg);
  }
  const int64_t left = own_count(reg) + in_cells;
  const uint64_t mark = left > 0 ? state::kSummed : state::kSummed | state::kClaimed;
  __atomic_fetch_or(&reg->state, mark, __ATOMIC_ACQ_REL);
  if (left <= 0) forgive(reg, left);
  return left > 0 ? 0 : 1;
}

// Who notes what lies in the table meanwhile, or drops it, is in a call on a pool that is being destroyed.
void forget_notes(const pinrail_starts_t& table) {
  const auto begin = reinterpret_cast<uintptr_t>(table.lines);
  const auto end = reinterpret_cast<uintptr_t>(table.lines + table.more);
  Guard guard(thread::mutex);
  for (const thread::Record* record = thread::alive; record != nullptr; record = record->next_alive) {
    for (uint64_t* near = record->thread.cells; near != record->thread.cells + kNearWords * kNear; near += kNearWords) {
      const uintptr_t noted = __atomic_load_n(&near[1], __ATOMIC_RELAXED);
      if (noted >= begin && noted < end) note_nothing(near);
    }
  }
}

}  // namespace pinrail::references
