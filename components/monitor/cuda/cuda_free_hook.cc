// SPDX-License-Identifier: BSD-3-Clause
// Hook context: runs at the start of the driver's free functions.
#include "components/monitor/cuda/cuda.h"

namespace pinrail::cuda_monitor {

Shared shared;

namespace {

// Reports the range to all listeners. stop() waits until in_flight is 0.
void report_range_hook(uintptr_t base, size_t length) {
  for (Listener& listener : shared.listeners) {
    shared.in_flight.fetch_add(1);
    const pinrail_host_t* host = listener.load();
    if (host != nullptr) host->monitor_report_hook(host, base, length);
    shared.in_flight.fetch_sub(1);
  }
}

}  // namespace

// Where the driver knows the length only the address is reported: a registration that contains it overlaps the report.
bool free_hook(void* site_pointer, long number, const long* args, long* result_out) {
  const Site& site = *static_cast<const Site*>(site_pointer);
  const auto base = static_cast<uintptr_t>(args[0]);
  const Frees frees = site.function->frees;
  if (frees == Frees::everything) {
    report_range_hook(0, UINTPTR_MAX);
  } else if (base == 0) {
    shared.probes.fetch_add(1);
  } else {
    report_range_hook(base, frees == Frees::range ? static_cast<size_t>(args[1]) : 1);
  }
  // acquire: pairs with the release store in patch_site_locked().
  const patch::Record* const original = site.original.load(std::memory_order_acquire);
  return original != nullptr && patch::call_original_hook(original, number, args, result_out);
}

}  // namespace pinrail::cuda_monitor
