// SPDX-License-Identifier: BSD-3-Clause
// monitor/external: the embedding program reports events by pinrail_monitor_report(). Nothing is installed or tested,
// so the user who names this monitor is responsible. It is used only when it is named (its priority is negative).
// Start-up context.
#include "base/core/own_component.h"

namespace {

pinrail_status_t start(void*) { return PINRAIL_SUCCESS; }
void stop(void*) {}
uint32_t sees(void*) { return PINRAIL_EVENTS_ALL; }

// The program promises to report every event of every caller.
constexpr pinrail_monitor_ops_t kOps = {sizeof(pinrail_monitor_ops_t), start, stop, nullptr, sees, nullptr, 0,
                                        PINRAIL_MONITOR_ANY_CALLER};

}  // namespace

const pinrail_component_t PINRAIL_COMPONENT_SYMBOL =
    pinrail::describe(PINRAIL_MONITOR_ABI, -1, "monitor", "external",
                      "The embedding program reports memory that goes away; used only when named.", pinrail::keep_host,
                      pinrail::forget_host, &kOps);
