// SPDX-License-Identifier: BSD-3-Clause
// The list of a pool's statistics. Any context; takes no lock.
#include <pinrail/stats.h>

namespace {

#define STAT(field, unit, help) \
  { #field, unit, help, offsetof(pinrail_mpool_stats_t, field) }

constexpr pinrail_stat_info_t kStats[] = {
    STAT(hits, "calls", "register and find calls that the cache served"),
    STAT(misses, "calls", "register calls that asked the device"),
    STAT(evictions, "registrations", "idle registrations given back to make room"),
    STAT(invalidations, "registrations", "registrations that a memory event killed"),
    STAT(races, "registrations", "registrations that a memory event overtook while they were made"),
    STAT(retries, "calls", "device calls repeated after it was out of resources"),
    STAT(uncovered, "registrations", "not kept, for no monitor sees all that can happen to their memory"),
    STAT(extent_hits, "calls", "requests that memory answered which was registered beside what was asked for"),
    STAT(extent_lost, "registrations",
         "registrations that a memory event killed before such memory had paid for itself"),
    STAT(indexed, "registrations", "registrations in the index now"),
    STAT(dead_bytes, "bytes", "killed and not yet given back"),
    STAT(registered_bytes, "bytes", "registered with the device now; of all pools of the cache"),
    STAT(registered_count, "registrations", "the same, counted"),
    STAT(peak_registered_bytes, "bytes", "the most there ever was"),
    STAT(pinned_bytes, "bytes", "unique pages of registered_bytes"),
    STAT(size_limit, "bytes", "limit of registered_bytes"),
    STAT(count_limit, "registrations", "limit of registered_count"),
    STAT(misses_cold, "calls", "misses of ranges that were not cached before, or long ago"),
    STAT(misses_span, "calls", "misses of ranges that overlap what is cached, which does not contain them"),
    STAT(misses_rights, "calls", "misses of ranges that are cached with fewer rights"),
    STAT(misses_event, "calls", "misses of ranges that were cached until their memory went away"),
    STAT(misses_evicted, "calls", "misses of ranges that were cached until they were evicted"),
    STAT(misses_extent, "calls", "misses of ranges cached in a longer registration, of which another part went away"),
    STAT(misses_uncovered, "calls", "misses of memory that is not kept, because no monitor sees all its events"),
    STAT(misses_bypass, "calls", "misses of requests with CACHE_BYPASS or options of their own"),
    STAT(misses_raced, "calls", "misses whose memory had an event while they were made"),
    STAT(misses_full, "calls", "misses that failed because what is in use fills a limit"),
    STAT(misses_refused, "calls", "misses that the registrar refused"),
    STAT(misses_not_kept, "calls", "misses where nothing is kept: leave_pinned=no, or PERSISTENT"),
};

#undef STAT

}  // namespace

const pinrail_stat_info_t* pinrail_stat_at(size_t index) {
  return index < sizeof(kStats) / sizeof(kStats[0]) ? &kStats[index] : nullptr;
}
