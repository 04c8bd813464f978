// SPDX-License-Identifier: BSD-3-Clause
// ucs_rcache.h - the interface of UCX's registration cache on pinrail.h, for a program that is ported from ucs_rcache.
//
// Names are those of UCX without "ucs_". What Pinrail itself does not have is here, in some lines each:
//   hold            counted in the region, which is the registrar's tail; references are interchangeable
//   arg of get      reaches mem_reg through the calling thread, because a miss calls the registrar on its own thread
//   errors          mem_reg's own status comes back from get on the same way
//   invalidate      of a region, with functions that run after its mem_dereg: in the put that drops the last reference
//   limits          soft: what is idle is evicted, no get is refused. Pinrail's own limits are hard
//   statistics      gets, puts, events and calls of the registrar; hits, misses and invalidations are Pinrail's
//
// Threads  All functions may run together, except create and destroy. No lock is held around mem_reg and mem_dereg.
#ifndef PINRAIL_TEST_ADOPT_UCS_RCACHE_H
#define PINRAIL_TEST_ADOPT_UCS_RCACHE_H

#include <pinrail/pinrail.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace pinrail::adopt {

// The values of ucs_status_t that are used here.
enum Status : int { kOk = 0, kNoResource = -2, kIoError = -3, kNoMemory = -4, kInvalidParam = -5, kUnsupported = -22 };

struct Rcache;

// A function that runs when an invalidated region was given back. Linked into the region until then.
struct Completion {
  void (*function)(void* arg) = nullptr;
  void* arg = nullptr;
  Completion* next = nullptr;
};

// Begins the struct of the program, whose size is Params::region_struct_size.
struct Region {
  uintptr_t start, end;
  int prot;                      // PROT_READ | PROT_WRITE
  std::atomic<uint32_t> held;    // references that hold() added
  std::atomic<bool> is_invalid;  // by region_invalidate()
  Completion* completions;       // guarded by Rcache::mutex
};

struct Ops {
  Status (*mem_reg)(void* context, Rcache* rcache, void* arg, Region* region);
  void (*mem_dereg)(void* context, Rcache* rcache, Region* region);
};

struct Params {
  size_t region_struct_size = sizeof(Region);
  size_t alignment = 16;
  const Ops* ops = nullptr;
  void* context = nullptr;
  uint64_t max_regions = UINT64_MAX;
  uint64_t max_size = UINT64_MAX;
};

// gets = hits + misses, as long as no get fails.
struct Stats {
  uint64_t gets, puts, hits, misses, regs, deregs;
  uint64_t unmaps;             // memory events of the process
  uint64_t unmap_invalidates;  // registrations that these have invalidated
};

struct Rcache {
  Params params;
  pinrail_registrar_t table;
  pinrail_mpool_t* pool;
  pinrail_subscription_t* events;
  std::mutex mutex;
  std::atomic<uint64_t> regions, bytes;  // that mem_reg has registered, and mem_dereg has not had yet
  std::atomic<uint64_t> gets, puts, regs, deregs, unmaps;
};

Status rcache_create(const Params& params, const char* name, Rcache** rcache_out);
void rcache_destroy(Rcache* rcache);

// alignment: a power of two; a new region begins and ends at multiples of it, and of that of the cache.
Status rcache_get(Rcache* rcache, void* address, size_t length, size_t alignment, int prot, void* arg,
                  Region** region_out);
// The caller has a reference, and gets another one, of an invalidated region as well.
void rcache_region_hold(Region* region);
void rcache_region_put(Rcache* rcache, Region* region);
// The caller has a reference. No get returns the region afterwards. completion: unlinked before its function runs.
void rcache_region_invalidate(Rcache* rcache, Region* region, Completion* completion);
// Whether a get would return it: the flag UCS_RCACHE_REGION_FLAG_PGTABLE. The caller has a reference. A get that looks
// counts as a use.
bool rcache_region_is_cached(Rcache* rcache, Region* region);

Stats rcache_stats(Rcache* rcache);

}  // namespace pinrail::adopt

#endif
