// SPDX-License-Identifier: BSD-3-Clause
// explorer_state.h - what the explorer (explorer.h) knows: its threads, the words that they touch, and the turns of an
// execution.
#ifndef PINRAIL_TEST_MODEL_EXPLORER_STATE_H
#define PINRAIL_TEST_MODEL_EXPLORER_STATE_H

#undef _FORTIFY_SOURCE  // its longjmp refuses to change stacks
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>

#include <ucontext.h>

#include "test/model/explorer.h"

namespace pinrail::model {

constexpr size_t kMaxThreads = 5;  // with the one that looks at the end
constexpr size_t kStackBytes = 128 * 1024;
constexpr size_t kOwnBytes = 64;
constexpr size_t kSampled = 100;
constexpr int kNobody = -1;
constexpr unsigned kRehearsals = 500;
constexpr size_t kPlaces = 10;  // of a store buffer, whose stores may be the next
constexpr uint64_t kMostStates = 20'000'000;
constexpr size_t kMostTurns = 3000;  // of one execution

// What the explorer leaves on a thread's stack would make equal states look different.
__attribute__((noinline)) inline void scrub() {
  char dead[1024];
  std::memset(dead, 0, sizeof(dead));
  __asm__ volatile("" : : "r"(dead) : "memory");
}

// The explorer itself may share inline functions with the instrumented code: what these do in here is not looked at.
// Stays set where a turn leads to another thread, for that one is in here as well.
inline bool is_inside = false;
struct Inside {
  Inside() { is_inside = true; }
  ~Inside() {
    scrub();
    is_inside = false;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
};

inline uint64_t mix(uint64_t a, uint64_t b) {
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
  unsigned size;  // 0: it was made, and only orders others
  uint64_t value;
  unsigned order;
  bool is_modify;

  uintptr_t word() const { return address & ~uintptr_t{7}; }
};

enum class Op : uint8_t { start, load, ordered_load, modify, drain, lock, done };
constexpr const char* kOpNames[] = {"start", "load", "ordered load", "modify", "drain", "lock", "done"};

// How far a thread has come.
struct Progress {
  Op op = Op::start;
  uintptr_t address = 0;  // of op
  uint64_t local = 0;     // hash of all that it knows; 0: not made yet
  char* top = nullptr;    // of its stack, while it waits
  std::vector<Store> buffer;
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
  Outcome explore(const Scenario& scenario);

  bool running() const { return current_ != kNobody; }
  uint64_t load(uintptr_t address, unsigned size, unsigned order);
  void store(uintptr_t address, unsigned size, uint64_t value, unsigned order);
  uint64_t modify(uintptr_t address, unsigned size, unsigned order, const Change& change);
  void drain() {
    if (!me().buffer.empty()) wait_for_turn(Op::drain, 0);
  }
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
  [[noreturn]] void find_shared();

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
  uint64_t state();
  uint64_t local_state(unsigned number);

  // Memory.
  Word& word_at(uintptr_t address);
  void keep(Word& word) { changes_.push_back({&word, *word.address, word.share, word.owner, word.is_freed}); }
  Word& come_to(uintptr_t mutex, Op op);
  void own(Word& mutex, const char* what);
  void put(uintptr_t address, unsigned size, uint64_t value);
  void refresh(Word& word);
  void flush_one(unsigned number, size_t place);
  void see(unsigned number, size_t place);
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
inline bool is_made = false;
inline Explorer& explorer() {
  static Explorer made;
  is_made = true;
  return made;
}

}  // namespace pinrail::model

#endif
