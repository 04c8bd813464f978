// SPDX-License-Identifier: BSD-3-Clause
// Linked with --wrap: calls of pinrail::monitor::report_hook(), from host tables and the API, arrive here first.
#include <atomic>
#include <cstdlib>

#include "config.h"
#include "test/oracle/worker.h"

// The linker's names for the function that is called, and for the real one.
extern "C" {
void real_report_hook(uint32_t kinds, uintptr_t base,
                      size_t length) __asm__("__real__ZN7pinrail7monitor11report_hookEjmm");
void filtered_report_hook(uint32_t kinds, uintptr_t base,
                          size_t length) __asm__("__wrap__ZN7pinrail7monitor11report_hookEjmm");
}

namespace pinrail::oracle {
namespace {

constexpr size_t kSlots = 64;
constexpr uintptr_t kPage = 4096;

// base is written last and cleared first. All seq_cst: an event that is fired after the constructor meets the range.
struct Slot {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> base{0}, end{0};
};
Slot slots[kSlots];

// From this slot on: what no range holds is passed on, piece by piece.
void pass_on_hook(uint32_t kinds, uintptr_t base, uintptr_t end, size_t first) {
  for (size_t i = first; i < kSlots; ++i) {
    const uintptr_t deaf_base = slots[i].base.load();
    const uintptr_t deaf_end = slots[i].end.load();
    if (deaf_base == 0 || end <= deaf_base || deaf_end <= base) continue;
    if (base < deaf_base) pass_on_hook(kinds, base, deaf_base, i + 1);
    if (deaf_end < end) pass_on_hook(kinds, deaf_end, end, i + 1);
    return;
  }
  real_report_hook(kinds, base, end - base);
}

}  // namespace

bool can_be_deaf() { return true; }
const char* component_folder() { return PINRAIL_TEST_BUILD "/components/.libs"; }

Deaf::Deaf(const void* base, size_t length) : slot_(0) {
  bool is_free = false;
  while (!slots[slot_].taken.compare_exchange_strong(is_free, true)) {
    is_free = false;
    if (++slot_ == kSlots) std::abort();  // more threads than options allow
  }
  const auto first = reinterpret_cast<uintptr_t>(base);
  slots[slot_].end.store((first + length + kPage - 1) & ~(kPage - 1));
  slots[slot_].base.store(first & ~(kPage - 1));
}

Deaf::~Deaf() {
  slots[slot_].base.store(0);
  slots[slot_].taken.store(false);
}

}  // namespace pinrail::oracle

void filtered_report_hook(uint32_t kinds, uintptr_t base, size_t length) {
  if (length == 0) return;
  const uintptr_t end = length > UINTPTR_MAX - base ? UINTPTR_MAX : base + length;
  pinrail::oracle::pass_on_hook(kinds, base, end, 0);
}
