// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock. call_hook() and call_original_hook(): hook context.
#include "base/patch/island.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

#include <sys/mman.h>

#include <algorithm>
#include <string_view>

#include "base/patch/maps.h"

namespace pinrail::patch {
namespace {

constexpr uintptr_t kLowest = 0x100000;  // islands are not placed below: null pointers with an offset may lead there
// Left free for the heap, which grows up, and for the stack, which grows down.
constexpr uintptr_t kRoomToGrow = uintptr_t{1} << 30;

uintptr_t distance(uintptr_t a, uintptr_t b) { return a < b ? b - a : a - b; }

// The free page nearest to the address, as the list of mappings says, which may be long; 0: none is known. It lies at
// an end of a gap.
uintptr_t free_page_near(uintptr_t near) {
  uintptr_t best = 0, behind = kLowest;
  bool is_below_growing = false;
  const auto offer = [&](uintptr_t at) {
    if (best == 0 || distance(at, near) < distance(best, near)) best = at;
  };
  for_each_mapping([&](const Mapping& mapping) {
    const std::string_view name(mapping.path);
    const bool is_above_growing = name.substr(0, 6) == "[stack";
    const uintptr_t room = mapping.base > behind ? mapping.base - behind : 0;
    if (room >= (is_below_growing || is_above_growing ? kRoomToGrow : kPage)) {
      if (!is_below_growing) offer(behind);
      if (!is_above_growing) offer(mapping.base - kPage);
    }
    is_below_growing = name.substr(0, 5) == "[heap";
    behind = std::max(behind, mapping.end);
    return true;
  });
  return best;
}

}  // namespace

// Where the kernel puts a page is mostly near enough. If it is not, a gap is sought, which another thread may map
// first.
uint8_t* map_near(uintptr_t near, uintptr_t reach) {
  constexpr int kMaxTries = 100;
  uintptr_t wanted = 0;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): of the gap that was found; the kernel may choose another address
    void* const page = reinterpret_cast<void*>(wanted);
    void* const got = mmap(page, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (got != MAP_FAILED && distance(reinterpret_cast<uintptr_t>(got), near) <= reach)
      return static_cast<uint8_t*>(got);
    if (got != MAP_FAILED) munmap(got, kPage);
    wanted = free_page_near(near);
    if (wanted == 0 || distance(wanted, near) > reach) return nullptr;
  }
  return nullptr;
}

const Record* record_of(uintptr_t island) {
  if (island % alignof(Record) != 0 || island % kPage < sizeof(Record)) return nullptr;
  constexpr int kCode = PROT_READ | PROT_EXEC;
  Mapping page;
  const bool is_mapped = find_mapping(island, &page) && island >= page.base;
  if (!is_mapped || page.inode != 0 || (page.protection & kCode) != kCode) return nullptr;
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
