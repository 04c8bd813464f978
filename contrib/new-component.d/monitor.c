/* SPDX-License-Identifier: BSD-3-Clause
 * monitor_@NAME@.c - a monitor that reports what memory goes away. So far it sees nothing, and says so.
 *
 * Fill in attach(), which makes your source of events call on_event_hook(), and what sees() returns. pinrail_conform
 * then fires each event that sees() names and looks that it is reported in time. It includes installed headers only,
 * and links against nothing of Pinrail. */
#include <pinrail/component.h>
#include <stdatomic.h>
#include <stdlib.h>

typedef struct component { /* one for each copy of Pinrail that opened this file */
  const pinrail_host_t* host;
  int enabled;           /* parameter */
  atomic_int is_started; /* hooks may run at any time, also before start() and after stop() */
} component_t;

/* Runs inside munmap or free, before the kernel acts: it must not allocate, log, or change errno (E3). The range may be
 * larger than what goes away, but not smaller. */
static inline void on_event_hook(component_t* component, uintptr_t base, size_t length) {
  if (atomic_load_explicit(&component->is_started, memory_order_acquire) == 0) return; /* E7 */
  component->host->monitor_report_hook(component->host, base, length);
}

/* Begins to listen. What hooks can reach must stay mapped until the process ends (E7). */
static pinrail_status_t attach(component_t* component) {
  (void)component, (void)on_event_hook;
  return PINRAIL_SUCCESS;
}

/* Here a real monitor causes an event of each kind, and fails if its hook does not run (E5). */
static pinrail_status_t start(void* context) {
  component_t* component = context;
  if (!component->enabled) return PINRAIL_ERR_NOT_AVAILABLE;
  const pinrail_status_t status = attach(component);
  if (status == PINRAIL_SUCCESS) atomic_store_explicit(&component->is_started, 1, memory_order_release);
  return status;
}
static void stop(void* context) {
  component_t* component = context;
  atomic_store_explicit(&component->is_started, 0, memory_order_release);
}

/* PINRAIL_EVENT_* bits of what is seen wherever it happens. Memory to which an unseen event can happen is not cached.
 */
static uint32_t sees(void* context) {
  (void)context;
  return 0;
}

static pinrail_status_t open_it(const pinrail_host_t* host, void** context_out) {
  pinrail_param_value_t enabled;
  const pinrail_status_t status = host->param(host, "enabled", &enabled);
  if (status != PINRAIL_SUCCESS) return status;
  component_t* component = calloc(1, sizeof(*component));
  if (component == NULL) return PINRAIL_ERR_OUT_OF_RESOURCE;
  component->host = host;
  component->enabled = enabled.i != 0;
  *context_out = component;
  return PINRAIL_SUCCESS;
}
static void close_it(void* context) { free(context); }

static const pinrail_param_t params[] = {{.size = sizeof(pinrail_param_t),
                                          .name = "enabled",
                                          .fallback = "yes",
                                          .help = "Whether it may start. \"no\": as if it did not work here.",
                                          .type = PINRAIL_TYPE_BOOL,
                                          .scope = PINRAIL_SCOPE_READONLY,
                                          .level = 7}};

static const pinrail_monitor_ops_t ops = {
    .size = sizeof(ops), .start = start, .stop = stop, .sees = sees, .kinds = PINRAIL_KIND_HOST};

PINRAIL_API extern const pinrail_component_t pinrail_component;
const pinrail_component_t pinrail_component = {.size = sizeof(pinrail_component_t),
                                               .abi = PINRAIL_MONITOR_ABI,
                                               .priority = -1, /* only when it is named */
                                               .framework = "monitor",
                                               .name = "@NAME@",
                                               .version = "1.0.0",
                                               .help = "Sees nothing yet.",
                                               .params = params,
                                               .param_count = 1,
                                               .open = open_it,
                                               .close = close_it,
                                               .ops = &ops};
