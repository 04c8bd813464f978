// SPDX-License-Identifier: BSD-3-Clause
// record_hook.cc - adds records, in any context.
#include <ctime>

#include "base/registration/thread.h"
#include "framework/front/record.h"

namespace pinrail::record {

std::atomic<Area*> recording{nullptr};

void append_hook(char op, const Record& what) {
  // acquire: the area is filled in; pairs with the release in start()
  Area* const area = recording.load(std::memory_order_acquire);
  if (area == nullptr) return;
  const uint64_t index = area->reserved.fetch_add(1, std::memory_order_relaxed);
  if (index >= kMost) return;
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  Record& record = area->records[index];
  record.ns = static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec) - area->start_ns;
  record.addr = what.addr;
  record.length = what.length;
  record.generation = what.generation;
  record.reg = what.reg;
  record.access = what.access;
  record.flags = what.flags;
  record.thread = thread::current_thread->index;
  // release: the record is complete; pairs with the acquire in the writer
  record.op.store(op, std::memory_order_release);
}

void record_event_hook(void* /*arg*/, uintptr_t base, size_t length) {
  append_hook('I', {0, base, length, 0, nullptr, 0, 0, 0, {}});
}

}  // namespace pinrail::record
