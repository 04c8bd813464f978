// SPDX-License-Identifier: BSD-3-Clause
// Start-up or API context, no lock. call_hook() and call_original_hook(): hook context.
#include "base/patch/island.h"

#include "base/patch/system_call.h"

#if PINRAIL_CAN_PATCH

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>

#include "base/patch/maps.h"

namespace pinrail::patch {
namespace {

uintptr_t distance(uintptr_t a, uintptr_t b) { return a < b ? b - a : a - b; }

}  // namespace

// Where the kernel puts a page is mostly near enough. If it is not, one is wished for at growing distances.
uint8_t* map_near(uintptr_t near, uintptr_t reach) {
  constexpr uintptr_t kStep = uintptr_t{1} << 20;
  for (uintptr_t away = 0; away < std::min(reach, near); away += kStep) {
    for (const uintptr_t at : {near - away, near + away}) {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): what is wished; the kernel may choose another address
      void* const wanted = reinterpret_cast<void*>(at & ~(kPage - 1));
      void* const got = mmap(wanted, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (got != MAP_FAILED && distance(reinterpret_cast<uintptr_t>(got), near) <= reach)
        return static_cast<uint8_t*>(got);
      if (got != MAP_FAILED) munmap(got, kPage);
    }
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
