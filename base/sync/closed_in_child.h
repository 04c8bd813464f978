// SPDX-License-Identifier: BSD-3-Clause
// closed_in_child.h - a list of descriptors that are closed in a forked child before fork() returns, so that the child
// keeps nothing of its parent's alive.
//
// Owns     a note for each descriptor; notes are type-stable until the process ends. The descriptors belong to the
//          caller of note().
// Threads  All functions may run together. Each shared object has a list of its own.
// Context  start-up or API, except in_child(), which the C library calls in a forked child.
//
// closed_in_child/D1  In a child of fork() every noted descriptor is closed before fork() returns, and close_noted()
//     then does nothing. Children of vfork(), and of clone() without fork handlers, keep the descriptor until they call
//     execve(), if it is close-on-exec.
// closed_in_child/D2  If another thread forks after the descriptor was opened and before it was noted, the child may
//     inherit it. note() then returns NULL, and the owner must open another one.
#ifndef PINRAIL_BASE_SYNC_CLOSED_IN_CHILD_H
#define PINRAIL_BASE_SYNC_CLOSED_IN_CHILD_H

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>

namespace pinrail::closed_in_child {

// Returns whether the number still names the owner's file. Programs close descriptors that they did not open, and the
// number may have been given to another file since. It runs in the forked child, too.
using IsOurs = bool (*)(int file);

struct Note {
  std::atomic<int> file{-1};             // -1: the note is free
  std::atomic<IsOurs> is_ours{nullptr};  // NULL: it is the owner's if device and inode are these
  std::atomic<uint64_t> device{0}, inode{0};
  Note* next = nullptr;
};

// Whether the number still names the file that was noted.
inline bool is_noted_file(const Note& note, int file) {
  const IsOurs is_ours = note.is_ours.load();
  if (is_ours != nullptr) return is_ours(file);
  struct stat about {};
  return fstat(file, &about) == 0 && about.st_dev == note.device.load() && about.st_ino == note.inode.load();
}

// The first notes lie in the shared object itself, so a component that is unloaded leaves no allocation behind.
constexpr size_t kFirstNotes = 64;
inline Note first_notes[kFirstNotes];
inline std::atomic<Note*> more_notes{nullptr};  // notes are added and never removed
inline std::atomic<uint64_t> forks{0};
inline pthread_once_t once = PTHREAD_ONCE_INIT;

// Returns the first note for which is_it(note) is true, or NULL.
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

// The handlers of pthread_atfork(): the first runs in the parent before the fork, the second in the child.
inline void before_fork() { forks.fetch_add(1); }
inline void in_child() {
  find_note([](Note* note) {
    const int file = note->file.exchange(-1);
    if (file < 0) return false;
    if (is_noted_file(*note, file)) close(file);
    return false;
  });
}
inline void watch_forks() { pthread_atfork(before_fork, nullptr, in_child); }

// Returns how often the process has forked since the first call. The owner calls it before it opens the descriptor.
inline uint64_t count_forks() {
  pthread_once(&once, watch_forks);
  return forks.load();
}

// In Note::file: the note is taken, but no descriptor is noted yet.
constexpr int kTaken = -2;

// Returns a note in which no descriptor stands yet, or NULL if there is no memory.
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

// Notes the descriptor. is_ours: NULL: the file is known by its device and inode. forks_before: the result of
// count_forks() before the descriptor was opened. Returns NULL if there is no memory, the descriptor is not open, or
// the process has forked since (closed_in_child/D2).
inline Note* note(int file, IsOurs is_ours, uint64_t forks_before) {
  struct stat about {};
  if (fstat(file, &about) != 0) return nullptr;
  Note* const noted = take_note();
  if (noted == nullptr) return nullptr;
  noted->device.store(about.st_dev);
  noted->inode.store(about.st_ino);
  noted->is_ours.store(is_ours);
  noted->file.store(file);
  if (forks.load() == forks_before) return noted;
  noted->file.store(-1);
  return nullptr;
}

// Removes the descriptor from the list; the owner closes it. False in a child, where it is closed already.
inline bool forget(Note* note) { return note != nullptr && note->file.exchange(-1) >= 0; }

// Removes the descriptor from the list and closes it, unless the number names another file by now. Does nothing in a
// child, where it is closed already.
inline void close_noted(Note* note) {
  const int file = note != nullptr ? note->file.load() : -1;
  const bool is_ours = file >= 0 && is_noted_file(*note, file);
  if (forget(note) && is_ours) close(file);
}

}  // namespace pinrail::closed_in_child

#endif
