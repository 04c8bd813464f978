// SPDX-License-Identifier: BSD-3-Clause
// own_file.h - a file descriptor of Pinrail's own, which is known by its file and not by its number.
//
// Programs close descriptors that they did not open, as daemons and sandboxes do, and the number is given to the next
// file that they open. So the number is asked for before each use, and is -1 when it names another file: the use then
// fails with EBADF and touches no file of the program's. Between the two the program may still close it; that is as
// short as it can be.
//
// In a forked child the descriptor is closed before fork() returns, so that the child keeps nothing of its parent's
// alive. A list of all such descriptors serves both.
//
// A file with an inode of its own is known by that (memory, sockets, dmabufs). Rings, userfaultfds and devices share
// one. They get a mark: the number of the signal that would announce input (F_SETSIG), which belongs to the open file
// and not to the number. No signal is ever sent, because the file has no owner and is not asynchronous. Files of /proc
// get one because they are asked for at each question to the kernel, and a mark is read in half of the time.
//
// Owns     the descriptor, from take() to close() or release(). A note for each; notes are type-stable until the
//          process ends.
// Threads  All functions may run together, but take() and open() of one object exclude all of its others. Each shared
//          object has a list of its own.
// Context  start-up or API, except in_child(), which the C library calls in a forked child.
// Hook     number(), number_unchecked(), mark(), and what they call: number_of() and is_noted_file().
//
// own_file/D1  In a child of fork() every descriptor is closed before fork() returns, and close() then does nothing.
//     Children of vfork(), and of clone() without fork handlers, keep it until they call execve(), if it is
//     close-on-exec.
// own_file/D2  If another thread forks after the descriptor was opened and before take(), the child may inherit it.
//     take() then returns false, and the owner must open another one.
// own_file/D3  No number that names another file is returned or closed.
#ifndef PINRAIL_BASE_SYNC_OWN_FILE_H
#define PINRAIL_BASE_SYNC_OWN_FILE_H

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <new>

#include "base/core/calling_thread.h"
#include "base/core/files.h"

namespace pinrail {

// How a file is known. Those with a mark are opened by us, so that no other descriptor of the program's has it.
enum class FileKind : uint8_t { has_inode = 0, ring = 1, userfaultfd = 2, rdma_device = 3, gpu_memory = 4, proc = 5 };

namespace own_file {

struct Note {
  std::atomic<int> file{-1};  // -1: the note is free
  std::atomic<int> mark{0};   // 0: the file is known by its inode
  std::atomic<uint64_t> device{0}, inode{0};
  Note* next = nullptr;
};

// The first notes lie in the shared object itself, so a component that is unloaded leaves no allocation behind.
constexpr size_t kFirstNotes = 64;
inline Note first_notes[kFirstNotes];
inline std::atomic<Note*> more_notes{nullptr};  // notes are added and never removed
inline std::atomic<uint64_t> forks{0};
inline pthread_once_t once = PTHREAD_ONCE_INIT;

// A signal number of the kind, and as far as there are enough of this copy of the library.
inline int mark_of(FileKind kind) {
  constexpr uintptr_t kPage = 4096, kMarksOfKind = 12;
  if (kind == FileKind::has_inode) return 0;
  const auto copy = static_cast<int>(reinterpret_cast<uintptr_t>(first_notes) / kPage % kMarksOfKind);
  return (static_cast<int>(kind) - 1) * static_cast<int>(kMarksOfKind) + 1 + copy;  // 1 to 60
}

inline bool is_noted_file(const Note& note, int file) {
  const int mark = note.mark.load();
  if (mark != 0) return fcntl(file, F_GETSIG) == mark;
  struct stat about {};
  return fstat(file, &about) == 0 && about.st_dev == note.device.load() && about.st_ino == note.inode.load();
}

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
  const NoCancel no_cancel;  // close() is a cancellation point, and fork() is none
  find_note([](Note* note) {
    const int file = note->file.exchange(-1);
    if (file >= 0 && is_noted_file(*note, file)) close(file);
    return false;
  });
}
inline void watch_forks() { pthread_atfork(before_fork, nullptr, in_child); }

// In Note::file. Taken: no descriptor is noted yet. Gone: the number names another file.
constexpr int kTaken = -2, kGone = -3;

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

// The kernel has given the number to another file of ours: what had it before is gone.
inline void forget_former_owner_of(int number) {
  find_note([=](Note* note) {
    int former = number;
    note->file.compare_exchange_strong(former, kGone);
    return false;
  });
}

// Sets the file's mark or reads its inode. False: the descriptor is not open, or the kernel does not permit the mark.
inline bool identify(Note* note, int file, FileKind kind) {
  struct stat about {};
  const int mark = mark_of(kind);
  if (fstat(file, &about) != 0 || (mark != 0 && fcntl(file, F_SETSIG, mark) != 0)) return false;
  note->device.store(about.st_dev);
  note->inode.store(about.st_ino);
  note->mark.store(mark);
  return true;
}

// Returns how often the process has forked since the first call. The owner calls it before it opens a descriptor.
inline uint64_t count_forks() {
  pthread_once(&once, watch_forks);
  return forks.load();
}

}  // namespace own_file

class OwnFile {
 public:
  ~OwnFile() { close(); }

  // Takes over the descriptor. forks_before: the result of count_forks() before it was opened. False: the process has
  // forked since (own_file/D2, EAGAIN), or there is no memory, it is not open, or the kernel does not permit the mark
  // (another errno); the caller still owns it.
  bool take(int number, FileKind kind, uint64_t forks_before) {
    close();
    own_file::Note* const noted = own_file::take_note();
    if (noted == nullptr) {
      errno = ENOMEM;
      return false;
    }
    const bool is_known = own_file::identify(noted, number, kind);
    if (is_known) own_file::forget_former_owner_of(number);
    noted->file.store(is_known ? number : -1);
    if (!is_known) return false;
    if (own_file::forks.load() != forks_before) {
      noted->file.store(-1);
      errno = EAGAIN;
      return false;
    }
    note_.store(noted);
    return true;
  }
  // Opens a file by open(), again if the process forks meanwhile, and takes it over, with a number above those of the
  // standard streams. False, and an errno: open() returned a negative number, or as take().
  template <typename Open>
  bool open(FileKind kind, Open&& open) {
    constexpr int kTries = 1000;
    for (int i = 0; i < kTries; ++i) {
      const uint64_t forks = own_file::count_forks();
      const int number = above_standard(open());
      if (number < 0) return false;
      if (take(number, kind, forks)) return true;
      const int error = errno;
      ::close(number);
      errno = error;
      if (error != EAGAIN) return false;
    }
    return false;
  }

  // Whether there is one, which the program may have closed.
  bool is_taken() const { return note_.load() != nullptr; }
  // Its number. -1: there is none, the number names another file by now (own_file/D3), or this is a forked child.
  int number() const {
    const own_file::Note* const note = note_.load();
    return note != nullptr ? number_of(*note) : -1;
  }
  bool is_open() const { return number() >= 0; }
  // What number() compares. A negative number: there is none.
  int number_unchecked() const {
    const own_file::Note* const note = note_.load();
    return note != nullptr ? note->file.load() : -1;
  }
  int mark() const {
    const own_file::Note* const note = note_.load();
    return note != nullptr ? note->mark.load() : 0;
  }

  // Gives it up without closing it, and returns what number() returns.
  int release() {
    own_file::Note* const note = note_.exchange(nullptr);
    if (note == nullptr) return -1;
    const int file = number_of(*note);
    note->file.store(-1);
    return file;
  }
  // Closes it if it is open.
  void close() {
    const int file = release();
    if (file >= 0) ::close(file);
  }

 private:
  static int number_of(const own_file::Note& note) {
    const int file = note.file.load();
    return file >= 0 && own_file::is_noted_file(note, file) ? file : -1;
  }

  std::atomic<own_file::Note*> note_{nullptr};
};

}  // namespace pinrail

#endif
