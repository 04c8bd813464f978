// SPDX-License-Identifier: BSD-3-Clause
// A process with planted hits and misses, for test/tools_top_test.sh. It waits until it is ended.
#include <unistd.h>

#include <cstdio>

#include "test/support/host_table.h"

namespace {

constexpr uintptr_t kBase = 0x10000000;
constexpr size_t kPage = 4096;

pinrail_status_t do_nothing(void* /*context*/, const pinrail_register_request_t* /*request*/,
                            pinrail_registration_t* /*reg*/) {
  return PINRAIL_SUCCESS;
}
pinrail_status_t forget(void* /*context*/, pinrail_registration_t* /*reg*/, pinrail_reason_t /*reason*/) {
  return PINRAIL_SUCCESS;
}

void use(pinrail_mpool_t* pool, uintptr_t base, size_t length, uint32_t access = 1) {
  pinrail_handle_t handle{};
  // NOLINTNEXTLINE(performance-no-int-to-ptr): no memory is behind it
  if (pinrail_mpool_register(pool, reinterpret_cast<void*>(base), length, access, 0, &handle) == PINRAIL_SUCCESS) {
    (void)pinrail_mpool_deregister(handle);
  }
}

void report(uintptr_t base, size_t length) {
  pinrail_monitor_report(reinterpret_cast<void*>(base), length);  // NOLINT(performance-no-int-to-ptr): as above
}

void plant(pinrail_mpool_t* pool) {
  for (int i = 0; i < 1001; ++i) use(pool, kBase, kPage);  // cold, then hits
  for (int i = 0; i < 3; ++i) {                            // event
    report(kBase, kPage);
    use(pool, kBase, kPage);
  }
  use(pool, kBase, 2 * kPage);                                                // span
  use(pool, kBase, 3 * kPage);                                                // span
  use(pool, kBase, 3 * kPage, 3);                                             // rights
  for (uintptr_t i = 1; i <= 3; ++i) use(pool, kBase + i * 0x100000, kPage);  // cold
  for (uintptr_t i = 0; i < 5; ++i) {                                         // evicted
    while (pinrail_mpool_evict(pool) == PINRAIL_SUCCESS) {
    }
    use(pool, kBase + (i % 3 + 1) * 0x100000, kPage);
  }
}

}  // namespace

int main() {
  const pinrail_setting_t settings[] = {{"monitor", "external"}, {"mpool_grdma_rights", "asked"}};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  options.settings = settings;
  options.setting_count = 2;
  if (pinrail_init(&options) != PINRAIL_SUCCESS) return 1;
  pinrail_registrar_t table{};
  table.size = sizeof(table);
  table.name = "nothing";
  table.granularity = kPage;
  table.kinds = PINRAIL_KIND_HOST;
  table.register_mem = do_nothing;
  table.deregister_mem = forget;
  pinrail_mpool_t* const pool = pinrail::test::make_grdma(table);
  if (pool == nullptr) return 1;
  plant(pool);
  pinrail_handle_t held{};  // by a hit of what is cached at last
  // NOLINTNEXTLINE(performance-no-int-to-ptr): as above
  if (pinrail_mpool_register(pool, reinterpret_cast<void*>(kBase + 2 * 0x100000), kPage, 1, 0, &held) !=
      PINRAIL_SUCCESS)
    return 1;
  std::puts("ready");
  std::fflush(stdout);
  for (;;) pause();
}
