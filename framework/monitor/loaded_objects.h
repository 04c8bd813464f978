// SPDX-License-Identifier: BSD-3-Clause
// loaded_objects.h - the functions that the process's loaded objects define, read from their symbol tables.
//
// dlsym() takes the loader's lock, under which constructors run. These functions do not take it, so any thread may
// call them. API context; before_fork() and after_fork() run in handlers of pthread_atfork.
//
// dl_iterate_phdr() holds the lock of the loader's list of objects, and glibc does not reset this lock in a forked
// child. A child that is forked while another thread holds it waits for ever in its first dlopen() or
// dl_iterate_phdr(). So no thread may fork during such a call, unless it is made in init.
#ifndef PINRAIL_FRAMEWORK_MONITOR_LOADED_OBJECTS_H
#define PINRAIL_FRAMEWORK_MONITOR_LOADED_OBJECTS_H

#include <link.h>

#include <cstdint>
#include <initializer_list>

#include "base/core/compiler.h"

namespace pinrail::monitor {

// One object's dynamic symbols, notes and code; valid inside the visit.
class LoadedObject {
 public:
  explicit LoadedObject(const dl_phdr_info& info);

  const char* path() const { return path_; }
  uintptr_t base() const { return base_; }
  bool holds(uintptr_t address) const { return address >= begin_ && address < end_; }
  // The address of a function that the object defines and exports; 0 if it does not.
  uintptr_t function(const char* name) const;
  // Whether it has a note of Go's linker.
  bool has_note_of_go() const;
  // Whether its code makes one of these system calls itself: the number is loaded just before the instruction. False
  // also if it has more than kMostCode bytes of code, which are not read.
  static constexpr size_t kMostCode = size_t{32} << 20;
  bool makes_call(std::initializer_list<int> numbers) const;

 private:
  const ElfW(Sym) * find(const char* name) const;
  const ElfW(Sym) * find_by_hash(const char* name) const;
  bool is_called(const ElfW(Sym) & symbol, const char* name) const;

  template <typename Visit>
  bool any_segment(uint32_t type, Visit visit) const;

  const dl_phdr_info& info_;
  const char* path_;
  uintptr_t base_, begin_ = UINTPTR_MAX, end_ = 0;
  const ElfW(Sym) * symbols_ = nullptr;
  const char* names_ = nullptr;
  const uint32_t* gnu_hash_ = nullptr;
  const uint32_t* hash_ = nullptr;
};

// Calls visit(object) for each loaded object until it returns false. No object is unloaded meanwhile. visit must not
// take a lock of the loader.
template <typename Visit>
void for_each_object(Visit visit) {
  dl_iterate_phdr([](dl_phdr_info* info, size_t,
                     void* arg) -> int { return (*static_cast<Visit*>(arg))(LoadedObject(*info)) ? 0 : 1; },
                  &visit);
}

// While an object of this class exists and is true, no other thread forks.
class LoaderCall : NonCopyable {
 public:
  LoaderCall();
  ~LoaderCall();
  // False: another thread makes such a call, or forks. The caller leaves its call out.
  explicit operator bool() const { return entered_; }

 private:
  bool entered_;
};

// Wait until no thread is in such a call and keep it so, and end that. They do nothing if the calling thread is in one
// itself: a signal handler that interrupted it may fork, and the child's only thread goes on in the call. A second
// after_fork() does nothing.
void before_fork();
void after_fork();

// In a forked child; takes no lock.
void fork_reinit_loader_calls();

}  // namespace pinrail::monitor

#endif
