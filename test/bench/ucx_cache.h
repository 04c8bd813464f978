// SPDX-License-Identifier: BSD-3-Clause
// ucx_cache.h - UCX's ucs_rcache as libucx-dev has it: its LRU list on (the default), its memory hooks installed, its
// registrar a function of ours that gets each range.
#ifndef PINRAIL_TEST_BENCH_UCX_CACHE_H
#define PINRAIL_TEST_BENCH_UCX_CACHE_H

extern "C" {
#include <ucs/memory/rcache.h>
}

#include <cstddef>
#include <cstdint>

namespace pinrail::bench {

class UcxCache {
 public:
  using Ref = ucs_rcache_region_t*;
  using Registered = void (*)(uintptr_t begin, uintptr_t end);

  // alignment: of the ranges that it registers, from UCS_RCACHE_MIN_ALIGNMENT to a page. Limits of 0 are none.
  UcxCache(Registered registered, size_t alignment, size_t most_regions, size_t most_bytes);
  ~UcxCache() { ucs_rcache_destroy(cache_); }
  UcxCache(const UcxCache&) = delete;
  UcxCache& operator=(const UcxCache&) = delete;

  static const char* version();

  // NULL: refused.
  Ref register_range(void* address, size_t length);
  void deregister(Ref region) { ucs_rcache_region_put(cache_, region); }
  // As ucm does when memory goes away.
  static void invalidate(void* address, size_t length);

 private:
  const size_t alignment_;
  ucs_rcache_t* cache_ = nullptr;
};

}  // namespace pinrail::bench

#endif
