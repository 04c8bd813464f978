// SPDX-License-Identifier: BSD-3-Clause
// Executions: the threads, their turns, and the search through all orders of these.
#include "test/model/explorer_state.h"  // first: it undefines a macro of the C library

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "test/model/explorer.h"

namespace pinrail::model {

[[noreturn]] static void fail_to_repeat();

// ---- Threads

static void enter_thread(unsigned number) { explorer().run_thread(number); }

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
    case Op::load: return true;
    case Op::ordered_load: {
      for (const Store& store : thread.buffer) {
        if ((store.order & kSequential) != 0) return false;
      }
      return true;
    }
    case Op::modify: return can_modify(number);
    case Op::drain: return thread.buffer.empty();
    case Op::lock: return words_.find(thread.address)->second.owner == kNobody;
    case Op::done: break;
  }
  return false;
}

bool Explorer::can_flush(unsigned number, size_t place) const {
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

static uint64_t mix_bytes(uint64_t hash, const void* bytes, size_t count) {
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
    hash = mix(hash, static_cast<uint64_t>(thread.op));
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

static void fail_to_repeat() {
  std::fprintf(stderr, "explorer: the same turns came to another state: something escapes the model\n");
  std::abort();
}

// No turn is possible.
void Explorer::end_here() {
  for (unsigned i = 0; i < count_; ++i) {
    // What two have taken and both store to: one of them would have read again, which is another execution.
    if (!threads_[i].buffer.empty()) finish(End::known);
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
  require(path_.size() < kMostTurns, "an execution without an end");
  const auto chosen = static_cast<unsigned>(__builtin_ctzll(possible));
  path_.push_back({possible, chosen});
  if (snapshots_.size() < path_.size()) snapshots_.resize(path_.size());
  if ((possible & (possible - 1)) != 0) save(snapshots_[path_.size() - 1]);
  return chosen;
}

// Of a rehearsal.
unsigned Explorer::drawn_turn(uint64_t possible) {
  if (depth_ == kMostTurns) finish(End::known);
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

Outcome Explorer::explore(const Scenario& scenario) {
  Outcome outcome;
  scenario_ = &scenario;
  events_.reserve(4 * kMostTurns);
  count_ = static_cast<unsigned>(scenario.threads.size()) + 1;
  words_.clear();
  changes_.clear();
  path_.clear();
  known_.clear();
  violation_.clear();
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
    if (known_.size() > kMostStates) break;
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

Outcome explore(const Scenario& scenario) { return explorer().explore(scenario); }

void expect_right(const Scenario& scenario) {
  const Outcome outcome = explore(scenario);
  std::printf("             %llu states, %llu ends, %llu executions\n", static_cast<unsigned long long>(outcome.states),
              static_cast<unsigned long long>(outcome.paths), static_cast<unsigned long long>(outcome.replays));
  std::string trace;
  for (const std::string& line : outcome.trace) trace += "\n  " + line;
  EXPECT_EQ(outcome.violation, "") << trace;
  if (outcome.violation.empty()) {
    EXPECT_TRUE(outcome.complete) << "too many states to visit all of them";
  }
}

}  // namespace pinrail::model

// Main() of the model's programs. They are built without sanitizers whatever the rest is built with, so that a build
// with one of them has nothing new to see here.

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const char* const sanitizers = std::getenv("PINRAIL_SANITIZE");
  if (sanitizers != nullptr && *sanitizers != 0) {
    std::puts("SKIP: the same as in a build without sanitizers");
    return 77;
  }
  return RUN_ALL_TESTS();
}
