// SPDX-License-Identifier: BSD-3-Clause
// bench_ompi.cc - Open MPI's rcache/grdma as libopenmpi-dev has it: leave_pinned 1, its memory hooks installed, and
// its locks switched on, as they are for a program that asks for MPI_THREAD_MULTIPLE.
#include <atomic>

extern "C" {
#include "opal_config.h"
// opal_config.h comes first
#include "opal/constants.h"
#include "opal/mca/rcache/base/base.h"
#include "opal/mca/rcache/rcache.h"
#include "opal/runtime/opal.h"
#include "opal/runtime/opal_params.h"
#include "opal/threads/mutex.h"
#include "opal/version.h"
}

#include "test/bench/rows.h"

namespace pinrail::bench {

namespace {

// How many registrations the registrar may hold before it refuses, which is how this cache learns that it must evict.
struct Budget {
  uint32_t limit = UINT32_MAX;
  uint32_t held = 0;
};

int register_mem(void* data, void*, size_t, mca_rcache_base_registration_t*) {
  Budget* const budget = static_cast<Budget*>(data);
  if (budget->limit != UINT32_MAX && budget->held++ == budget->limit) {
    --budget->held;
    return OPAL_ERR_OUT_OF_RESOURCE;
  }
  register_calls().count_one();
  return OPAL_SUCCESS;
}

int deregister_mem(void* data, mca_rcache_base_registration_t*) {
  Budget* const budget = static_cast<Budget*>(data);
  if (budget->limit != UINT32_MAX) --budget->held;
  return OPAL_SUCCESS;
}

class OmpiCache {
 public:
  using Ref = mca_rcache_base_registration_t*;
  static std::string version() { return "Open MPI " OPAL_VERSION; }

  OmpiCache(const Options& options, int* argc, char*** argv) {
    if (options.limit != 0) budget_.limit = options.limit;
    if (opal_init(argc, argv) != OPAL_SUCCESS) fail("opal_init");
    opal_leave_pinned = 1;
    opal_set_using_threads(true);
    if (mca_base_framework_open(&opal_rcache_base_framework, static_cast<mca_base_open_flag_t>(0)) != OPAL_SUCCESS)
      fail("Open MPI's rcache framework cannot be opened");
    static char cache_name[] = "bench";
    mca_rcache_base_resources_t resources{};
    resources.cache_name = cache_name;
    resources.reg_data = &budget_;
    resources.sizeof_reg = sizeof(mca_rcache_base_registration_t);
    resources.register_mem = register_mem;
    resources.deregister_mem = deregister_mem;
    module_ = mca_rcache_base_module_create("grdma", nullptr, &resources);
    if (module_ == nullptr) fail("Open MPI has no rcache grdma here");
  }

  Ref register_range(void* address, size_t length) {
    Ref registration;
    const int status = module_->rcache_register(module_, address, length, 0, MCA_RCACHE_ACCESS_ANY, &registration);
    if (status != OPAL_SUCCESS) fail("rcache_register");
    return registration;
  }
  void deregister(Ref registration) { module_->rcache_deregister(module_, registration); }
  void invalidate(void* address, size_t length) { module_->rcache_invalidate_range(module_, address, length); }
  void unmap(void* address, size_t length) { munmap(address, length); }

 private:
  Budget budget_;
  mca_rcache_base_module_t* module_ = nullptr;
};

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run_program<pinrail::bench::OmpiCache>(argc, argv); }
