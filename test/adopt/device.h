/* SPDX-License-Identifier: BSD-3-Clause
 * device.h - a device for programs that show how another library's registration calls are served by Pinrail: it records
 * what it is handed, and has keys of 64 bits.
 */
#ifndef PINRAIL_TEST_ADOPT_DEVICE_H
#define PINRAIL_TEST_ADOPT_DEVICE_H

#include <pinrail/pinrail.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                           \
  do {                                                                              \
    if (!(condition)) {                                                             \
      fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                      \
    }                                                                               \
  } while (0)

typedef struct device {
  pinrail_register_request_t last; /* of the last register_mem */
  unsigned registered, live;
} device_t;

static inline pinrail_status_t device_register(void* context, const pinrail_register_request_t* request,
                                               pinrail_registration_t* reg) {
  device_t* device = (device_t*)context;
  device->last = *request;
  device->registered++;
  device->live++;
  reg->lkey = device->registered;
  reg->rkey = device->registered;
  if (request->details != NULL) {
    request->details->lkey = device->registered;
    request->details->rkey = UINT64_C(0xabcd00000000) + device->registered;
  }
  return PINRAIL_SUCCESS;
}

static inline pinrail_status_t device_deregister(void* context, pinrail_registration_t* reg, pinrail_reason_t reason) {
  (void)reg;
  (void)reason;
  ((device_t*)context)->live--;
  return PINRAIL_SUCCESS;
}

static inline pinrail_registrar_t device_table(device_t* device) {
  pinrail_registrar_t table;
  memset(&table, 0, sizeof(table));
  table.size = sizeof(table);
  table.name = "adopted";
  table.context = device;
  table.kinds = PINRAIL_KIND_HOST | PINRAIL_KIND_DMABUF;
  table.granularity = 4096;
  table.register_mem = device_register;
  table.deregister_mem = device_deregister;
  table.wants_details = 1;
  return table;
}

static inline pinrail_mpool_t* device_pool(const pinrail_registrar_t* table) {
  const pinrail_setting_t setting = {"monitor", "external"};
  pinrail_init_options_t options = PINRAIL_INIT_OPTIONS_INIT;
  pinrail_registrar_choice_t choice = {NULL, NULL, NULL};
  pinrail_mpool_t* pool = NULL;
  options.settings = &setting;
  options.setting_count = 1;
  EXPECT(pinrail_init(&options) == PINRAIL_SUCCESS);
  choice.table = table;
  EXPECT(pinrail_mpool_create("grdma", &choice, NULL, NULL, &pool) == PINRAIL_SUCCESS);
  return pool;
}

static inline void device_close(pinrail_mpool_t* pool, const device_t* device) {
  EXPECT(pinrail_mpool_destroy(pool, 0) == PINRAIL_SUCCESS);
  EXPECT(device->live == 0);
  EXPECT(pinrail_finalize() == PINRAIL_SUCCESS);
}

#endif
