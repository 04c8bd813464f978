// SPDX-License-Identifier: BSD-3-Clause
// bench_ucx.cc - UCX's ucs_rcache.
#include <sys/mman.h>

#include "test/bench/rows.h"
#include "test/bench/ucx_cache.h"

namespace pinrail::bench {

namespace {

class Cache {
 public:
  using Ref = UcxCache::Ref;
  static std::string version() { return UcxCache::version(); }

  Cache(const Options& options, int*, char***)
      : cache_([](uintptr_t, uintptr_t) { register_calls().count_one(); }, UCS_RCACHE_MIN_ALIGNMENT, options.limit, 0) {
  }

  Ref register_range(void* address, size_t length) {
    const Ref region = cache_.register_range(address, length);
    if (region == nullptr) fail("ucs_rcache_get");
    return region;
  }
  void deregister(Ref region) { cache_.deregister(region); }
  void invalidate(void* address, size_t length) { UcxCache::invalidate(address, length); }
  void unmap(void* address, size_t length) { munmap(address, length); }

 private:
  UcxCache cache_;
};

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run_program<pinrail::bench::Cache>(argc, argv); }
