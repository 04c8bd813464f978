// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock. call_hook() and call_original_hook(): hook context.
#include "base/patch/island.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "base/patch/maps.h"

namespace pinrail::patch {
namespace {

constexpr uintptr_t kLowest = 0x100000;  // islands are not placed below: null pointers with an offset may lead there
constexpr int kMaxTries = 100;           // another thread may map the gap first

uintptr_t distance(uintptr_t a, uintptr_t b) { return a < b ? b - a : a - b; }

// Left free for the heap, which grows up, and for the stack, which grows down.
constexpr uintptr_t kRoomToGrow = uintptr_t{1} << 30;

struct Gap {
  uintptr_t near;
  uintptr_t behind = kLowest;  // the end of the previous mapping
  bool below_grows = false;    // true if the previous mapping is the heap
  uintptr_t best = 0;

  void offer(uintptr_t at) {
    if (best == 0 || distance(at, near) < distance(best, near)) best = at;
  }
};

// Offers the two ends of the gap before the mapping, which are its nearest free pages.
bool look_at(const Mapping& mapping, Gap* gap) {
  const bool above_grows = std::strncmp(mapping.name, "[stack", 6) == 0;
  const uintptr_t room = mapping.base > gap->behind ? mapping.base - gap->behind : 0;
  if (room >= (gap->below_grows || above_grows ? kRoomToGrow : kPage)) {
    if (!gap->below_grows) gap->offer(gap->behind);
    if (!above_grows) gap->offer(mapping.base - kPage);
  }
  gap->below_grows = std::strncmp(mapping.name, "[heap", 5) == 0;
  gap->behind = mapping.end;
  return true;
}

}  // namespace

// Where the kernel puts a page is mostly near enough. The list of mappings, which may be long, is read if it is not.
uint8_t* map_near(uintptr_t near, uintptr_t reach) {
  Gap gap{near};
  for (int tries = 0; tries < kMaxTries; ++tries) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the gap that was found; the kernel may choose another address
    void* const wanted = reinterpret_cast<void*>(gap.best);
    void* const got = mmap(wanted, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got != MAP_FAILED && distance(reinterpret_cast<uintptr_t>(got), near) <= reach)
      return static_cast<uint8_t*>(got);
    if (got != MAP_FAILED) munmap(got, kPage);
    gap = Gap{near};
    const bool is_read = for_each_mapping([&gap](const Mapping& mapping) { return look_at(mapping, &gap); });
    if (!is_read || gap.best == 0 || distance(gap.best, near) > reach) return nullptr;
  }
  return nullptr;
}

const Record* record_of(uintptr_t island) {
  if (island % alignof(Record) != 0 || island % kPage < sizeof(Record)) return nullptr;
  constexpr int kCode = PROT_READ | PROT_EXEC;
  Mapping page{};
  for_each_mapping([&](const Mapping& mapping) {
    if (island >= mapping.base && island < mapping.end) page = mapping;
    return island >= mapping.end;
  });
  if (page.inode != 0 || (page.protection & kCode) != kCode) return nullptr;
  const auto* const record = reinterpret_cast<const Record*>(island) - 1;  // NOLINT(performance-no-int-to-ptr): code
  return record->mark == kMark ? record : nullptr;
}

bool call_hook(const Record& record, long number, const long* args, bool is_libcs, long* result_out) {
  const bool is_wanted = record.number == kAnyCall || number == record.number || number == record.or_number;
  long result;
  if (!is_wanted || !record.hook(record.arg, number, args, &result)) return false;
  const bool is_errno = is_libcs && is_error_hook(result);
  if (is_errno) errno = static_cast<int>(-result);
  *result_out = is_errno ? -1 : result;
  return true;
}

bool call_original_hook(const Record* original, long number, const long* args, long* result_out) {
  return original->hook(original->arg, number, args, result_out);
}

}  // namespace pinrail::patch

#endif
