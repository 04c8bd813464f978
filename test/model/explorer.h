// SPDX-License-Identifier: BSD-3-Clause
// explorer.h - runs a few small threads under every interleaving that a weak machine such as Arm's allows, and with
// them all that x86 does, and looks for one that goes wrong.
//
// The code under test is compiled with the compiler's calls for ThreadSanitizer, and compiler_calls.cc answers them
// instead of that library: each atomic access comes here. The threads are coroutines of one real thread; the explorer
// says whose turn it is.
//
// A store goes into its thread's store buffer; that it becomes visible is a turn of its own (explorer/X5). Loads see
// the own buffer first. An unlock needs the own buffer empty. What is visited: every turn in every state, depth first.
// A state is the memory, the buffers, the locks, and of each thread its stack and registers; 64-bit hashes stand for
// states. Executions that come to a known one stop, and the next one begins at the last turn that can be taken
// otherwise: the words that changed since are changed back, and the threads get the stacks and registers that they had
// there.
//
// explorer/X3  An access that no other thread can see is no turn: to a word that no other thread touches, or to one
//     that no other thread writes. Which words these are is found out: an execution that proves it wrong ends and does
//     not count, and when all others were visited, a round with what is known now begins. Before the first round come
//     rehearsals, whose turns are drawn.
// explorer/X4  Plain accesses are no turns: the locks and the atomics must order them. They do belong to the state.
// explorer/X5  The machine is Arm's but for loads: stores of a buffer become visible in any order, but those to one
//     word in theirs, and one with release only after all that were made before it. A read-modify-write reads the
//     memory and takes the word; its store goes into the buffer, and no other thread modifies the word until that is
//     visible. So without release it holds nothing back, and loads may be done before its store is seen. A seq_cst load
//     waits for the own seq_cst stores. To lock needs no empty buffer. Loads are done in their order: an acquire load
//     asks for that, and relaxed ones are not what is explored here.
// explorer/X6  Every hundredth state is reached once more, by the same turns from the beginning. If its memory differs,
//     something escapes the model, for instance a function of the C library that changes memory and is not wrapped.
#ifndef PINRAIL_TEST_MODEL_EXPLORER_H
#define PINRAIL_TEST_MODEL_EXPLORER_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace pinrail::model {

// Memory is as it was when explore() was called, each time that the threads start, and afterwards.
struct Scenario {
  std::vector<std::function<void()>> threads;
  std::function<void()> at_end;  // when all have ended and all stores are visible
};

struct Outcome {
  bool complete = false;  // every state was visited
  uint64_t states = 0;
  uint64_t paths = 0;    // executions that came to their end
  uint64_t replays = 0;  // executions, also those that stopped at a known state
  std::string violation;
  std::vector<std::string> trace;  // the execution that went wrong
};

Outcome explore(const Scenario& scenario);

// In a thread or at_end: the execution went wrong.
void require(bool condition, const char* what);

// In a thread: time passes, and others may do something.
void pause();

// What an address is called in traces, from now on.
void call(const void* address, const std::string& name);

// ---- What the code under test does; outside of explore() it just happens.

bool running();  // whether a thread of a scenario is running now
// 64 bytes that belong to the running thread, zero at first: what stands for thread-local memory.
void* own_memory();
// What an access asks for beyond its own value.
enum Order : uint8_t { kPlain = 0, kRelease = 1, kSequential = 2 };
uint64_t load(const void* address, unsigned size, unsigned order);
void store(void* address, unsigned size, uint64_t value, unsigned order);
// Says what the word becomes; false: it stays as it is.
using Change = std::function<bool(uint64_t old, uint64_t* value_out)>;
uint64_t modify(void* address, unsigned size, unsigned order, const Change& change);  // the old value
void lock(void* mutex);
bool try_lock(void* mutex);
void unlock(void* mutex);
void freed(void* memory, size_t bytes);
void read_plainly(const void* address, size_t bytes);
void write_plainly(void* address, size_t bytes);  // before the bytes are written

// A scenario as a test case: every interleaving is right, and it says how many there were. Fails the running test case,
// with the execution that went wrong.
void expect_right(const Scenario& scenario);

}  // namespace pinrail::model

#endif
