// SPDX-License-Identifier: BSD-3-Clause
// Thread records, and sums of references over all threads.
#include "base/registration/thread.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "base/registration/recent_request.h"
#include "base/registration/references.h"
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
  Record* next;        // all records
  Record* next_free;   // records of ended threads
  Record* next_alive;  // records of threads with slots
  Record* previous_alive;
  void* memory;  // the thread's Own lies in it
};

// Held during a sum, so that no count moves from a slot into an own count meanwhile. It is taken under locks that hooks
// take, so it is never held across malloc or free.
Mutex mutex{LockRank::threads};
Record* all_records GUARDED_BY(mutex) = nullptr;
Record* alive GUARDED_BY(mutex) = nullptr;  // a sum's cost follows the number of living threads with slots
// Free records by whether their threads have statistics counters of their own; a new thread prefers one of these.
Record* free_records[2] GUARDED_BY(mutex) = {};
uint32_t record_count GUARDED_BY(mutex) = 0;

alignas(128) uint64_t rollbacks = 0;  // references.h; atomic
// epoch.h. Hits read it, so it has cache lines of its own.
struct alignas(128) Epoch {
  uint64_t now = epoch::kFirst;
} epoch;

// timestamps.h. Every release of GPU memory reads it.
struct alignas(128) Dates {
  uint64_t now = 0;
} dates;

// allocation_table.h. Notes of GPU memory refer to its version.
pinrail_start_bucket_t gpu_bucket{};

// Shared by all threads without slots of their own; never written.
RecentRequests no_recent = {};
struct NoRefSlots {
  constexpr NoRefSlots() {
    for (uint64_t& ref_slot : ref_slots) ref_slot = references::kUnusableRefSlot;
  }
  uint64_t ref_slots[references::kWords] = {};
};
alignas(64) NoRefSlots no_ref_slots;

void fold_entry(const pinrail_thread_t* thread, const pinrail_registration_t* reg);

// size: 0, or that of a thread's own record.
constexpr pinrail_thread_t make_record(size_t size, uint32_t index, uint32_t spare_count) {
  return {size,        index,       0,          no_ref_slots.ref_slots,
          &rollbacks,  &epoch.now,  {},         nullptr,
          spare_count, &no_recent,  &dates.now, 0,
          nullptr,     &gpu_bucket, fold_entry};
}

}  // namespace

// No pool gives its hits to a thread with such an index, and it has spares enough.
pinrail_thread_t null_thread = make_record(0, UINT32_MAX, UINT32_MAX);
__thread pinrail_thread_t* current_thread __attribute__((tls_model("initial-exec"))) = &null_thread;

namespace {

// Memory of one thread: 84 KiB, all zero at first.
struct alignas(64) Own {
  uint64_t ref_slots[references::kWords];
  RecentRequests recent;
};

// Gives the record memory of its own. False if there is none. calloc() leaves fresh pages untouched, so that a thread
// uses as many as its requests need.
bool allocate_own(Record* record, Own** own_out) {
  size_t room = sizeof(Own) + alignof(Own);
  record->memory = std::calloc(1, room);
  void* aligned = record->memory;
  *own_out = static_cast<Own*>(std::align(alignof(Own), sizeof(Own), aligned, room));
  return record->memory != nullptr;
}

pthread_key_t exit_key;
pthread_once_t once = PTHREAD_ONCE_INIT;
bool has_exit_key = false;
bool has_membarrier = false;
bool lost_membarrier = false;  // membarrier worked at first and failed later; atomic

int membarrier(int command) { return static_cast<int>(syscall(SYS_membarrier, command, 0u, 0)); }

// Moves a slot's count into the own count (references/C3). If the registration is marked as summed, the kept part falls
// by this count (references/C5).
void fold_locked(uint64_t* ref_slot) REQUIRES(mutex) {
  const uint64_t word = *ref_slot;
  const int64_t count = references::count_of(word);
  if (count == 0) return;
  auto* reg =
      reinterpret_cast<pinrail_registration_t*>(word >> 16);  // NOLINT(performance-no-int-to-ptr): a reference slot
  references::add_own(reg, count);
  references::store_slot(ref_slot, references::tag_of(reg));
  if (references::is_summed(state::load(reg))) references::kept_part(reg) -= count;
}

void link_alive_locked(Record* record) REQUIRES(mutex) {
  record->previous_alive = nullptr;
  record->next_alive = alive;
  if (alive != nullptr) alive->previous_alive = record;
  alive = record;
}

void unlink_alive_locked(Record* record) REQUIRES(mutex) {
  if (record->next_alive != nullptr) record->next_alive->previous_alive = record->previous_alive;
  (record->previous_alive != nullptr ? record->previous_alive->next_alive : alive) = record->next_alive;
}

Record*& free_list_of_locked(const Record* record) REQUIRES(mutex) {
  return free_records[record->thread.index < kThreadsWithOwnCounters ? 0 : 1];
}

// Folds the slots of an ending thread and returns its memory for the caller to free; nullptr if it has none.
void* detach_ref_slots_locked(Record* record) REQUIRES(mutex) {
  pinrail_thread_t* thread = &record->thread;
  if (!has_ref_slots(thread)) return nullptr;
  for (size_t i = 0; i < references::kWords; i += references::words_of_ref_slot(i)) fold_locked(&thread->ref_slots[i]);
  unlink_alive_locked(record);
  thread->ref_slots = no_ref_slots.ref_slots;
  thread->recent = &no_recent;
  return record->memory;
}

void fold_entry(const pinrail_thread_t* thread, const pinrail_registration_t* reg) {
  Guard guard(mutex);
  for (uint64_t* ref_slot : {references::near_ref_slot(thread, reg), references::far_ref_slot(thread, reg)}) {
    if (references::names(*ref_slot, reg)) fold_locked(ref_slot);
  }
}

void on_thread_exit(void* record_pointer) {
  auto* record = static_cast<Record*>(record_pointer);
  current_thread = &null_thread;
  if (gate::is_child() || record->thread.size == 0)
    return;  // in a child the locks below may be held by a thread of the parent
  arena::free_spares(&record->thread);
  void* memory;
  {
    Guard guard(mutex);
    memory = detach_ref_slots_locked(record);
    record->next_free = free_list_of_locked(record);
    free_list_of_locked(record) = record;
  }
  std::free(memory);
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
  record->thread = make_record(sizeof(pinrail_thread_t), 0, 0);
  Guard guard(mutex);
  record->thread.index = record_count++;
  record->next = all_records;
  __atomic_store_n(&all_records, record,
                   __ATOMIC_RELEASE);  // release: linked when complete, because a forked child walks the list
  return record;
}

}  // namespace

bool has_ref_slots(const pinrail_thread_t* thread) { return thread->ref_slots != no_ref_slots.ref_slots; }

uint64_t* epoch_word() { return &epoch.now; }
pinrail_start_bucket_t* gpu_bucket_word() { return &gpu_bucket; }

pinrail_thread_t* current_slow() {
  pthread_once(&once, prepare);
  Record* record = take_record();
  if (record == nullptr) return nullptr;
  record->thread.in_registrar = 0;
  // A thread keeps free registrations only if its end is observed (a process has 1,024 keys), and gets slots only if
  // sums can be made besides.
  const bool is_end_seen = has_exit_key && pthread_setspecific(exit_key, record) == 0;
  if (!is_end_seen) record->thread.spare_count = UINT32_MAX;
  if (is_end_seen && has_membarrier && references::can_sum()) {
    Own* own;
    if (allocate_own(record, &own)) {
      record->thread.recent = &own->recent;
      Guard guard(mutex);
      record->thread.ref_slots = own->ref_slots;
      link_alive_locked(record);
    }
  }
  current_thread = &record->thread;
  return current_thread;
}

// Records are not freed: the forking thread may be in a hit that uses its own. This may run twice, because a child of
// the child may find it half done.
void fork_reinit() NO_THREAD_SAFETY_ANALYSIS {
  new (&mutex) Mutex(LockRank::threads);
  for (Record* record = all_records; record != nullptr; record = record->next) {
    record->thread.size = 0;
    record->thread.recent = &no_recent;
    record->thread.ref_slots = no_ref_slots.ref_slots;
  }
  replace_in_child(&all_records, nullptr);
  alive = free_records[0] = free_records[1] = nullptr;
  record_count = 0;
  current_thread = &null_thread;
  if (has_membarrier) has_membarrier = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

namespace {

// Returns what the thread's two slots count of the registration. acquire: pairs with the release store in
// references::store_slot().
inline int64_t count_of_locked(const Record* record, const pinrail_registration_t* reg) REQUIRES(mutex) {
  const uint64_t* const ref_slots = record->thread.ref_slots;
  int64_t count = 0;
  for (const size_t place : {references::near_of(reg), references::far_of(reg)}) {
    const uint64_t ref_slot = __atomic_load_n(&ref_slots[place], __ATOMIC_ACQUIRE);
    if (references::names(ref_slot, reg)) count += references::count_of(ref_slot);
  }
  return count;
}

int64_t sum_ref_slots_locked(const pinrail_registration_t* reg) REQUIRES(mutex) {
  int64_t count = 0;
  for (const Record* record = alive; record != nullptr; record = record->next_alive)
    count += count_of_locked(record, reg);
  return count;
}

// Makes every thread pass a full barrier between its last store to a slot and its next load of a state word. Returns
// false if the kernel refuses; then the values of the slots prove nothing. Own counts need no barrier: see
// state::load_after_count().
bool pass_barrier() {
  if (!has_membarrier || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) == 0) return true;
  __atomic_store_n(&lost_membarrier, true, __ATOMIC_RELAXED);  // relaxed: no other data depends on it
  return false;
}

}  // namespace
}  // namespace pinrail::thread

namespace pinrail::references {

bool can_sum() { return !__atomic_load_n(&thread::lost_membarrier, __ATOMIC_RELAXED); }

// Returns the references that are in no slot; of a SHARED registration these are all.
int64_t part_outside_ref_slots(const pinrail_registration_t* reg) {
  const uint64_t word = state::load(reg);
  return (word & state::kPerThread) != 0 ? own_count(reg) : static_cast<int64_t>(state::references(word));
}

// Walks thread by thread, because the slots of one thread lie close together. No slot names a SHARED registration.
bool sum(pinrail_registration_t* const* regs, size_t count, pinrail_sum_t mode, int64_t* references_out) {
  using thread::mutex;
  pthread_once(&thread::once,
               thread::prepare);  // otherwise a thread could get slots that this sum does not see
  const bool in_ref_slots = std::any_of(regs, regs + count, [](const pinrail_registration_t* reg) {
    return (state::load(reg) & state::kPerThread) != 0;
  });
  if (mode == PINRAIL_SUM_NOW && in_ref_slots && !thread::pass_barrier()) {
    for (size_t i = 0; i < count; ++i) references_out[i] = kUnknown;
    return false;
  }
  Guard guard(mutex);
  for (size_t i = 0; i < count; ++i) references_out[i] = part_outside_ref_slots(regs[i]);
  for (const thread::Record* record = thread::alive; record != nullptr; record = record->next_alive) {
    for (size_t i = 0; i < count; ++i) references_out[i] += thread::count_of_locked(record, regs[i]);
  }
  return true;
}

// references/C5. Every change of a summed registration happens under this lock, so nothing frees it meanwhile.
int settle_dead(pinrail_handle_t handle, pinrail_dead_t what) {
  pinrail_registration_t* const reg = handle.reg;
  Guard guard(thread::mutex);
  const uint64_t word = state::load(reg);
  constexpr uint64_t kWhich = state::kDead | state::kPerThread | state::kReleaseClaim;
  const bool is_it =
      state::generation(word) == handle.generation && (word & kWhich) == (kWhich & ~state::kReleaseClaim);
  if (!is_it || ((word & state::kSummed) == 0 && what != PINRAIL_DEAD_HELD)) return what == PINRAIL_DEAD_DROP ? -1 : 0;
  int64_t& in_ref_slots = kept_part(reg);
  if (what == PINRAIL_DEAD_DROP) {
    if (own_count(reg) + in_ref_slots <= 0) return -1;
    add_own(reg, -1);
  } else {
    in_ref_slots = thread::sum_ref_slots_locked(reg);
  }
  const int64_t left = own_count(reg) + in_ref_slots;
  const uint64_t mark = left > 0 ? state::kSummed : state::kSummed | state::kReleaseClaim;
  __atomic_fetch_or(&reg->state, mark, __ATOMIC_ACQ_REL);
  if (left <= 0) discard_excess_drops(reg, left);
  return left > 0 ? 0 : 1;
}

// Other threads may write and use notes and recent requests at the same time, unless the table is to be destroyed. Then
// a valid one may be cleared, too, and the next request looks up the start table again.
void forget_notes(const pinrail_start_table_t& table) {
  // relaxed: if the table grows meanwhile, no note or recent request points into its new buckets yet.
  const size_t count = __atomic_load_n(&table.more, __ATOMIC_RELAXED);
  const auto begin = reinterpret_cast<uintptr_t>(table.buckets);
  const auto end = reinterpret_cast<uintptr_t>(table.buckets + count);
  const auto points_into = [&](uintptr_t place) { return place >= begin && place < end; };
  Guard guard(thread::mutex);
  for (const thread::Record* record = thread::alive; record != nullptr; record = record->next_alive) {
    for (uint64_t* near = record->thread.ref_slots; near != record->thread.ref_slots + kNearWords * kNearSlots;
         near += kNearWords) {
      if (points_into(__atomic_load_n(&near[1], __ATOMIC_RELAXED))) clear_note(near);
    }
    for (RecentRequest& entry : static_cast<RecentRequests*>(record->thread.recent)->entries) {
      const auto* const date = __atomic_load_n(&entry.date, __ATOMIC_RELAXED);
      if (points_into(reinterpret_cast<uintptr_t>(date))) __atomic_store_n(&entry.longest, 0, __ATOMIC_RELAXED);
    }
  }
}

}  // namespace pinrail::references
