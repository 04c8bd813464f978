// SPDX-License-Identifier: BSD-3-Clause
#undef _FORTIFY_SOURCE  // its longjmp refuses to change stacks
#include "test/model/explorer.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include <ucontext.h>

namespace pinrail::model {
namespace {

constexpr size_t kMaxThreads = 5;  // with the one that looks at the end
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kOwnBytes = 64;
constexpr size_t kSampled = 100;
constexpr int kNobody = -1;
constexpr unsigned kRehearsals = 500;
constexpr size_t kPlaces = 10;  // of a store buffer, whose stores may be the next on the weak machine

// What the explorer leaves on a thread's stack would make equal states look different.
__attribute__((noinline)) void scrub() {
  char dead[1024];
  std::memset(dead, 0, sizeof(dead));
  __asm__ volatile("" : : "r"(dead) : "memory");
}

// The explorer itself may share inline functions with the instrumented code: what these do in here is not looked at.
// Stays set where a turn leads to another thread, for that one is in here as well.
bool is_inside = false;
struct Inside {
  Inside() { is_inside = true; }
  ~Inside() {
    scrub();
    is_inside = false;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xFF51AFD7ED558CCDu;
  x ^= x >> 32;
  x *= 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 29);
}

// Eight aligned bytes that the threads touch, or a mutex.
struct Word {
  uint64_t* address;
  uint64_t initial;
  uint64_t share;    // of the hash of the memory
  uint32_t readers;  // a bit for each thread: explorer/X3
  uint32_t writers;
  uint32_t new_readers;  // for the next round
  uint32_t new_writers;
  int owner;  // of a mutex; of another word: the thread that modified it, until that is visible
  bool is_mutex;
  bool is_dirty;
  bool is_freed;
};

struct Store {
  uintptr_t address;
  unsigned size;
  uint64_t value;
  unsigned order;
  bool is_modify;

  uintptr_t word() const { return address & ~uintptr_t{7}; }
};

enum class Op : uint8_t { start, load, ordered_load, store, modify, drain, lock, barrier, done };
const char* const kOpNames[] = {"start", "load", "ordered load", "store", "modify", "drain", "lock", "barrier", "done"};

// How far a thread has come.
struct Progress {
  Op op = Op::start;
  uintptr_t address = 0;  // of op
  uint64_t local = 0;     // hash of all that it knows; 0: not made yet
  char* top = nullptr;    // of its stack, while it waits
  std::vector<Store> buffer;
  uint32_t barrier_waits_for = 0;  // threads whose buffers were not seen empty yet
  jmp_buf at;

  bool is_under_way() const { return op != Op::start && op != Op::done; }
};

struct Thread : Progress {
  jmp_buf start;
  std::unique_ptr<char[]> stack;
  ucontext_t context;

  char* own_memory() const { return stack.get(); }  // the far end, which the stack does not reach
  size_t depth() const { return static_cast<size_t>(stack.get() + kStackBytes - top); }
};

[[noreturn]] void fail_to_repeat();

struct Turn {
  uint64_t possible;  // bit t: thread t goes on; bit kMaxThreads + t * kPlaces + n: its n-th store becomes visible
  unsigned chosen;
};

// A word before it changed.
struct WordChange {
  Word* word;
  uint64_t value, share;
  int owner;
  bool is_freed;
};

// A state and the turns that led to it.
struct Sample {
  std::vector<Turn> path;
  uint64_t memory;
};

// Where an execution stood before a turn: the next one that differs from there on begins here.
struct Snapshot {
  size_t changes = 0, events = 0;
  uint64_t memory = 0;
  std::vector<Progress> threads;
  std::vector<char> stacks;  // of each thread its own memory and, while it is under way, its stack
};

// A line of a trace.
struct Event {
  int thread;
  const char* what;
  uintptr_t address;
  uint64_t value;
};

enum class End : uint8_t { complete, known, wrong };

class Explorer {
 public:
  Outcome explore(const Scenario& scenario, const Bounds& bounds);

  bool running() const { return current_ != kNobody; }
  uint64_t load(uintptr_t address, unsigned size, unsigned order);
  void store(uintptr_t address, unsigned size, uint64_t value, unsigned order);
  uint64_t modify(uintptr_t address, unsigned size, unsigned order, const Change& change);
  void drain() {
    if (!me().buffer.empty()) wait_for_turn(Op::drain, 0);
  }
  void membarrier();
  void pause() { wait_for_turn(Op::load, 0); }
  void lock(uintptr_t mutex);
  bool try_lock(uintptr_t mutex);
  void unlock(uintptr_t mutex);
  void freed(uintptr_t memory, size_t bytes);
  void read_plainly(uintptr_t address, size_t bytes);
  void write_plainly(uintptr_t address, size_t bytes);
  void require(bool condition, const char* what);
  void call(uintptr_t address, const std::string& name) { names_[address] = name; }
  void run_thread(unsigned number);
  void* own_memory() { return me().own_memory(); }

 private:
  void repeat_samples();

  // One execution.
  End execute();
  void start_all();
  void restart();
  void roll_back(size_t changes);
  void save(Snapshot& snapshot) const;
  void restore(const Snapshot& snapshot);
  void begin_round();
  bool next_choice();
  unsigned new_turn(uint64_t possible);
  unsigned drawn_turn(uint64_t possible);
  void find_shared();

  // Turns.
  __attribute__((noinline)) void wait_for_turn(Op op, uintptr_t address);
  __attribute__((noinline)) void take_turns();
  void go_on(unsigned number);
  [[noreturn]] void end_here();
  [[noreturn]] void finish(End end);
  uint64_t possible_turns() const;
  bool can_go_on(unsigned number) const;
  bool can_modify(unsigned number) const;
  bool can_flush(unsigned number, size_t place) const;
  bool is_weak() const { return bounds_.machine == Machine::weak; }
  uint64_t state();
  uint64_t local_state(unsigned number);
  void became_empty(unsigned number);

  // Memory.
  Word& word_at(uintptr_t address);
  void keep(Word& word) { changes_.push_back({&word, *word.address, word.share, word.owner, word.is_freed}); }
  Word& come_to(uintptr_t mutex, Op op);
  void own(Word& mutex, const char* what);
  void put(uintptr_t address, unsigned size, uint64_t value);
  void refresh(Word& word);
  void flush_one(unsigned number, size_t place);
  void see(unsigned number, size_t place);
  uint64_t modify_late(uintptr_t address, unsigned size, unsigned order, const Change& change);
  void flush_unseen(unsigned number);
  void note(Word& word, bool writes);
  uint32_t writers_of(const Word& word) const { return word.writers | (is_rehearsal_ ? word.new_writers : 0); }
  uint32_t readers_of(const Word& word) const { return word.readers | (is_rehearsal_ ? word.new_readers : 0); }
  bool others_write(const Word& word) const { return !is_last() && (writers_of(word) & ~bit(current_)) != 0; }
  bool others_touch(const Word& word, unsigned number) const {
    return number + 1 != count_ && ((readers_of(word) | writers_of(word)) & ~(1u << number)) != 0;
  }
  bool is_private(uintptr_t address) const;
  // at_end runs when no other thread does: its accesses make no turns.
  bool is_last() const { return current_ == static_cast<int>(count_) - 1; }

  static uint32_t bit(int number) { return 1u << static_cast<unsigned>(number); }
  Thread& me() { return threads_[static_cast<size_t>(current_)]; }
  void record(int thread, const char* what, uintptr_t address, uint64_t value) {
    events_.push_back({thread, what, address, value});
  }
  std::vector<std::string> tell() const;

  const Scenario* scenario_ = nullptr;
  Bounds bounds_;
  Thread threads_[kMaxThreads];  // the last one runs at_end
  unsigned count_ = 0;
  int current_ = kNobody;
  jmp_buf main_;
  ucontext_t main_context_;

  std::unordered_map<uintptr_t, Word> words_;
  std::vector<WordChange> changes_;  // of this execution
  std::vector<Word*> dirty_;         // written plainly: the new values are in memory by the next turn
  uint64_t memory_ = 0;              // hash of all that differs from the beginning

  std::vector<Turn> path_;
  std::vector<Snapshot> snapshots_;   // one for each turn of the path that may be taken otherwise
  std::vector<Sample> samples_;       // of this round
  const Sample* repeated_ = nullptr;  // the one that is compared, explorer/X6
  size_t depth_ = 0;
  std::unordered_set<uint64_t> known_;
  uint32_t barrier_callers_ = 0;  // threads that call membarrier
  uint32_t new_barrier_callers_ = 0;
  // explorer/X3
  bool is_rehearsal_ = false;
  bool is_last_round_ = true;
  uint64_t drawn_ = 0;
  End end_ = End::complete;
  std::string violation_;
  std::vector<Event> events_;
  std::map<uintptr_t, std::string> names_;
};

// Made on first use: the code under test is instrumented in its static constructors too.
bool is_made = false;
Explorer& explorer() {
  static Explorer made;
  is_made = true;
  return made;
}

// ---- Threads

void enter_thread(unsigned number) { explorer().run_thread(number); }

// Each start of the thread comes back to the setjmp here: the frame stays.
void Explorer::run_thread(unsigned number) {
  if (_setjmp(threads_[number].start) == 0) swapcontext(&threads_[number].context, &main_context_);
  is_inside = false;
  if (!is_last()) {
    scenario_->threads[static_cast<size_t>(current_)]();
  } else if (scenario_->at_end) {
    scenario_->at_end();
  }
  const Inside inside;
  wait_for_turn(Op::done, 0);
  std::abort();
}

void Explorer::start_all() {
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    thread.stack.reset(new char[kStackBytes]());
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, reinterpret_cast<void (*)()>(enter_thread), 1, i);
    swapcontext(&main_context_, &thread.context);
  }
}

void Explorer::finish(End end) {
  end_ = end;
  _longjmp(main_, 1);
}

void Explorer::go_on(unsigned number) {
  if (static_cast<int>(number) == current_) return;
  current_ = static_cast<int>(number);
  _longjmp(threads_[number].op == Op::start ? threads_[number].start : threads_[number].at, 1);
}

// ---- Turns

// A store of its own to the word comes first, and so does another thread's that has taken it.
bool Explorer::can_modify(unsigned number) const {
  const Thread& thread = threads_[number];
  const uintptr_t word = thread.address & ~uintptr_t{7};
  for (const Store& store : thread.buffer) {
    if (store.word() == word) return false;
  }
  return words_.find(word)->second.owner == kNobody;
}

bool Explorer::can_go_on(unsigned number) const {
  const Thread& thread = threads_[number];
  switch (thread.op) {
    case Op::start:
    case Op::load:
    case Op::store: return true;
    case Op::ordered_load: {
      for (const Store& store : thread.buffer) {
        if ((store.order & kSequential) != 0) return false;
      }
      return true;
    }
    case Op::modify: return is_weak() ? can_modify(number) : thread.buffer.empty();
    case Op::drain: return thread.buffer.empty();
    case Op::lock: return (is_weak() || thread.buffer.empty()) && words_.find(thread.address)->second.owner == kNobody;
    case Op::barrier: return thread.barrier_waits_for == 0;
    case Op::done: break;
  }
  return false;
}

bool Explorer::can_flush(unsigned number, size_t place) const {
  if (!is_weak()) return place == 0;
  const std::vector<Store>& buffer = threads_[number].buffer;
  const Store& store = buffer[place];
  if ((store.order & kRelease) != 0 && place != 0) return false;
  for (size_t i = 0; i < place; ++i) {
    if (buffer[i].word() == store.word()) return false;
  }
  // Of a word that another thread has taken: its exclusive store would fail, and it would read again.
  const int owner = words_.find(store.word())->second.owner;
  return owner == kNobody || owner == static_cast<int>(number);
}

uint64_t Explorer::possible_turns() const {
  uint64_t turns = 0;
  bool others_ended = true;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = threads_[i];
    if ((i + 1 < count_ || others_ended) && can_go_on(i)) turns |= uint64_t{1} << i;
    for (size_t place = 0; place < thread.buffer.size() && place < kPlaces; ++place) {
      if (can_flush(i, place)) turns |= uint64_t{1} << (kMaxThreads + i * kPlaces + place);
    }
    others_ended = others_ended && thread.op == Op::done && thread.buffer.empty();
  }
  return turns;
}

uint64_t mix_bytes(uint64_t hash, const void* bytes, size_t count) {
  const auto* at = static_cast<const char*>(bytes);
  for (; count >= sizeof(uint64_t); at += sizeof(uint64_t), count -= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    hash = (hash ^ word) * 0x9FB21C651E98DF25u;
    hash ^= hash >> 35;
  }
  return hash;
}

// A waiting thread goes on from its registers and its stack: what is there and in memory is all that it knows.
uint64_t Explorer::local_state(unsigned number) {
  Thread& thread = threads_[number];
  if (thread.op == Op::start || thread.op == Op::done) return static_cast<uint64_t>(thread.op);
  if (thread.local == 0) {
    thread.local = mix_bytes(1, &thread.at, sizeof(thread.at));
    const char* const end = thread.stack.get() + kStackBytes;
    thread.local = mix_bytes(thread.local, thread.top, static_cast<size_t>(end - thread.top));
    thread.local = mix_bytes(thread.local, thread.own_memory(), kOwnBytes);
    thread.local = mix(thread.local, thread.address);
  }
  return thread.local;
}

uint64_t Explorer::state() {
  for (Word* word : dirty_) {
    word->is_dirty = false;
    refresh(*word);
  }
  dirty_.clear();
  uint64_t hash = memory_;
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = threads_[i];
    hash = mix(hash, local_state(i));
    hash = mix(hash, static_cast<uint64_t>(thread.op) | uint64_t{thread.barrier_waits_for} << 8);
    for (const Store& store : thread.buffer)
      hash =
          mix(mix(hash, store.address ^ (uint64_t{store.order} | uint64_t{store.is_modify} << 2) << 56), store.value);
  }
  return hash;
}

void Explorer::wait_for_turn(Op op, uintptr_t address) {
  me().op = op;
  me().address = address;
  me().local = 0;
  if (_setjmp(me().at) == 0) take_turns();
}

// Chooses until a thread is to go on, and goes there. Comes back when it is the calling thread's turn.
void Explorer::take_turns() {
  if (current_ != kNobody) me().top = static_cast<char*>(__builtin_frame_address(0));
  for (;;) {
    const uint64_t possible = possible_turns();
    if (depth_ < path_.size() && path_[depth_].possible != possible) fail_to_repeat();
    if (possible == 0) end_here();
    const unsigned chosen = depth_ < path_.size() ? path_[depth_].chosen
                            : is_rehearsal_       ? drawn_turn(possible)
                                                  : new_turn(possible);
    ++depth_;
    if (chosen < kMaxThreads) return go_on(chosen);
    flush_one((chosen - kMaxThreads) / kPlaces, (chosen - kMaxThreads) % kPlaces);
  }
}

void fail_to_repeat() {
  std::fprintf(stderr, "explorer: the same turns came to another state: something escapes the model\n");
  std::abort();
}

// No turn is possible.
void Explorer::end_here() {
  for (unsigned i = 0; i < count_; ++i) {
    // What two have taken and both store to: one of them would have read again, which is another execution.
    if (is_weak() && !threads_[i].buffer.empty()) finish(End::known);
  }
  for (unsigned i = 0; i < count_; ++i) {
    if (threads_[i].op != Op::done) require(false, "a deadlock");
  }
  finish(End::complete);
}

// Of a state that was not visited yet: any other ends the execution.
unsigned Explorer::new_turn(uint64_t possible) {
  const uint64_t now = state();
  if (repeated_ != nullptr) {
    if (memory_ != repeated_->memory) fail_to_repeat();
    finish(End::known);
  }
  if (!known_.insert(now).second) finish(End::known);
  if (known_.size() % kSampled == 0) samples_.push_back({path_, memory_});
  require(path_.size() < bounds_.turns, "an execution without an end");
  const auto chosen = static_cast<unsigned>(__builtin_ctzll(possible));
  path_.push_back({possible, chosen});
  if (snapshots_.size() < path_.size()) snapshots_.resize(path_.size());
  if ((possible & (possible - 1)) != 0) save(snapshots_[path_.size() - 1]);
  return chosen;
}

// Of a rehearsal.
unsigned Explorer::drawn_turn(uint64_t possible) {
  if (depth_ == bounds_.turns) finish(End::known);
  drawn_ = mix(drawn_, possible);
  for (uint64_t skipped = drawn_ % static_cast<unsigned>(__builtin_popcountll(possible)); skipped != 0; --skipped) {
    possible &= possible - 1;
  }
  return static_cast<unsigned>(__builtin_ctzll(possible));
}

// The last turn that can be taken otherwise. False if there is none.
bool Explorer::next_choice() {
  for (; !path_.empty(); path_.pop_back()) {
    Turn& turn = path_.back();
    const uint64_t later = turn.possible & ~((uint64_t{2} << turn.chosen) - 1);
    if (later == 0) continue;
    turn.chosen = static_cast<unsigned>(__builtin_ctzll(later));
    return true;
  }
  return false;
}

// The words as they were when so many had changed.
void Explorer::roll_back(size_t changes) {
  for (; changes_.size() > changes; changes_.pop_back()) {
    const WordChange& change = changes_.back();
    Word& word = *change.word;
    *word.address = change.value;
    word.share = change.share;
    word.owner = change.owner;
    word.is_freed = change.is_freed;
    word.is_dirty = false;
  }
  dirty_.clear();
}

void Explorer::restart() {
  roll_back(0);
  memory_ = 0;
  depth_ = 0;
  events_.clear();
  for (unsigned i = 0; i < count_; ++i) {
    static_cast<Progress&>(threads_[i]) = {};
    std::memset(threads_[i].own_memory(), 0, kOwnBytes);
  }
}

// Right after state(): no word is dirty.
void Explorer::save(Snapshot& snapshot) const {
  snapshot.changes = changes_.size();
  snapshot.events = events_.size();
  snapshot.memory = memory_;
  snapshot.threads.resize(count_);
  snapshot.stacks.clear();
  for (unsigned i = 0; i < count_; ++i) {
    const Thread& thread = threads_[i];
    snapshot.threads[i] = thread;
    const auto append = [&](const char* from, size_t bytes) {
      snapshot.stacks.insert(snapshot.stacks.end(), from, from + bytes);
    };
    append(thread.own_memory(), kOwnBytes);
    if (thread.is_under_way()) append(thread.top, thread.depth());
  }
}

// At the last turn of the path.
void Explorer::restore(const Snapshot& snapshot) {
  roll_back(snapshot.changes);
  memory_ = snapshot.memory;
  depth_ = path_.size() - 1;
  events_.resize(snapshot.events);
  const char* from = snapshot.stacks.data();
  for (unsigned i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    static_cast<Progress&>(thread) = snapshot.threads[i];
    const auto fetch = [&](char* to, size_t bytes) {
      std::memcpy(to, from, bytes);
      from += bytes;
    };
    fetch(thread.own_memory(), kOwnBytes);
    if (thread.is_under_way()) fetch(thread.top, thread.depth());
  }
}

// Goes on from where restart() or restore() left it.
End Explorer::execute() {
  if (_setjmp(main_) == 0) {
    current_ = kNobody;
    is_inside = true;
    take_turns();
  }
  current_ = kNobody;
  return end_;
}

// explorer/X6
void Explorer::repeat_samples() {
  for (const Sample& sample : samples_) {
    restart();
    path_ = sample.path;
    repeated_ = &sample;
    execute();
  }
  repeated_ = nullptr;
}

Outcome Explorer::explore(const Scenario& scenario, const Bounds& bounds) {
  Outcome outcome;
  scenario_ = &scenario;
  events_.reserve(4 * bounds.turns);
  bounds_ = bounds;
  count_ = static_cast<unsigned>(scenario.threads.size()) + 1;
  words_.clear();
  changes_.clear();
  path_.clear();
  known_.clear();
  violation_.clear();
  barrier_callers_ = new_barrier_callers_ = 0;
  drawn_ = 1;
  start_all();
  for (unsigned i = 0; i < kRehearsals; ++i) {
    begin_round();
    is_rehearsal_ = true;
    execute();
  }
  begin_round();
  for (;;) {
    is_rehearsal_ = false;
    const End end = execute();
    ++outcome.replays;
    if (end == End::wrong) break;
    if (end == End::complete) ++outcome.paths;
    if (known_.size() > bounds_.states) break;
    if (next_choice()) {
      restore(snapshots_[path_.size() - 1]);
      continue;
    }
    if (!is_last_round_) {
      begin_round();
      outcome.paths = 0;
      continue;
    }
    outcome.complete = true;
    break;
  }
  if (outcome.complete) repeat_samples();
  outcome.states = known_.size();
  outcome.violation = violation_;
  if (!violation_.empty()) outcome.trace = tell();
  restart();
  scenario_ = nullptr;
  return outcome;
}

void Explorer::require(bool condition, const char* what) {
  if (condition || scenario_ == nullptr) return;
  if (is_rehearsal_) finish(End::known);
  violation_ = what;
  finish(End::wrong);
}

// ---- Memory

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
  if (writers != 0 && (all & (all - 1)) != 0) {
    find_shared();
  } else {
    mask |= bit(current_);
  }
}

// The execution is not what the round would have made of it; on x86 it is a possible one all the same. On the weak
// machine a store may have overtaken what it must not.
void Explorer::find_shared() {
  is_last_round_ = false;
  is_rehearsal_ = true;
  if (is_weak()) finish(End::known);
}

void Explorer::begin_round() {
  for (auto& [address, word] : words_) {
    word.readers |= word.new_readers;
    word.writers |= word.new_writers;
  }
  barrier_callers_ |= new_barrier_callers_;
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

void Explorer::became_empty(unsigned number) {
  for (unsigned i = 0; i < count_; ++i) threads_[i].barrier_waits_for &= ~(1u << number);
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
    } else if (is_weak()) {
      ++place;
    } else {
      break;
    }
  }
  if (buffer.empty()) became_empty(number);
}

uint64_t Explorer::load(uintptr_t address, unsigned size, unsigned order) {
  Word& word = word_at(address);
  note(word, false);
  const bool is_ordered = is_weak() && (order & kSequential) != 0;
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
  // A turn, for a membarrier waits for the stores that were made before it, and for no later ones.
  const uint32_t callers = barrier_callers_ | (is_rehearsal_ ? new_barrier_callers_ : 0);
  const bool matters = (callers & ~bit(current_)) != 0 && !is_last();
  if (matters && others_touch(word, static_cast<unsigned>(current_))) wait_for_turn(Op::store, address);
  record(current_, "store", address, value);
  me().buffer.push_back({address, size, value, order, false});
  flush_unseen(static_cast<unsigned>(current_));
}

// explorer/X5
uint64_t Explorer::modify_late(uintptr_t address, unsigned size, unsigned order, const Change& change) {
  wait_for_turn(Op::modify, address);
  uint64_t old = 0, value = 0;
  std::memcpy(&old, reinterpret_cast<const void*>(address), size);
  const bool changes = change(old, &value);
  record(current_, changes ? "modify" : "compare, unequal", address, changes ? value : old);
  if (!changes) return old;
  Word& word = word_at(address);
  keep(word);
  word.owner = current_;
  me().buffer.push_back({address, size, value, order, true});
  flush_unseen(static_cast<unsigned>(current_));
  return old;
}

uint64_t Explorer::modify(uintptr_t address, unsigned size, unsigned order, const Change& change) {
  Word& word = word_at(address);
  note(word, true);
  const bool is_shared = others_touch(word, static_cast<unsigned>(current_));
  if (is_weak() && (is_shared || (order & kSequential) != 0)) return modify_late(address, size, order, change);
  if (is_shared) {
    wait_for_turn(Op::modify, address);
  } else if (!is_weak()) {
    drain();
  }
  uint64_t old = 0, value = 0;
  std::memcpy(&old, reinterpret_cast<const void*>(address), size);
  const bool changes = change(old, &value);
  if (changes) put(address, size, value);
  record(current_, changes ? "modify" : "compare, unequal", address, changes ? value : old);
  return old;
}

// Its own buffer first: a membarrier is a full barrier for its caller.
void Explorer::membarrier() {
  if (!is_last() && (barrier_callers_ & bit(current_)) == 0) {
    new_barrier_callers_ |= bit(current_);
    find_shared();
  }
  drain();
  pause();
  for (unsigned i = 0; i < count_; ++i) {
    if (!threads_[i].buffer.empty()) me().barrier_waits_for |= 1u << i;
  }
  record(current_, "membarrier begins", 0, me().barrier_waits_for);
  if (me().barrier_waits_for != 0) wait_for_turn(Op::barrier, 0);
  record(current_, "membarrier ends", 0, 0);
}

// A turn, if other threads touch the mutex.
Word& Explorer::come_to(uintptr_t mutex, Op op) {
  Word& word = word_at(mutex);
  word.is_mutex = true;
  note(word, true);
  if (others_touch(word, static_cast<unsigned>(current_))) {
    wait_for_turn(op, mutex & ~uintptr_t{7});
  } else if (!is_weak()) {
    drain();
  }
  return word;
}

void Explorer::lock(uintptr_t mutex) {
  Word& word = come_to(mutex, Op::lock);
  require(word.owner == kNobody, "a lock was taken twice");
  own(word, "lock");
}

// It looks once, and does not wait until the mutex is free.
bool Explorer::try_lock(uintptr_t mutex) {
  Word& word = come_to(mutex, is_weak() ? Op::load : Op::drain);
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

// ---- Traces

std::vector<std::string> Explorer::tell() const {
  std::vector<std::string> lines;
  for (const Event& event : events_) {
    const auto name = names_.find(event.address);
    char text[160], where[32];
    std::snprintf(where, sizeof(where), "%#zx", event.address);
    std::snprintf(text, sizeof(text), "thread %d: %-18s %-24s %#llx", event.thread, event.what,
                  name != names_.end() ? name->second.c_str() : where, static_cast<unsigned long long>(event.value));
    lines.emplace_back(text);
  }
  for (unsigned i = 0; i < count_; ++i) {
    lines.push_back("thread " + std::to_string(i) + " stands at: " + kOpNames[static_cast<size_t>(threads_[i].op)]);
  }
  return lines;
}

uint64_t native_load(const void* address, unsigned size) {
  uint64_t value = 0;
  std::memcpy(&value, address, size);
  return value;
}

uintptr_t as_number(const void* address) { return reinterpret_cast<uintptr_t>(address); }

}  // namespace

Bounds usual_bounds() {
  const char* const machine = std::getenv("PINRAIL_MODEL_MACHINE");
  Bounds bounds;
  if (machine != nullptr && std::strcmp(machine, "weak") == 0) bounds.machine = Machine::weak;
  return bounds;
}

Outcome explore(const Scenario& scenario, const Bounds& bounds) { return explorer().explore(scenario, bounds); }

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

void fence() {
  if (!running()) return;
  const Inside inside;
  explorer().drain();
}
void membarrier() {
  const Inside inside;
  explorer().membarrier();
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
