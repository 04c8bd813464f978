// SPDX-License-Identifier: BSD-3-Clause
// The list of a pool's statistics. Any context; takes no lock.
#include <pinrail/stats.h>

namespace {

#define FIGURE(field, unit, help) \
  { #field, unit, help, offsetof(pinrail_mpool_stats_t, field) }

constexpr pinrail_stat_info_t kFigures[] = {
    FIGURE(hits, "calls", "register and find calls that the cache served"),
    FIGURE(misses, "calls", "register calls that asked the device"),
    FIGURE(evictions, "registrations", "idle registrations given back to make room"),
    FIGURE(invalidations, "registrations", "registrations that a memory event killed"),
    FIGURE(races, "registrations", "registrations that a memory event overtook while they were made"),
    FIGURE(retries, "calls", "device calls repeated after it was out of resources"),
    FIGURE(uncovered, "registrations", "not kept, for no monitor sees all that can happen to their memory"),
    FIGURE(indexed, "registrations", "registrations in the index now"),
    FIGURE(dead_bytes, "bytes", "killed and not yet given back"),
    FIGURE(registered_bytes, "bytes", "registered with the device now; of all pools of the cache"),
    FIGURE(registered_count, "registrations", "the same, counted"),
    FIGURE(peak_registered_bytes, "bytes", "the most there ever was"),
    FIGURE(pinned_bytes, "bytes", "unique pages of registered_bytes"),
    FIGURE(size_limit, "bytes", "limit of registered_bytes"),
    FIGURE(count_limit, "registrations", "limit of registered_count"),
};

#undef FIGURE

}  // namespace

const pinrail_stat_info_t* pinrail_stat_at(size_t index) {
  return index < sizeof(kFigures) / sizeof(kFigures[0]) ? &kFigures[index] : nullptr;
}
