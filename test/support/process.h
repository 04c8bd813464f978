// SPDX-License-Identifier: BSD-3-Clause
// process.h - a piece of a test in a forked child, for limits, filters and what may crash; and what the kernel counts
// for this process.
//
// Threads  in_child(): the calling one alone may hold locks that the child needs. The counts: all may run together.
#ifndef PINRAIL_TEST_SUPPORT_PROCESS_H
#define PINRAIL_TEST_SUPPORT_PROCESS_H

#include "config.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pinrail/component.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <set>
#include <string>

namespace pinrail::test {

// What a child says: whatever numbers the test agrees on with itself.
using ChildAnswer = std::array<int64_t, 8>;

// Runs the function in a forked child. False if the child did not answer: it crashed, or took more than a minute.
bool in_child(const std::function<ChildAnswer()>& function, ChildAnswer* answer_out);

// From here on this process may lock and pin no more than that, and has no privilege that lifts the limit. own_user:
// under a user id that no other process has, where pinned bytes are counted by user; for children. False if it could
// not be arranged.
bool limit_locked_memory(size_t bytes, bool own_user);

// For children: from here on the system call fails with that errno.
bool refuse_system_call(long number, int error);

// VmPin counts 2 MiB for 4 KiB inside a transparent hugepage: measure on MADV_NOHUGEPAGE memory (see memory.h).
size_t vm_pin_bytes();  // pinned for devices
size_t vm_lck_bytes();  // locked by mlock
size_t open_descriptors();

// Whether this process may lock or pin that much: by its limit, or by a privilege that lifts it.
bool may_lock(size_t bytes);

}  // namespace pinrail::test

// The descriptor of a component of this build, linked in or from its DSO.
//
// Threads  all functions may run together.

extern "C" const pinrail_component_t* const pinrail_static_components[];

namespace pinrail::test {

// NULL and the reason if this build has none of that name. What is found stays loaded.
inline const pinrail_component_t* component_under_test(const char* framework, const char* name, std::string* why_out) {
  for (const auto* linked = pinrail_static_components; *linked != nullptr; ++linked) {
    if (std::strcmp((*linked)->framework, framework) == 0 && std::strcmp((*linked)->name, name) == 0) return *linked;
  }
  const std::string path = std::string(PINRAIL_TEST_BUILD "/components/.libs") + "/" + framework + "_" + name + ".so";
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  const void* symbol = object == nullptr ? nullptr : dlsym(object, "pinrail_component");
  if (symbol == nullptr) *why_out = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps it per thread
  return static_cast<const pinrail_component_t*>(symbol);
}

// What a daemon or a sandbox does: it closes descriptors that it did not open, and opens files
// of its own, which get the numbers.
//
// Threads  no other thread opens or closes descriptors of the test's meanwhile.

inline std::set<int> open_numbers() {
  std::set<int> numbers;
  for (int number = 0; number < 1024; ++number) {
    if (fcntl(number, F_GETFD) >= 0) numbers.insert(number);
  }
  return numbers;
}

// The numbers of all descriptors that function() opens and leaves open.
template <typename Function>
std::set<int> numbers_opened_by(Function&& function) {
  const std::set<int> before = open_numbers();
  function();
  std::set<int> opened;
  for (const int number : open_numbers()) {
    if (before.count(number) == 0) opened.insert(number);
  }
  return opened;
}

// What /proc calls the file of this descriptor; empty: none is open.
inline std::string file_behind(int descriptor) {
  char name[256];
  const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), name, sizeof(name));
  return length < 0 ? std::string() : std::string(name, static_cast<size_t>(length));
}
// The lowest descriptor from `first` on whose file is called so, in part; -1: there is none.
inline int descriptor_of(const std::string& part, int first = 3) {
  for (int descriptor = first; descriptor < 1024; ++descriptor) {
    if (file_behind(descriptor).find(part) != std::string::npos) return descriptor;
  }
  return -1;
}

inline int make_memory_file() { return memfd_create("the program's", MFD_CLOEXEC); }

// A pipe of which nothing can be read without waiting for ever. Its other end stays open.
inline int make_silent_pipe() {
  int ends[2] = {-1, -1};
  return pipe2(ends, O_CLOEXEC) == 0 ? ends[0] : -1;
}

// Gives each number to a file of the program's own.
inline bool take_over(const std::set<int>& numbers, int (*make)()) {
  for (const int number : numbers) {
    const int own = make();
    if (own < 0 || dup3(own, number, O_CLOEXEC) != number) return false;
    close(own);
  }
  return true;
}

// Whether the program's files are open still and as they were made: without a byte.
inline bool are_untouched(const std::set<int>& numbers) {
  for (const int number : numbers) {
    struct stat about {};
    if (fstat(number, &about) != 0) return false;
    if (S_ISREG(about.st_mode) && about.st_size != 0) return false;
  }
  return true;
}

}  // namespace pinrail::test

#endif
