// SPDX-License-Identifier: BSD-3-Clause
// The start and the end of a recording, and what calls add to it. API context; the caller holds no lock.
#include "framework/api/record.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/core/clock.h"
#include "base/core/guarded.h"
#include "base/registration/registration.h"
#include "base/registration/thread.h"
#include "base/sync/fork_reinit.h"
#include "framework/api/refuse.h"
#include "framework/monitor/monitor.h"
#include "framework/mpool/hit_check.h"
#include "framework/mpool/params.h"

namespace pinrail::record {
namespace {

constexpr pinrail_param_t kParam = mpool::param(
    "record", "",
    "File to which each process writes its calls on pools and its memory events when it exits or finalizes, for "
    "pinrail_perf --trace and pinrail_advise; %p is the process id, which is appended where it is missing. Hits take "
    "some 0.2 us more, and each call takes 56 bytes. Empty: nothing is recorded.",
    PINRAIL_TYPE_STRING, 3);

// Not freed: at exit other threads may still append.
Area area{};
char path[4096];
void* subscription = nullptr;

void tell(const char* topic, const char* why) {
  (void)guarded([=] { api::help(topic, {{"file", path}, {"why", why}}); });
}

// A program may change its folder before it exits.
std::string absolute(const std::string& name) {
  char folder[2048];
  if (name[0] == '/' || getcwd(folder, sizeof(folder)) == nullptr) return name;
  return std::string(folder) + "/" + name;
}

std::string named_by_process(std::string name) {
  if (name.find("%p") == std::string::npos) name += ".%p";
  const std::string id = std::to_string(getpid());
  for (size_t at = name.find("%p"); at != std::string::npos; at = name.find("%p", at + id.size()))
    name.replace(at, 2, id);
  return name;
}

// So that a wrong name is known at once, and not at the end.
const char* why_not_writable() {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return std::strerror(errno);
  close(fd);
  return nullptr;
}

const char* why_no_area() {
  void* const mapped =
      mmap(nullptr, kMost * sizeof(Record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) return std::strerror(errno);
  area.records = static_cast<Record*>(mapped);
  area.reserved.store(0, std::memory_order_relaxed);
  area.start_ns = now_ns_hook();
  area.owner = getpid();
  return nullptr;
}

// So that who replays the calls has the same pool: what of it is not as by default.
void note_settings(const param::Registry& params) {
  std::string lines;
  pinrail_param_info_t info{};
  info.size = sizeof(info);
  for (size_t i = 0; params.at(i, &info).ok(); ++i) {
    const std::string line = std::string("# setting: ") + info.name + " " + info.value + "\n";
    const bool fits = lines.size() + line.size() < sizeof(area.settings);
    const bool is_of_pool = std::strcmp(info.framework, "mpool") == 0 && std::strcmp(info.component, "grdma") == 0;
    if (is_of_pool && info.source != PINRAIL_SOURCE_DEFAULT && fits) lines += line;
  }
  std::memcpy(area.settings, lines.c_str(), lines.size() + 1);
}

void write_if_ours() {
  if (!is_on() || area.owner != getpid()) return;
  const char* const why = write_file(area, path);
  if (why != nullptr) tell("record lost", why);
}

// Not by atexit(), which no part of the library calls (R10). Other threads may append meanwhile.
__attribute__((destructor)) void at_exit() { write_if_ours(); }

}  // namespace

Status declare(param::Registry* params) { return params->declare("mpool", "base", &kParam, 1); }

void start(const param::Registry& params) {
  const std::string name = params.value("mpool_base_record").s;
  if (name.empty()) return;
  const std::string full = absolute(named_by_process(name));
  const bool fits = full.size() < sizeof(path);
  std::memcpy(path, full.c_str(), fits ? full.size() + 1 : 0);
  const char* why = fits ? why_not_writable() : "its name is too long";
  if (why == nullptr) why = why_no_area();
  if (why != nullptr) return tell("record refused", why);
  note_settings(params);
  // release: the area is filled in; pairs with the acquire in append_hook()
  recording.store(&area, std::memory_order_release);
  mpool::watchers.fetch_add(1, std::memory_order_relaxed);
  if (!monitor::works(nullptr) || !monitor::subscribe_foreign(record_event_hook, nullptr, &subscription).ok())
    tell("record without events", "no monitor works here");
}

void stop() {
  if (!is_on()) return;
  if (subscription != nullptr) monitor::unsubscribe_foreign(subscription);
  subscription = nullptr;
  write_if_ours();
  mpool::watchers.fetch_sub(1, std::memory_order_relaxed);
  recording.store(nullptr);
  munmap(area.records, kMost * sizeof(Record));
}

// The parent's records are not the child's; its copy of them goes back to the kernel.
void fork_reinit() {
  if (!is_on()) return;
  recording.store(nullptr);
  replace_in_child(&subscription, nullptr);
  munmap(area.records, kMost * sizeof(Record));
}

void took(char op, const void* addr, size_t length, uint64_t access_and_flags, const pinrail_handle_t* handle) {
  if (!is_on()) return;
  const auto access = static_cast<uint32_t>(access_and_flags & PINRAIL_RIGHTS_MASK);
  const auto flags = static_cast<uint32_t>(access_and_flags >> PINRAIL_ACCESS_FLAGS_SHIFT);
  if (handle != nullptr) state::unquicken(handle->reg);
  const pinrail_handle_t taken = handle != nullptr ? *handle : pinrail_handle_t{nullptr, 0};
  append_hook(op, reinterpret_cast<uintptr_t>(addr), length, taken, access, flags);
}

void dropping(pinrail_handle_t handle) {
  append_hook('D', span_of(handle.reg).base, handle.reg->length, handle, handle.reg->rights, 0);
}

void evicted(pinrail_status_t status) { append_hook('E', 0, 0, {nullptr, status == PINRAIL_SUCCESS ? 1u : 0u}, 0, 0); }

// Adds records, in any context.

std::atomic<Area*> recording{nullptr};

void append_hook(char op, uintptr_t addr, size_t length, pinrail_handle_t handle, uint32_t access, uint32_t flags) {
  // acquire: the area is filled in; pairs with the release in start()
  Area* const into = recording.load(std::memory_order_acquire);
  if (into == nullptr) return;
  const uint64_t index = into->reserved.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMost) return;
  Record& record = into->records[index];
  record.ns = now_ns_hook() - into->start_ns;
  record.addr = addr;
  record.length = length;
  record.generation = handle.generation;
  record.reg = handle.reg;
  record.access = access;
  record.flags = flags;
  record.thread = thread::current_thread->index;
  // release: the record is complete; pairs with the acquire in the writer
  record.op.store(op, std::memory_order_release);
}

void record_event_hook(void* /*arg*/, uintptr_t base, size_t length) {
  append_hook('I', base, length, {nullptr, 0}, 0, 0);
}

}  // namespace pinrail::record
