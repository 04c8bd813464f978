// SPDX-License-Identifier: BSD-3-Clause
// Memory as the threads see it: words, store buffers, mutexes; and the functions of explorer.h that the code under test
// comes in by.
#include "test/model/explorer_state.h"

namespace pinrail::model {

bool Explorer::is_private(uintptr_t address) const {
  for (unsigned i = 0; i < count_; ++i) {
    if (address - reinterpret_cast<uintptr_t>(threads_[i].stack.get()) < kStackBytes) return true;
  }
  return false;
}

Word& Explorer::word_at(uintptr_t address) {
  const uintptr_t aligned = address & ~uintptr_t{7};
  auto* const memory = reinterpret_cast<uint64_t*>(aligned);
  const auto [at, is_new] = words_.try_emplace(aligned, Word{memory, 0, 0, 0, 0, 0, 0, kNobody, false, false, false});
  // Between executions all is as it was at the beginning, and within one the first touch comes before any write.
  if (is_new) at->second.initial = *memory;
  return at->second;
}

// explorer/X3. A word that more threads see than was known changes what is a turn, in the next round.
void Explorer::note(Word& word, bool writes) {
  require(!word.is_freed, "memory was used after it was freed");
  if (is_last()) return;
  uint32_t& mask = writes ? word.writers : word.readers;
  if ((mask & bit(current_)) != 0) return;
  (writes ? word.new_writers : word.new_readers) |= bit(current_);
  const uint32_t writers = word.writers | word.new_writers;
  const uint32_t all = word.readers | word.new_readers | writers;
  if (writers != 0 && (all & (all - 1)) != 0) find_shared();
  mask |= bit(current_);
}

// The execution is not what the round would have made of it: a store may have overtaken what it must not.
void Explorer::find_shared() {
  is_last_round_ = false;
  finish(End::known);
}

void Explorer::begin_round() {
  for (auto& [address, word] : words_) {
    word.readers |= word.new_readers;
    word.writers |= word.new_writers;
  }
  path_.clear();
  known_.clear();
  samples_.clear();
  is_last_round_ = true;
  restart();
}

void Explorer::refresh(Word& word) {
  memory_ -= word.share;
  word.share = *word.address == word.initial ? 0 : mix(reinterpret_cast<uintptr_t>(word.address), *word.address);
  memory_ += word.share;
}

void Explorer::put(uintptr_t address, unsigned size, uint64_t value) {
  Word& word = word_at(address);
  keep(word);
  std::memcpy(reinterpret_cast<void*>(address), &value, size);
  refresh(word);
}

// The owner of a word is part of the state by the store in its buffer.
void Explorer::see(unsigned number, size_t place) {
  std::vector<Store>& buffer = threads_[number].buffer;
  const Store store = buffer[place];
  buffer.erase(buffer.begin() + static_cast<ptrdiff_t>(place));
  put(store.address, store.size, store.value);
  if (store.is_modify) word_at(store.address).owner = kNobody;
}

void Explorer::flush_one(unsigned number, size_t place) {
  const Store store = threads_[number].buffer[place];
  see(number, place);
  record(static_cast<int>(number), "store is visible", store.address, store.value);
  flush_unseen(number);
}

// Stores that no other thread can see need no turn when they are the oldest.
void Explorer::flush_unseen(unsigned number) {
  std::vector<Store>& buffer = threads_[number].buffer;
  for (size_t place = 0; place < buffer.size();) {
    // A seq_cst store orders what comes before and after it, for every observer.
    const bool may_overtake = place == 0 || (buffer[place].order & kSequential) == 0;
    if (may_overtake && !others_touch(word_at(buffer[place].address), number)) {
      see(number, place);
    } else {
      ++place;
    }
  }
}

uint64_t Explorer::load(uintptr_t address, unsigned size, unsigned order) {
  Word& word = word_at(address);
  note(word, false);
  const bool is_ordered = (order & kSequential) != 0;
  if (others_write(word)) wait_for_turn(is_ordered ? Op::ordered_load : Op::load, address);
  uint64_t value = 0;
  std::memcpy(&value, reinterpret_cast<const void*>(address), size);
  const std::vector<Store>& buffer = me().buffer;
  for (const Store& store : buffer) {
    if (store.address == address && store.size == size) value = store.value;
  }
  record(current_, "load", address, value);
  return value;
}

void Explorer::store(uintptr_t address, unsigned size, uint64_t value, unsigned order) {
  Word& word = word_at(address);
  note(word, true);
  record(current_, "store", address, value);
  me().buffer.push_back({address, size, value, order, false});
  flush_unseen(static_cast<unsigned>(current_));
}

// explorer/X5. A word that no other thread sees is changed at once, for it may be a variable of a function that returns
// before the store is seen; with seq_cst, what stays in the buffer orders the other stores.
uint64_t Explorer::modify(uintptr_t address, unsigned size, unsigned order, const Change& change) {
  Word& word = word_at(address);
  note(word, true);
  const bool is_shared = others_touch(word, static_cast<unsigned>(current_));
  const bool is_late = is_shared || (order & kSequential) != 0;
  if (is_late) wait_for_turn(Op::modify, address);
  uint64_t old = 0, value = 0;
  std::memcpy(&old, reinterpret_cast<const void*>(address), size);
  const bool changes = change(old, &value);
  record(current_, changes ? "modify" : "compare, unequal", address, changes ? value : old);
  if (!changes) return old;
  if (!is_shared) put(address, size, value);
  if (!is_late) return old;
  keep(word);
  word.owner = current_;
  me().buffer.push_back({address, is_shared ? size : 0, value, order, true});
  flush_unseen(static_cast<unsigned>(current_));
  return old;
}

// A turn, if other threads touch the mutex.
Word& Explorer::come_to(uintptr_t mutex, Op op) {
  Word& word = word_at(mutex);
  word.is_mutex = true;
  note(word, true);
  if (others_touch(word, static_cast<unsigned>(current_))) wait_for_turn(op, mutex & ~uintptr_t{7});
  return word;
}

void Explorer::lock(uintptr_t mutex) {
  Word& word = come_to(mutex, Op::lock);
  require(word.owner == kNobody, "a lock was taken twice");
  own(word, "lock");
}

// It looks once, and does not wait until the mutex is free.
bool Explorer::try_lock(uintptr_t mutex) {
  Word& word = come_to(mutex, Op::load);
  if (word.owner != kNobody) {
    record(current_, "try to lock: owned", mutex, 0);
    return false;
  }
  own(word, "try to lock");
  return true;
}

void Explorer::own(Word& mutex, const char* what) {
  keep(mutex);
  mutex.owner = current_;
  mutex.share = mix(reinterpret_cast<uintptr_t>(mutex.address), static_cast<uint64_t>(current_) + 1);
  memory_ += mutex.share;
  record(current_, what, reinterpret_cast<uintptr_t>(mutex.address), 0);
}

// No turn: to unlock later than the last step under the lock only keeps others waiting.
void Explorer::unlock(uintptr_t mutex) {
  drain();
  Word& word = word_at(mutex);
  keep(word);
  word.owner = kNobody;
  memory_ -= word.share;
  word.share = 0;
  record(current_, "unlock", mutex, 0);
}

void Explorer::freed(uintptr_t memory, size_t bytes) {
  drain();
  for (uintptr_t at = memory & ~uintptr_t{7}; at < memory + bytes; at += 8) {
    const auto word = words_.find(at);
    if (word == words_.end()) continue;
    keep(word->second);
    word->second.is_freed = true;
  }
}

void Explorer::read_plainly(uintptr_t address, size_t bytes) {
  if (is_private(address)) return;
  for (uintptr_t at = address & ~uintptr_t{7}; at < address + bytes; at += 8) {
    Word& word = word_at(at);
    require(!word.is_freed, "memory was used after it was freed");
    for (const Store& store : me().buffer) {
      if ((store.address & ~uintptr_t{7}) != at) continue;
      drain();  // restricts what may happen, but is never wrong; explorer/X4
      break;
    }
  }
}

void Explorer::write_plainly(uintptr_t address, size_t bytes) {
  if (is_private(address)) return;
  for (uintptr_t at = address & ~uintptr_t{7}; at < address + bytes; at += 8) {
    Word& word = word_at(at);
    require(!word.is_freed, "memory was used after it was freed");
    if (word.is_dirty) continue;
    keep(word);
    word.is_dirty = true;
    dirty_.push_back(&word);
  }
}

// ---- What the code under test calls

namespace {

uint64_t native_load(const void* address, unsigned size) {
  uint64_t value = 0;
  std::memcpy(&value, address, size);
  return value;
}

uintptr_t as_number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

void require(bool condition, const char* what) {
  if (condition || !running()) return;
  const Inside inside;
  explorer().require(false, what);
}

void pause() {
  if (!running()) return;
  const Inside inside;
  explorer().pause();
}

void call(const void* address, const std::string& name) { explorer().call(as_number(address), name); }

bool running() { return is_made && !is_inside && explorer().running(); }

void* own_memory() {
  static uint64_t of_nobody[8];
  return running() ? explorer().own_memory() : of_nobody;
}

uint64_t load(const void* address, unsigned size, unsigned order) {
  if (!running()) return native_load(address, size);
  const Inside inside;
  return explorer().load(as_number(address), size, order);
}

void store(void* address, unsigned size, uint64_t value, unsigned order) {
  if (!running()) {
    std::memcpy(address, &value, size);
    return;
  }
  const Inside inside;
  explorer().store(as_number(address), size, value, order);
}

uint64_t modify(void* address, unsigned size, unsigned order, const Change& change) {
  if (running()) {
    const Inside inside;
    return explorer().modify(as_number(address), size, order, change);
  }
  const uint64_t old = native_load(address, size);
  uint64_t value;
  if (change(old, &value)) std::memcpy(address, &value, size);
  return old;
}

void lock(void* mutex) {
  const Inside inside;
  explorer().lock(as_number(mutex));
}
bool try_lock(void* mutex) {
  const Inside inside;
  return explorer().try_lock(as_number(mutex));
}
void unlock(void* mutex) {
  const Inside inside;
  explorer().unlock(as_number(mutex));
}
void freed(void* memory, size_t bytes) {
  const Inside inside;
  explorer().freed(as_number(memory), bytes);
}
void read_plainly(const void* address, size_t bytes) {
  if (!running()) return;
  const Inside inside;
  explorer().read_plainly(as_number(address), bytes);
}
void write_plainly(void* address, size_t bytes) {
  if (!running()) return;
  const Inside inside;
  explorer().write_plainly(as_number(address), bytes);
}

}  // namespace pinrail::model
