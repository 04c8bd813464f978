// SPDX-License-Identifier: BSD-3-Clause
// Starts and ends the thread whose end the kernel marks. API context.
#include "base/slots/end_mark.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <new>

#include "base/sync/futex_lock.h"

namespace pinrail::slots {
namespace {

constexpr size_t kStack = size_t{256} * 1024;

void sleep_while(std::atomic<uint32_t>* word, uint32_t value) {
  while (word->load() == value) futex_call(word, FUTEX_WAIT, value, nullptr);
}

// Asks the kernel directly: a function of the C library may be replaced by the program.
long this_process() { return syscall(SYS_getpid); }

}  // namespace

bool EndMark::start(std::atomic<uint32_t>* word) {
  auto* const watch = new (std::nothrow) Watch(word);
  if (watch == nullptr || !watch->thread.start("pinrail-end", run_entry, watch, kStack)) {
    delete watch;
    return false;
  }
  watch_ = watch;
  process_ = this_process();
  sleep_while(word, 0);
  return true;
}

// Ends the thread without marking the word. Does nothing in a process other than the one that called start().
void EndMark::stop() {
  if (watch_ == nullptr || process_ != this_process()) return;
  watch_->stopped.store(1);
  futex_call(&watch_->stopped, FUTEX_WAKE, 1, nullptr);
  watch_->thread.join();
  delete watch_;
  watch_ = nullptr;
}

// The kernel marks a word on the robust list only if the word contains the thread's id.
void EndMark::run_entry(void* pointer) {
  auto* const watch = static_cast<Watch*>(pointer);
  watch->entry.next = &watch->list.list;
  watch->list.list.next = &watch->entry;
  watch->list.futex_offset = reinterpret_cast<char*>(watch->word) - reinterpret_cast<char*>(&watch->entry);
  watch->word->store(static_cast<uint32_t>(syscall(SYS_gettid)));
  syscall(SYS_set_robust_list, &watch->list, sizeof(watch->list));
  futex_call(watch->word, FUTEX_WAKE, 1, nullptr);
  sleep_while(&watch->stopped, 0);
  syscall(SYS_set_robust_list, nullptr, sizeof(watch->list));
}

}  // namespace pinrail::slots
