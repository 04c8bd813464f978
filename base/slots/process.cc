// SPDX-License-Identifier: BSD-3-Clause
// Identifies this process. API or start-up context.
#include "base/slots/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <new>
#include <string_view>

#include "base/core/calling_thread.h"
#include "base/sync/futex_lock.h"

namespace pinrail::slots {
namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
  return hash ^ hash >> 29;
}

// Tells whether a process is alive. A free may wait for the answer, so this code allocates nothing and uses no stdio.

// The fields of /proc/PID/stat that are used.
struct Stat {
  char state = 0;
  uint64_t threads = 0;
  uint64_t start = 0;
};

// Reads the beginning of the file and returns its length. After an error returns 0; is_gone_out then tells whether
// there is no such process. Otherwise the system did not tell, for example because this process has no descriptor left.
size_t read_file_hook(const char* path, char* text, size_t room, bool* is_gone_out) {
  const NoCancel no_cancel;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t length = file < 0 ? -1 : read(file, text, room);
  *is_gone_out = length < 0 && (errno == ENOENT || errno == ESRCH);
  if (file >= 0) close(file);
  return length > 0 ? static_cast<size_t>(length) : 0;
}

// Parses the fields behind the program's name, which may contain blanks and parentheses. The state is the line's 3rd
// field, the number of threads the 20th, the start the 22nd. False if a field is missing.
bool parse_stat_hook(std::string_view text, Stat* stat_out) {
  size_t at = text.rfind(')');
  for (unsigned field = 3; field <= 22; ++field) {
    at = text.find(' ', at);
    if (at >= text.size() - 1) return false;  // there is none, or nothing behind it
    const char *const begin = text.data() + ++at, *const end = text.data() + text.size();
    if (field == 3) stat_out->state = *begin;
    if (field == 20) std::from_chars(begin, end, stat_out->threads);
    if (field == 22) std::from_chars(begin, end, stat_out->start);
  }
  return text.find(' ', at) != std::string_view::npos;
}

// False: the file could not be read, or there is no such process.
bool read_stat_hook(uint32_t pid, Stat* stat_out, bool* is_gone_out) {
  char path[32] = "/proc/", text[1024];
  std::memcpy(std::to_chars(path + std::strlen(path), std::end(path), pid).ptr, "/stat", sizeof("/stat"));
  return parse_stat_hook({text, read_file_hook(path, text, sizeof(text), is_gone_out)}, stat_out);
}

}  // namespace

// Returns in *start_out when the process started. False: /proc does not have the data.
bool read_start(uint32_t pid, uint64_t* start_out) {
  Stat stat;
  bool is_gone = false;
  if (!read_stat_hook(pid, &stat, &is_gone)) return false;
  *start_out = stat.start;
  return true;
}

// Identifies the calling process. NOT_SUPPORTED: /proc does not have the data.
Status this_process(Process* process_out) {
  const NoCancel no_cancel;
  Process process;
  char boot[64];
  bool is_gone = false;
  struct stat space {};
  process.pid = static_cast<uint32_t>(getpid());
  process.user = geteuid();
  if (!read_start(process.pid, &process.start)) return PINRAIL_ERR_NOT_SUPPORTED;
  const size_t length = read_file_hook("/proc/sys/kernel/random/boot_id", boot, sizeof(boot), &is_gone);
  if (length == 0) return PINRAIL_ERR_NOT_SUPPORTED;
  if (stat("/proc/self/ns/pid", &space) != 0) return PINRAIL_ERR_NOT_SUPPORTED;
  process.machine = mix(mix(1, space.st_ino), space.st_dev);
  for (size_t i = 0; i < length; ++i) process.machine = mix(process.machine, static_cast<uint8_t>(boot[i]));
  *process_out = process;
  return success();
}

// A zombie with more than one thread is a process whose first thread has ended before the others. A process of which
// the system does not tell counts as alive: its memory may be in use (R9).
bool is_alive_hook(uint32_t pid, uint64_t start) {
  Stat stat;
  bool is_gone = false;
  if (!read_stat_hook(pid, &stat, &is_gone)) return !is_gone;
  if (stat.start != start) return false;
  return stat.state != 'X' && (stat.state != 'Z' || stat.threads > 1);
}

// Starts and ends the thread whose end the kernel marks. API context.

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
