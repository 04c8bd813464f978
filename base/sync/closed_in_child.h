// SPDX-License-Identifier: BSD-3-Clause
// closed_in_child.h - descriptors that a forked child gives up at once, so that it keeps nothing of its parent's alive.
//
// Owns     a note for each, type-stable until the process ends; the descriptor is its owner's until it is closed.
// Threads  all functions may run together. Each shared object has notes of its own.
//
// closed_in_child/D1  In a child of fork() what was noted is closed before fork() returns, and close_noted() does
//     nothing. Children of vfork() and of clone() without its handlers keep it until they call execve(), if it is
//     close-on-exec.
// closed_in_child/D2  A descriptor that was opened and noted while another thread forked may be inherited unnoted:
//     note() says so, and the owner opens another one.
#ifndef PINRAIL_BASE_SYNC_CLOSED_IN_CHILD_H
#define PINRAIL_BASE_SYNC_CLOSED_IN_CHILD_H

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace pinrail::closed_in_child {

// Whether the number is still the owner's: programs close what they did not open, and open something else.
using IsOurs = bool (*)(int file);

struct Note {
  std::atomic<int> file{-1};  // -1: the note is free
  std::atomic<IsOurs> is_ours{nullptr};
  Note* next = nullptr;
};

// The first ones lie in the object itself, and so nothing is left of them when a component is unloaded.
constexpr size_t kFirstNotes = 64;
inline Note first_notes[kFirstNotes];
inline std::atomic<Note*> more_notes{nullptr};  // only ever added to
inline std::atomic<uint64_t> forks{0};
inline pthread_once_t once = PTHREAD_ONCE_INIT;

// The first note for which is_it(note) is true; NULL: none.
template <typename IsIt>
Note* find_note(IsIt&& is_it) {
  for (Note& note : first_notes) {
    if (is_it(&note)) return &note;
  }
  for (Note* note = more_notes.load(); note != nullptr; note = note->next) {
    if (is_it(note)) return note;
  }
  return nullptr;
}

inline void before_fork() { forks.fetch_add(1); }
inline void in_child() {
  find_note([](Note* note) {
    const int file = note->file.exchange(-1);
    if (file >= 0 && note->is_ours.load()(file)) close(file);
    return false;
  });
}
inline void watch_forks() { pthread_atfork(before_fork, nullptr, in_child); }

// To be asked before the descriptor is opened.
inline uint64_t count_forks() {
  pthread_once(&once, watch_forks);
  return forks.load();
}

// Taken, and not noted yet.
constexpr int kTaken = -2;

inline Note* take_note() {
  Note* const free_one = find_note([](Note* note) {
    int nothing = -1;
    return note->file.compare_exchange_strong(nothing, kTaken);
  });
  if (free_one != nullptr) return free_one;
  Note* const made = new (std::nothrow) Note;
  if (made == nullptr) return nullptr;
  made->file.store(kTaken);
  made->next = more_notes.load();
  while (!more_notes.compare_exchange_weak(made->next, made)) {
  }
  return made;
}

// forks_before: what count_forks() said before it was opened. NULL: no memory, or closed_in_child/D2.
inline Note* note(int file, IsOurs is_ours, uint64_t forks_before) {
  Note* const noted = take_note();
  if (noted == nullptr) return nullptr;
  noted->is_ours.store(is_ours);
  noted->file.store(file);
  if (forks.load() == forks_before) return noted;
  noted->file.store(-1);
  return nullptr;
}

// The owner is about to close it. False: this is a child, where that was done.
inline bool forget(Note* note) { return note != nullptr && note->file.exchange(-1) >= 0; }

inline void close_noted(Note* note) {
  const int file = note != nullptr ? note->file.exchange(-1) : -1;
  if (file >= 0) close(file);
}

}  // namespace pinrail::closed_in_child

#endif
