// SPDX-License-Identifier: BSD-3-Clause
// Chooses which mappings are watched. API context, no lock. Whole mappings are watched, not registrations: watching a
// part would split the mapping, and the number of mappings of a process is limited.
#include <cerrno>
#include <string>

#include "base/core/errno_text.h"
#include "components/monitor/uffd/uffd.h"

namespace pinrail::uffd {
namespace {

// Not PINRAIL_EVENT_REMOVE: the kernel reports MADV_REMOVE for the mapping that it names, and not for the other
// mappings of the same file, which lose the pages as well.
constexpr uint32_t kSeen = PINRAIL_EVENT_UNMAP | PINRAIL_EVENT_MAP_OVER | PINRAIL_EVENT_REMAP |
                           PINRAIL_EVENT_REMAP_ONTO | PINRAIL_EVENT_DONTNEED | PINRAIL_EVENT_PROCESS_MADVISE |
                           PINRAIL_EVENT_BRK;

// Returns whether one more mapping may be watched. A watched mapping does not merge with its neighbours any more, so
// that in time there is one mapping more. relaxed: an estimate. When it is too high, the mappings are counted, but not
// at each call, because counting takes long.
bool has_room(Context* context) {
  constexpr uint64_t kRefusals = 256;
  constexpr auto relaxed = std::memory_order_relaxed;
  if (context->taken.fetch_add(1, relaxed) < context->most_mappings) return true;
  if (context->refused.fetch_add(1, relaxed) % kRefusals != 0) return false;
  const uint64_t count = count_mappings();
  context->taken.store(count, relaxed);
  if (count >= context->most_mappings) return false;
  context->refused.store(0, relaxed);  // most of what was watched is gone: the next refusal counts again
  return true;
}

void report_refused(const Context& context, const pinrail_mapping_t& mapping) {
  if (errno == EINVAL) return;  // a kind that the kernel does not watch; the README lists them
  const std::string line = std::string("the kernel does not watch a mapping of ") +
                           NumberText(mapping.end - mapping.base).c_str() + " bytes: " + ErrnoText(errno).c_str();
  context.host->log(context.host, PINRAIL_LOG_DEBUG, line.c_str());
}

}  // namespace

// Starts to watch the mapping. Returns the events that are then seen, or 0.
uint32_t cover(Context* context, const pinrail_mapping_t& mapping) {
  const bool may_be = mapping.kind != PINRAIL_MAPPING_NONE && mapping.kind != PINRAIL_MAPPING_DEVICE;
  if (!may_be || context->lost.load() || !is_same_process(*context) || !has_room(context)) return 0;
  if (watch_range(*context, {mapping.base, mapping.end})) return kSeen;
  report_refused(*context, mapping);
  return 0;
}

}  // namespace pinrail::uffd
