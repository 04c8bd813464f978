// SPDX-License-Identifier: BSD-3-Clause
// bench_pinrail.cc - Pinrail by its C interface and its shared library, with the defaults as shipped but for
// leave_pinned (1) and size_limit (128G, not reached).
#include <pinrail/pinrail.h>

#include "test/bench/rows.h"
#include "test/support/host_table.h"

namespace pinrail::bench {

namespace {

pinrail_status_t register_mem(void*, const pinrail_register_request_t*, pinrail_registration_t*) {
  register_calls().count_one();
  return PINRAIL_SUCCESS;
}

pinrail_registrar_t zero_cost_registrar() {
  pinrail_registrar_t registrar = test::host_table("zero-cost");
  registrar.register_mem = register_mem;
  return registrar;
}

void must(pinrail_status_t status, const char* what) {
  if (status != PINRAIL_SUCCESS) fail(what, pinrail_status_name(status));
}

class PinrailCache {
 public:
  using Ref = pinrail_handle_t;
  static std::string version() { return std::string("Pinrail ") + pinrail_version(); }

  PinrailCache(const Options& options, int*, char***)
      : registrar_(zero_cost_registrar()), reports_itself_(options.monitor == "external") {
    const pinrail_setting_t settings[] = {
        {"monitor", options.monitor.c_str()}, {"mpool_grdma_leave_pinned", "1"}, {"mpool_grdma_size_limit", "128G"}};
    pinrail_init_options_t init = PINRAIL_INIT_OPTIONS_INIT;
    init.settings = settings;
    init.setting_count = 3;
    must(pinrail_init(&init), "pinrail_init");
    pinrail_registrar_choice_t choice{};
    choice.table = &registrar_;
    pinrail_mpool_options_t pool = PINRAIL_MPOOL_OPTIONS_INIT;
    if (options.limit != 0) pool.count_limit = options.limit;
    must(pinrail_mpool_create("grdma", &choice, nullptr, &pool, &pool_), "pinrail_mpool_create");
  }

  Ref register_range(void* address, size_t length) {
    Ref handle;
    for (;;) {
      const pinrail_status_t status = pinrail_mpool_register(pool_, address, length, PINRAIL_RIGHTS_MASK, 0, &handle);
      if (status == PINRAIL_SUCCESS) return handle;
      // Where many threads invalidate few regions, events of others may have hit this one at each of four tries.
      if (status != PINRAIL_ERR_TEMP_OUT_OF_RESOURCE) fail("pinrail_mpool_register", pinrail_status_name(status));
    }
  }
  void deregister(Ref handle) {
    if (pinrail_mpool_deregister(handle) != PINRAIL_SUCCESS) fail("pinrail_mpool_deregister");
  }
  // What every monitor calls in the end.
  void invalidate(void* address, size_t length) { pinrail_monitor_report(address, length); }
  void unmap(void* address, size_t length) {
    if (reports_itself_) pinrail_monitor_report(address, length);
    munmap(address, length);
  }

 private:
  pinrail_registrar_t registrar_;
  const bool reports_itself_;  // no monitor sees the munmap
  pinrail_mpool_t* pool_ = nullptr;
};

}  // namespace

}  // namespace pinrail::bench

int main(int argc, char** argv) { return pinrail::bench::run_program<pinrail::bench::PinrailCache>(argc, argv); }
