// SPDX-License-Identifier: BSD-3-Clause
// recorder.cc - an area of address space that is filled in order, and read once.
#include "contrib/pinrun/recorder.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace pinrail::pinrun {
namespace {

struct Record {
  uint64_t ns;
  uint64_t addr;
  uint64_t length;
  int64_t id;
  uint32_t rights;
  std::atomic<char> op;  // 'R', 'D', 'I'; 0: not complete
};

constexpr uint64_t kMost = uint64_t{1} << 24;

std::atomic<Record*> records{nullptr};
std::atomic<uint64_t> reserved{0};
std::atomic<int64_t> next_id{0};
int64_t first_id = 0;  // of this process; a parent has recorded those before
pid_t owner = 0;
uint64_t start_ns = 0;

// What does not fit is counted by `reserved`.
void append_hook(char op, const void* addr, size_t length, uint32_t rights, int64_t id) {
  // acquire: the area is mapped; pairs with the release in start()
  Record* all = records.load(std::memory_order_acquire);
  if (all == nullptr) return;
  const uint64_t index = reserved.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMost) return;
  Record& record = all[index];
  record.ns = now_ns() - start_ns;
  record.addr = reinterpret_cast<uintptr_t>(addr);
  record.length = length;
  record.rights = rights;
  record.id = id;
  // release: the record is complete; pairs with the acquire in write_records()
  record.op.store(op, std::memory_order_release);
}

// An event may name more than there is of memory; a trace may not.
uint64_t length_in_memory(uint64_t addr, uint64_t length) {
  constexpr uint64_t kEndOfMemory = uint64_t{1} << 63;
  return addr < kEndOfMemory ? std::min(length, kEndOfMemory - addr) : 0;
}

// Clocks of two threads may disagree with the order of the records by less than a trace allows.
uint64_t write_records(FILE* file, uint64_t count) {
  const Record* all = records.load(std::memory_order_relaxed);
  uint64_t written = 0, last_ns = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const Record& record = all[i];
    const char op = record.op.load(std::memory_order_acquire);
    const uint64_t length = length_in_memory(record.addr, record.length);
    if (op == 0 || (op == 'I' && length == 0)) continue;
    last_ns = record.ns > last_ns ? record.ns : last_ns;
    std::fprintf(file, "%" PRIu64 " 0 %c %" PRIx64 " %" PRIu64 " %x 0 %" PRId64 "\n", last_ns, op, record.addr, length,
                 record.rights, record.id);
    ++written;
  }
  return written;
}

void write_file(FILE* file) {
  const uint64_t all = reserved.load(std::memory_order_relaxed), kept = all < kMost ? all : kMost;
  std::fprintf(file, "# program: %s\n# cache: pinrun\n# page_size: %ld\n# t0_ns: %" PRIu64 "\n# dropped: %" PRIu64 "\n",
               program_invocation_short_name, sysconf(_SC_PAGESIZE), start_ns, all - kept);
  std::fprintf(file, "# records: %" PRIu64 "\n", write_records(file, kept));
}

}  // namespace

void Recorder::start() {
  if (options().record == nullptr) return;
  void* area =
      mmap(nullptr, kMost * sizeof(Record), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (area == MAP_FAILED) {
    std::fprintf(stderr, "pinrun: no address space for a trace; %s is not written\n", options().record);
    return;
  }
  owner = getpid();
  start_ns = now_ns();
  first_id = next_id.load(std::memory_order_relaxed);
  reserved.store(0, std::memory_order_relaxed);  // what a parent recorded is its own
  pinrail_subscription_t* subscription = nullptr;
  if (pinrail_monitor_subscribe(event_hook, nullptr, &subscription) != PINRAIL_SUCCESS)
    std::fprintf(stderr, "pinrun: no monitor works here; the trace has no I lines\n");
  records.store(static_cast<Record*>(area), std::memory_order_release);
}

int64_t Recorder::registered(const void* addr, size_t length, uint32_t rights) {
  if (options().record == nullptr) return -1;
  const int64_t id = next_id.fetch_add(1, std::memory_order_relaxed);
  append_hook('R', addr, length, rights, id);
  return id;
}

void Recorder::deregistered(int64_t id, const void* addr, size_t length) {
  if (id >= first_id) append_hook('D', addr, length, 0, id);
}

void Recorder::event_hook(void*, void* addr, size_t length) { append_hook('I', addr, length, 0, 0); }

void Recorder::write() {
  if (records.load(std::memory_order_acquire) == nullptr || owner != getpid()) return;
  char path[4096];
  std::snprintf(path, sizeof(path), "%s.%ld", options().record, static_cast<long>(owner));
  FILE* file = std::fopen(path, "w");
  if (file != nullptr) write_file(file);
  if (file == nullptr || std::fclose(file) != 0)
    std::fprintf(stderr, "pinrun: the trace %s could not be written: %s\n", path, std::strerror(errno));
}

}  // namespace pinrail::pinrun
